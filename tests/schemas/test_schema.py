"""The hash of a state's schema, and which changes of a state an older client need not be told of."""

import enum
import json
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from tests.cases import each_case

from plait_schemas.schema import is_additive, schema_hash, schema_of


def define(name: str = "State", **fields: Any) -> Any:
    """Return a Struct; a field is a type, or a type and its default."""
    members = [(each, *(of if isinstance(of, tuple) else (of,))) for each, of in fields.items()]
    return msgspec.defstruct(name, members, kw_only=True)


def grows(old: Any, new: Any) -> bool:
    return is_additive(schema_of(old), schema_of(new))


# The hash


class Card(msgspec.Struct):
    """A card."""

    title: str
    number: int
    description: str = ""


class Board(msgspec.Struct):
    cards: dict[str, Card] = {}
    best: Card | None = None


def test_a_hash_is_sixteen_hex_digits() -> None:
    assert len(schema_hash(schema_of(Board))) == 16
    assert int(schema_hash(schema_of(Board)), 16) > 0


def test_a_hash_survives_a_trip_through_json() -> None:
    schema = schema_of(Board)
    assert schema_hash(json.loads(json.dumps(schema, sort_keys=True))) == schema_hash(schema)


def test_a_hash_does_not_depend_on_words_defaults_and_order() -> None:
    same = msgspec.defstruct(
        "Card",
        [("description", str, "none"), ("number", int), ("title", str)],
        kw_only=True,
        namespace={"__doc__": "Another text."},
    )
    assert schema_of(same) != schema_of(Card)
    assert schema_hash(schema_of(same)) == schema_hash(schema_of(Card))


def test_a_hash_depends_on_fields_that_are_called_like_words() -> None:
    hashes = {
        schema_hash(schema_of(each))
        for each in (
            define(),
            define(title=str),
            define(description=str),
            define(default=str),
            define(title=int),
            define(title=(str, "")),
        )
    }
    assert len(hashes) == 6


def test_the_hash_of_any_state_is_known() -> None:
    assert schema_of(Any) == {}
    assert schema_hash({}) == "44136fa355b3678a"


def test_a_type_that_is_no_json_has_no_schema() -> None:
    with pytest.raises(TypeError, match="complex"):
        schema_of(dict[str, complex])


# Growing


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Colors(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Node(msgspec.Struct):
    name: str
    children: list["Node"] = []


class Knot(msgspec.Struct):
    name: str
    children: list["Knot"] = []
    color: str = ""


class Odd(msgspec.Struct):
    next: "Even | None" = None


class Even(msgspec.Struct):
    n: int
    next: Odd | None = None


class Left(msgspec.Struct):
    next: "Right | None" = None


class Right(msgspec.Struct):
    n: str
    next: Left | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    age: int


class TamerCat(msgspec.Struct, tag="Cat"):
    lives: int
    owner: str = ""


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    n: int = 0


class ClosedAndLarger(msgspec.Struct, forbid_unknown_fields=True):
    n: int = 0
    m: int = 0


class Open(msgspec.Struct):
    n: int = 0


class Wider(msgspec.Struct):
    n: int = 0
    m: int = 0


class Retyped(msgspec.Struct):
    n: str = ""


class Row(msgspec.Struct, array_like=True):
    n: int


class LongerRow(msgspec.Struct, array_like=True):
    n: int
    m: int = 0


class Options(TypedDict):
    n: int


class MoreOptions(TypedDict):
    n: int
    m: NotRequired[int]


SMALL = Annotated[int, msgspec.Meta(ge=0, lt=10)]

SAME = [
    (Any, Any),
    (dict, dict[str, Any]),
    (list, list[Any]),
    (Board, Board),
    (Node, Node),
    (Color, Literal["blue", "red"]),
    (int | None, None | int),
    (Cat | Dog | None, None | Dog | Cat),
    (define(n=(int, 0)), define(n=(int, 1))),
    (tuple[int, str], tuple[int, str]),
    (Annotated[Card, msgspec.Meta(title="Another")], Card),
    (define(a=define("A", n=int)), define("Renamed", a=define("B", n=int))),
]
ADDITIVE = [
    (define(n=int), define(n=int, m=(int, 0))),
    (define(n=int), define(m=(int | None, None), n=int)),
    (define(n=int), define(n=int, m=(int | msgspec.UnsetType, msgspec.UNSET))),
    (list[Open], list[Wider]),
    (dict[str, Open], dict[str, Wider]),
    (tuple[Open, int], tuple[Wider, int]),
    (Open | None, Wider | None),
    (Cat | Dog, TamerCat | Dog),
    (Options, MoreOptions),
    (Node, Knot),
]
BREAKING = [
    # Gone, renamed, or of another type.
    (define(n=int, m=int), define(n=int)),
    (define(n=(int, 0)), define(m=(int, 0))),
    (define(n=int), define(n=str)),
    (define(n=int), define(n=float)),
    (define(n=float), define(n=int)),
    (define(n=int), int),
    (list[int], list[str]),
    (list[int], tuple[int, int]),
    (list[int], set[int]),
    (tuple[int, int], tuple[int, int, int]),
    (tuple[int, str], tuple[int, int]),
    (dict[str, int], dict[str, str]),
    (dict[str, Any], define(n=(int, 0))),
    (define(n=(int, 0)), dict[str, Any]),
    # What had to be there may be missing, or the other way round.
    (define(n=int), define(n=int, m=int)),
    (define(n=(int, 0)), define(n=int)),
    (define(n=int), define(n=(int, 0))),
    (define(n=int), define(n=int | None)),
    (define(n=int | None), define(n=int)),
    # More values than the client knows, or fewer.
    (Color, Colors),
    (Colors, Color),
    (Literal[1, 2], Literal[1, 2, 3]),
    (Literal[1, 2], int),
    (int | str, int | str | bool),
    (int | str | bool, int | str),
    (Cat | Dog, Cat),
    (Cat, Cat | Dog),
    (Cat, Dog),
    (int, Any),
    (Any, int),
    (list, list[int]),
    (list[int], list),
    (dict, dict[str, int]),
    (int, SMALL),
    (SMALL, int),
    # A client that takes no fields that it does not know.
    (Closed, ClosedAndLarger),
    (Closed, Open),
    (Open, Closed),
    (Row, LongerRow),
    # Deep inside, and round a circle.
    (dict[str, list[Open]], dict[str, list[Retyped]]),
    (Knot, Node),
    (Odd, Left),
    (list[int | list[Open]], list[int | list[Retyped]]),
]


@each_case(("old", "new"), SAME)
def test_what_says_the_same_is_additive_both_ways(old: Any, new: Any) -> None:
    assert grows(old, new)
    assert grows(new, old)


@each_case(("old", "new"), ADDITIVE)
def test_optional_properties_may_come_but_not_go(old: Any, new: Any) -> None:
    assert grows(old, new)
    assert (
        schema_of(old) == schema_of(new)
        or not grows(new, old)
        or schema_hash(schema_of(old)) == schema_hash(schema_of(new))
    )


@each_case(("old", "new"), BREAKING)
def test_an_older_client_is_told_of_anything_else(old: Any, new: Any) -> None:
    assert not grows(old, new)


def test_a_state_of_many_types_is_compared_in_no_time() -> None:
    # Each type refers twice to the next, so that there are 2 ** 40 ways through them.
    old: Any = Open
    new: Any = Wider
    for number in range(40):
        old, new = (define(f"Type{number}", left=each, right=each) for each in (old, new))
    assert grows(old, new)
    assert not grows(new, old)
