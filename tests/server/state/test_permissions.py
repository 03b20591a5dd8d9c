"""The places that clients may change."""

from typing import Any

import msgspec
import pytest
from tests.cases import each_case

from plait.actor.thread import Thread
from plait.errors import Forbidden
from plait.state.permissions import check_permitted
from plait.state.places import read_places
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.types import StateType
from plait_schemas.patch import Op


class Source:
    """A client."""

    id = "c1"
    trace: object = None

    def __init__(self, user: str | None) -> None:
        self.user = user
        self.principal = None if user is None else Principal(user)


STATE: Any = {"list": [{"0": 1}], "people": {"0": {}, "-": {}}}


@each_case(
    ("pattern", "path", "user", "may"),
    [
        ("/note", "/note", None, True),
        ("/note", "/note/x", None, False),
        ("/note", "/notes", None, False),
        ("/note", "", None, False),
        ("", "", None, True),
        ("", "/note", None, False),
        ("/**", "", None, True),
        ("/**", "/a/b/c", None, True),
        ("/a/**", "/a", None, True),
        ("/a/**", "/a/b/c", None, True),
        ("/a/**", "/b", None, False),
        ("/a/**", "", None, False),
        ("/a/*/c", "/a/b/c", None, True),
        ("/a/*/c", "/a/c", None, False),
        ("/a/*", "/a/b/c", None, False),
        ("/a~1b/*", "/a~1b/c", None, True),
        ("/a~1b/*", "/a/b/c", None, False),
        ("/people/{user}/**", "/people/ada/x", "ada", True),
        ("/people/{user}/**", "/people/ada", "ada", True),
        ("/people/{user}/**", "/people/bob/x", "ada", False),
        ("/people/{user}/**", "/people/a~1b/x", "a/b", True),
        ("/people/{user}/**", "/people/a/b", "a/b", False),
        ("/people/{user}/**", "/people/None/x", None, False),
        ("/people/{user}/**", "/people/{user}/x", None, False),
        ("/people/{user}", "/people//x", "", False),
        ("/people/{user}", "/people/0", "0", True),
        ("/people/{user}", "/people/-", "-", True),
        ("/list/{user}", "/list/0", "0", False),
        ("/list/{user}", "/list/-", "-", False),
        ("/list/*/{user}", "/list/0/0", "0", True),
        ("/list/*", "/list/-", None, True),
    ],
)
@each_case("form", ["json", "tree"])
def test_a_place_that_a_pattern_names_may_be_changed(
    pattern: str, path: str, user: str | None, may: bool, form: str
) -> None:
    type_ = StateType(dict)
    revision = Revision(type_, json=msgspec.json.encode(STATE)) if form == "json" else Revision(type_, tree=STATE)
    places = read_places("can_write", ["/other", pattern])
    ops = [Op("add", "/other", 1), Op("add", path, 1)]
    if may:
        check_permitted(places, ops, Source(user), revision)
    else:
        with pytest.raises(Forbidden) as refused:
            check_permitted(places, ops, Source(user), revision)
        assert refused.value.path == path


class Row(msgspec.Struct, array_like=True):
    """An array in JSON."""

    score: int = 0
    notes: list[int] = []
    names: dict[str, int] = {}


class Table(msgspec.Struct):
    row: Row
    people: dict[str, Row]


@each_case(
    ("pattern", "path", "user", "may"),
    [
        ("/row/{user}", "/row/0", "0", False),
        ("/row/{user}/*", "/row/1/0", "1", False),
        ("/row/*/{user}", "/row/1/0", "0", False),
        ("/row/*/{user}", "/row/2/0", "0", True),
        ("/people/{user}", "/people/0", "0", True),
        ("/people/*/{user}", "/people/0/0", "0", False),
    ],
)
def test_a_user_is_no_element_of_a_struct_that_is_an_array_in_json(
    pattern: str, path: str, user: str, may: bool
) -> None:
    row = Row(notes=[1], names={"0": 1})
    revision = Revision(StateType(Table), tree=Table(row, {"0": row}))
    places = read_places("can_write", [pattern])
    try:
        check_permitted(places, [Op("replace", path, 1)], Source(user), revision)
    except Forbidden:
        assert not may
    else:
        assert may


@each_case("patterns", ["/note", {"/note"}, ("note",), (7,), ("/a/**/b",), ("/a/{name}",), ("/a/x{user}",), ("/a/b*",)])
def test_what_is_no_pattern_is_refused_when_the_class_is_made(patterns: Any) -> None:
    with pytest.raises(TypeError, match=r"Room\.can_write"):

        class Room(Thread[Any]):
            can_write = patterns


def test_a_class_without_permissions_lets_clients_change_everything() -> None:
    nothing = read_places("Room.can_write", ())
    with pytest.raises(Forbidden):
        check_permitted(nothing, [Op("add", "", 1)], Source("ada"), Revision(StateType(dict)))
