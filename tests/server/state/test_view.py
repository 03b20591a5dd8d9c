"""Pictures of states: the laws by which readers follow pictures by operations, and the places that patterns show."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.cases import each_case

from plait.state.places import read_places
from plait.state.revision import Revision
from plait.state.types import StateType
from plait.state.view import EVERYTHING, HIDDEN, View, find_view
from plait.store.thread_rows import ChangeRow
from plait_schemas.patch import Op, PatchError, apply
from plait_schemas.rebase import rebase

# The names of members look like indices, users and patterns, too.
NAMES = ("a", "b", "3", "0", "-", "*", "{user}")
USERS = ("a", "3", "-", "*", "{user}", None)

values: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([1, None, "text", True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
states = st.fixed_dictionaries(dict.fromkeys(NAMES, values))
parts = st.sampled_from(["a", "b", "3", "0", "-", "*", "*", "{user}"])
patterns = st.lists(parts, min_size=1, max_size=3).map(lambda names: "".join(f"/{name}" for name in names))
views = st.builds(
    lambda found, user: find_view(read_places("can_read", found), user),
    st.lists(patterns, max_size=4),
    st.sampled_from(USERS),
)


def read_view(*found: str, user: str | None = None) -> View:
    return find_view(read_places("can_read", found), user)


def revision(state: Any) -> Revision:
    return Revision(StateType(Any), json=msgspec.json.encode(state))


def find_containers(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return all places of a value, with what is there."""
    found = [(path, value)]
    if isinstance(value, dict):
        for name, each in value.items():
            found += find_containers(each, f"{path}/{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            found += find_containers(each, f"{path}/{index}")
    return found


def draw_op(data: st.DataObject, document: Any) -> Op:
    """Return an operation that fits a document."""
    path, value = data.draw(st.sampled_from(find_containers(document)))
    kind = data.draw(st.sampled_from(["add", "remove", "replace", "splice"]))
    if kind == "add" and isinstance(value, dict):
        return Op("add", f"{path}/{data.draw(st.sampled_from(NAMES))}", data.draw(values))
    if kind == "add" and isinstance(value, list):
        index = data.draw(st.sampled_from([*range(len(value) + 1), "-"]))
        return Op("add", f"{path}/{index}", data.draw(values))
    if kind == "splice" and isinstance(value, str):
        return Op("splice", path, at=data.draw(st.integers(0, len(value))), insert="x")
    if kind == "remove" and path:
        return Op("remove", path)
    return Op("replace", path, data.draw(values))


@given(st.data(), states, views)
def test_the_picture_of_a_changed_state_is_the_changed_picture(data: st.DataObject, state: Any, view: View) -> None:
    ops, after = [], state
    for _ in range(data.draw(st.integers(1, 4))):
        ops.append(draw_op(data, after))
        after = apply(after, ops[-1:])
    seen = view.filter(ops, revision(after))
    assume(seen is not None)
    assert apply(view.picture(state), seen or ()) == view.picture(after)


@given(st.data(), states, views)
def test_a_push_is_rebased_over_what_is_seen_as_over_all(data: st.DataObject, state: Any, view: View) -> None:
    push, ops, after = draw_op(data, state), [], state
    for _ in range(data.draw(st.integers(1, 3))):
        ops.append(draw_op(data, after))
        after = apply(after, ops[-1:])
    assume(view.find_hidden([push], revision(state)) is None)
    seen = view.filter(ops, revision(after))
    assume(seen is not None)
    assert find_rebased(push, seen or (), view.picture(after)) == find_rebased(push, ops, after)


def find_rebased(push: Op, over: Any, document: Any) -> Any:
    try:
        return rebase([push], over, document).ops
    except PatchError:
        return None


@given(st.data(), states, views)
def test_a_change_looks_the_same_in_a_view_that_stands_in(data: st.DataObject, state: Any, view: View) -> None:
    ops, after = [], state
    for _ in range(data.draw(st.integers(1, 3))):
        ops.append(draw_op(data, after))
        after = apply(after, ops[-1:])
    row = ChangeRow(1, msgspec.json.encode(ops), "eve", 1)
    shown, same = (each.show(row, revision(after)) for each in (view, view.stand_in(row)))
    assert shown == same


@given(states, views)
def test_a_picture_has_only_seen_parts_and_leaves_the_state_alone(state: Any, view: View) -> None:
    before = copy.deepcopy(state)
    picture = view.picture(state)
    assert state == before
    for path, value in find_containers(picture):
        if view.sees(path):
            assert value == dict(find_containers(state))[path]


GAME = {
    "turn": "ada",
    "hands": {"ada": ["♠7"], "bob": ["♥A"], "*": ["own"], "3": ["♦9"], "{user}": ["x"]},
    "rows": [{"name": "a", "price": 1}, {"name": "b", "price": 2}],
    "deck": ["♣K"],
}


@each_case(
    ("pattern", "user", "picture"),
    [
        ("/turn", None, {"turn": "ada"}),
        ("/turn/**", None, {"turn": "ada"}),
        ("/hands/{user}/**", "bob", {"hands": {"bob": ["♥A"]}}),
        ("/hands/{user}", "3", {"hands": {"3": ["♦9"]}}),
        ("/hands/{user}", "*", {"hands": {"*": ["own"]}}),
        ("/hands/{user}", "{user}", {"hands": {"{user}": ["x"]}}),
        ("/hands/{user}", "eve", {"hands": {}}),
        ("/hands/{user}", None, {"hands": {}}),
        ("/hands/*/0", None, {"hands": dict.fromkeys(GAME["hands"])}),
        ("/rows/*/name", None, {"rows": [{"name": "a"}, {"name": "b"}]}),
        ("/rows/0/name", None, {"rows": None}),
        ("/turn/*", None, {"turn": None}),
        ("/*/x", None, {"turn": None, "hands": {}, "rows": None, "deck": None}),
        ("/nothing", None, {}),
    ],
)
def test_a_pattern_shows_its_places_and_what_is_below_them(pattern: str, user: str | None, picture: Any) -> None:
    view = read_view(pattern, user=user)
    assert view.picture(GAME) == picture
    assert msgspec.json.decode(view.json(revision(GAME))) == picture


@each_case("patterns", [("/**",), ("",), ("/turn", "/**")])
def test_patterns_of_the_whole_state_show_everything(patterns: tuple[str, ...]) -> None:
    assert read_view(*patterns, user="ada") is EVERYTHING
    assert EVERYTHING.name("e") == "e"


@each_case(
    ("path", "may"),
    [
        ("/hands/ada", True),
        ("/hands/ada/0", True),
        ("/hands/bob/0", False),
        ("/hands", False),
        ("", False),
        ("/rows/0/name", True),
        ("/rows/0", False),
        ("/rows/0/price", False),
    ],
)
def test_a_client_may_change_only_what_it_sees_whole(path: str, may: bool) -> None:
    view = read_view("/hands/{user}", "/rows/*/name", user="ada")
    ops = [Op("add", "/hands/ada/-", 1), Op("replace", path, 1)]
    assert view.find_hidden(ops, revision(GAME)) == (None if may else path)


@each_case(
    ("ops", "seen"),
    [
        ([Op("replace", "/turn", "bob")], [Op("replace", "/turn", "bob")]),
        ([Op("add", "/hands/bob/-", 1)], []),
        ([Op("replace", "/hands", {"ada": [], "bob": [1]})], [Op("replace", "/hands", {"ada": []})]),
        ([Op("remove", "/hands")], [Op("remove", "/hands")]),
        ([Op("replace", "", {"turn": 1, "deck": [1]})], [Op("replace", "", {"turn": 1})]),
        ([Op("splice", "/deck/0", at=0, insert="x"), Op("remove", "/hands/ada")], [Op("remove", "/hands/ada")]),
    ],
)
def test_operations_are_told_as_far_as_they_are_seen(ops: list[Op], seen: list[Op]) -> None:
    assert read_view("/turn", "/hands/{user}", user="ada").filter(ops) == seen


def test_a_hidden_change_says_neither_who_made_it_nor_when() -> None:
    view = read_view("/turn")
    ops = [Op("replace", "/deck", ["♠A"])]
    row = ChangeRow(7, msgspec.json.encode(ops), "eve", 1_700_000_000)
    assert view.show(row) == ChangeRow(7, b"[]", HIDDEN, 0)


def test_what_may_be_an_element_of_an_array_is_told_by_the_state_after_it() -> None:
    view = read_view("/hands/{user}", user="3")
    ops = [Op("add", "/hands/3/-", "♠A")]
    assert view.filter(ops) is None
    assert view.filter(ops, revision(GAME)) == ops
    assert view.filter(ops, revision({"hands": [[], [], [], ["♠A"]]})) == []
    assert view.filter([*ops, Op("replace", "/hands", {})], revision({"hands": {}})) is None


def test_a_change_is_the_whole_picture_where_its_operations_are_not_known() -> None:
    view = read_view("/hands/{user}", user="3")
    ops = [Op("replace", "/hands", {}), Op("add", "/hands/3/-", "♠A"), Op("replace", "/turn", "x")]
    row = ChangeRow(7, msgspec.json.encode(ops), "eve", 1)
    after = revision({"turn": "x", "hands": {"3": ["♠A"], "4": [1]}})
    assert view.show(row) is None
    shown = view.show(row, after)
    assert shown is not None
    assert msgspec.json.decode(shown.ops) == [{"op": "replace", "path": "", "value": {"hands": {"3": ["♠A"]}}}]


def test_large_parts_are_shown_though_they_are_undecoded() -> None:
    row = {"name": "a", "notes": ["x" * 50] * 1_000}
    raw = msgspec.Raw(msgspec.json.encode(row))
    view = read_view("/rows/*/name", "/*/notes/0")
    for document in ({"rows": [raw, row]}, raw, {"rows": msgspec.Raw(msgspec.json.encode([row, row]))}):
        shown = msgspec.json.decode(msgspec.json.encode(view.picture(document)))
        assert shown == view.picture(msgspec.json.decode(msgspec.json.encode(document)))


def test_readers_with_the_same_patterns_share_their_view_and_its_name() -> None:
    one, other = read_view("/turn", user="ada"), read_view("/turn", user="bob")
    assert one is other
    own, others = read_view("/hands/{user}", user="ada"), read_view("/hands/{user}", user="bob")
    names = {view.name("e") for view in (one, own, others, EVERYTHING)}
    assert len(names) == 4
    assert read_view("/hands/{user}", user="ada").name("e") in names


@each_case("found", ["/turn", ["turn"], ("/a/**/b",), (1,)])
def test_what_are_no_patterns_is_refused(found: Any) -> None:
    with pytest.raises(TypeError, match="can_read"):
        read_places("can_read", found)
