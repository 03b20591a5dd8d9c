"""The fields that types have, and values with fields that they do not have."""

import dataclasses
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import pytest
from tests.cases import each_case

from plait.errors import InvalidState
from plait.state.fields import check_fields, make_plan, make_unknown_field_error

T = TypeVar("T")


class Player(msgspec.Struct):
    name: str = ""
    full_name: str = msgspec.field(name="fullName", default="")
    friends: list["Player"] = []


class Circle(msgspec.Struct, tag=True):
    radius: int = 0


class Square(msgspec.Struct, tag="square", tag_field="shape"):
    side: int = 0


class Oblong(msgspec.Struct, tag="oblong", tag_field="shape"):
    width: int = 0


class Row(msgspec.Struct, array_like=True, tag=True):
    player: Player = msgspec.field(default_factory=Player)
    n: int = 0


class Other(msgspec.Struct, array_like=True, tag=True):
    n: int = 0


class Pair(NamedTuple):
    left: Player = Player()
    right: int = 0


class Box(msgspec.Struct, Generic[T]):
    inner: T


class Settings(TypedDict):
    dark: bool
    player: NotRequired[Player]


@dataclasses.dataclass
class Card:
    title: str = ""
    player: Player | None = None


class Empty(msgspec.Struct):
    pass


TYPES: dict[str, tuple[Any, Any, str, str]] = {
    "a Struct": (Player, {"name": "a", "nmae": "b"}, "/nmae", "/name?"),
    "a renamed field": (Player, {"full_name": "a"}, "/full_name", "/fullName?"),
    "a type that holds itself": (Player, {"friends": [{}, {"friends": [{"nam": 1}]}]}, "/friends/1/friends/0/nam", "?"),
    "a dataclass": (Card, {"titel": ""}, "/titel", "/title?"),
    "a TypedDict": (Settings, {"dark": True, "dakr": 1}, "/dakr", "/dark?"),
    "inside a TypedDict": (Settings, {"dark": True, "player": {"nam": ""}}, "/player/nam", "/player/name?"),
    "an optional": (Card, {"player": {"nam": ""}}, "/player/nam", "/player/name?"),
    "a dict of Structs": (dict[str, Player], {"a/b": {"nam": ""}}, "/a~1b/nam", "/a~1b/name?"),
    "a dict by numbers": (dict[int, Player], {"7": {"nam": ""}}, "/7/nam", "/7/name?"),
    "a list of Structs": (list[Player], [{}, {"nam": ""}], "/1/nam", "/1/name?"),
    "a tuple of Structs": (tuple[Player, ...], [{"nam": ""}], "/0/nam", "/0/name?"),
    "a tuple": (tuple[int, Player], [1, {"nam": ""}], "/1/nam", "/1/name?"),
    "a named tuple": (Pair, [{"nam": ""}], "/0/nam", "/0/name?"),
    "a Struct as an array": (Row, ["Row", {"nam": ""}], "/1/nam", "/1/name?"),
    "more than a Struct as an array has": (Row, ["Row", {}, 1, 2], "/3", "no field '3'"),
    "a union by tags": (Square | Oblong, {"shape": "oblong", "widht": 1}, "/widht", "/width?"),
    "the other's field of a union": (Square | Oblong, {"shape": "oblong", "side": 1}, "/side", "the fields are width"),
    "a union of arrays": (list[Row | Other], [["Other", 1, 2]], "/0/2", "no field '2'"),
    "a union of an object and an array": (Player | list[Card], [{"titel": ""}], "/0/titel", "/0/title?"),
    "annotated": (Annotated[Player | None, msgspec.Meta(description="who")], {"nam": ""}, "/nam", "/name?"),
    "generic": (Box[Player], {"inner": {"nam": ""}}, "/inner/nam", "/inner/name?"),
    "no fields": (Empty, {"a": 1}, "/a", "there is no field 'a'"),
}


@each_case("case", TYPES)
def test_a_field_that_is_not_there_is_found_with_the_name_that_comes_nearest(case: str) -> None:
    type_, value, path, hint = TYPES[case]
    msgspec.json.decode(msgspec.json.encode(value), type=type_)  # Which says nothing of it.
    with pytest.raises(InvalidState) as raised:
        check_fields(make_plan(type_), value)
    assert raised.value.path == path
    assert str(raised.value).endswith(hint)
    with pytest.raises(InvalidState) as raised:
        check_fields(make_plan(type_), value, "/at/0")
    assert raised.value.path == f"/at/0{path}"


@each_case(
    ("type_", "value"),
    [
        (Player, {"name": "a", "fullName": "b", "friends": [{"name": "c"}]}),
        (Player, {}),
        (Player, Player("an object of the type")),
        (Player, "none at all"),
        (Circle, {"type": "Circle", "radius": 1}),
        (Square | Oblong | None, {"shape": "square", "side": 1}),
        (Square | Oblong | None, {"shape": "another", "name": 1}),
        (Square | Oblong | None, None),
        (Row, ["Row", {"name": ""}, 1]),
        (Pair, [{"name": ""}, 1]),
        (Card, {"player": None}),
        (dict[str, dict[str, int]], {"any": {"key": 1}}),
        (Box[dict[str, Any]], {"inner": {"any": 1}}),
        (Any, {"any": 1}),
        (frozenset[int], [1]),
        (Empty, {}),
    ],
)
def test_what_has_all_its_fields_passes(type_: Any, value: Any) -> None:
    check_fields(make_plan(type_), value)


@each_case("type_", [Any, dict, list, int, str | None, dict[str, Any], list[int], tuple[int, str]])
def test_a_type_without_fields_costs_nothing(type_: Any) -> None:
    assert make_plan(type_) is None


def test_a_long_name_is_neither_compared_nor_repeated() -> None:
    error = make_unknown_field_error("x" * 100_000, ["x"], "/a")
    assert error.path == "/a"
    assert len(str(error)) < 100


def test_of_many_fields_some_are_named() -> None:
    error = make_unknown_field_error("?", [f"field{n}" for n in range(100)])
    assert "field0, field1," in str(error)
    assert str(error).endswith(", …")
    assert len(str(error)) < 200


def test_what_is_nested_too_deep_is_refused() -> None:
    value: Any = {}
    for _ in range(2_000):
        value = {"friends": [value]}
    with pytest.raises(InvalidState, match="too deep"):
        check_fields(make_plan(Player), value)
