"""Differences between states, compared with jsonpatch."""

import copy
import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import jsonpatch
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_patch import ANY_JSON, SMALL, as_json, read, sent, text

from plait_schemas.diff import diff
from plait_schemas.patch import Op, apply, find, parse


@given(SMALL, SMALL)
@example([1], [True])
@example({"a": 1}, {"a": 1.0})
@example({"~": 1, "/": 2}, {"~": 2, "/": 1})
def test_a_diff_turns_the_one_document_into_the_other(old: Any, new: Any) -> None:
    ops = diff(old, new)
    assert text(apply(old, ops)) == text(new)
    assert text(jsonpatch.apply_patch(old, sent(ops))) == text(new)


@given(ANY_JSON, ANY_JSON)
def test_a_diff_of_documents_with_little_in_common_turns_one_into_the_other(old: Any, new: Any) -> None:
    ops = diff(old, new)
    assert text(apply(old, ops)) == text(new)
    assert text(jsonpatch.apply_patch(old, sent(ops))) == text(new)


@given(SMALL, SMALL)
def test_a_diff_is_empty_only_when_both_are_the_same_json(old: Any, new: Any) -> None:
    assert (diff(old, new) == []) == (text(old) == text(new))


@given(ANY_JSON)
def test_a_document_does_not_differ_from_its_copy(document: Any) -> None:
    assert diff(document, copy.deepcopy(document)) == []


@given(SMALL, SMALL)
def test_a_diff_leaves_both_documents_alone(old: Any, new: Any) -> None:
    before = text([old, new])
    diff(old, new)
    assert text([old, new]) == before


@given(SMALL, SMALL)
def test_a_diff_has_only_add_remove_and_replace(old: Any, new: Any) -> None:
    for op in sent(diff(old, new)):
        assert op.keys() - {"moved"} == ({"op", "path"} if op["op"] == "remove" else {"op", "path", "value"})
        assert op["op"] in ("add", "remove", "replace")


@given(SMALL, SMALL)
@example([[1, 2], {"a": 1}], [{"a": 1}, [1, 2]])
def test_what_has_moved_is_what_was_taken_out_of_the_same_list_right_before(old: Any, new: Any) -> None:
    before, taken_out = Op("replace", ""), None
    for op in diff(old, new):
        if op.moved is True:
            assert (before.op, op.op) == ("remove", "add")
            assert before.path.rpartition("/")[0] == op.path.rpartition("/")[0]
            assert text(taken_out) == text(op.value)
        before, taken_out = op, find(old, parse(op.path))
        old = apply(old, [op])


@each_case(("old", "new"), [(1, True), (True, 1), (0, False), (1, 1.0), (1.0, 1), (None, False), ("1", 1)])
def test_values_that_only_python_holds_equal_differ(old: object, new: object) -> None:
    assert diff(old, new) == [Op("replace", "", new)]
    assert diff({"a": old}, {"a": new}) == [Op("replace", "/a", new)]
    assert diff([[old, 2, 2]], [[new, 2, 2]]) == [Op("replace", "/0/0", new)]


VALUES = st.sampled_from([None, True, 1, 1.0, 0, False, "", [1], [True], {"a": 1}, {"a": 1.0}])


@given(st.dictionaries(st.integers(0, 150), VALUES), st.dictionaries(st.integers(0, 150), VALUES))
@example({1: True}, {1: 1})
@example({1: None}, {})
@example({140: None}, {})
def test_a_diff_of_objects_with_many_members_has_those_that_differ(
    before: dict[int, Any], after: dict[int, Any]
) -> None:
    old, new = ({str(n): each.get(n, [n]) for n in {*range(120), *each}} for each in (before, after))
    ops = diff(old, new)
    assert text(apply(old, ops)) == text(new)
    assert len(ops) == sum(
        key not in old or key not in new or text(old[key]) != text(new[key]) for key in {**old, **new}
    )


def test_a_change_deep_inside_costs_one_small_operation() -> None:
    old = {"rows": [{"cells": [0, 1, 2]} for _ in range(100)]}
    new = copy.deepcopy(old)
    new["rows"][50]["cells"][1] = 9
    assert diff(old, new) == [Op("replace", "/rows/50/cells/1", 9)]


@each_case(
    ("old", "new", "ops"),
    [
        ([1, 2], [1, 2, 3], [Op("add", "/2", 3)]),
        ([1, 2], [0, 1, 2], [Op("add", "/0", 0)]),
        ([1, 2, 3], [1, 3], [Op("remove", "/1")]),
        ([1, 2, 3, 4], [1, 4], [Op("remove", "/2"), Op("remove", "/1")]),
        ([1, 1, 1], [1, 1], [Op("remove", "/2")]),
        ([], [1, 2], [Op("add", "/0", 1), Op("add", "/1", 2)]),
        ([1, 2], [], [Op("remove", "/1"), Op("remove", "/0")]),
    ],
)
def test_what_stays_at_both_ends_of_an_array_is_not_sent(old: list[int], new: list[int], ops: list[Op]) -> None:
    assert diff(old, new) == ops


MANY: list[tuple[Any, Any]] = [
    ([0] * 9, [1] * 9),
    ([], [1] * 9),
    ([1] * 9, []),
    ({"a": [0] * 4, "b": [0] * 5}, {"a": [1] * 4, "b": [1] * 5}),
    ({}, {str(n): n for n in range(9)}),
    ({str(n): n for n in range(9)}, {}),
]


@each_case(("old", "new"), MANY)
def test_where_a_diff_has_more_operations_than_are_wanted_the_whole_is_replaced(old: Any, new: Any) -> None:
    assert diff(old, new, most=9) == diff(old, new)
    assert len(diff(old, new)) == 9
    assert diff(old, new, most=8) == [Op("replace", "", new)]


def test_keys_are_escaped_in_paths() -> None:
    assert diff({}, {"a/b": 1}) == [Op("add", "/a~1b", 1)]
    assert diff({"m~n": 1}, {"m~n": 2}) == [Op("replace", "/m~0n", 2)]
    assert diff({"~1": {"": 1}}, {"~1": {}}) == [Op("remove", "/~01/")]


class Untouchable(list[int]):
    """Raises when it is read."""

    def __eq__(self, other: object) -> NoReturn:
        raise AssertionError("was compared")

    def __iter__(self) -> NoReturn:
        raise AssertionError("was walked")

    __hash__ = None


def test_what_is_the_same_object_on_both_sides_is_not_walked() -> None:
    shared = Untouchable([1])
    assert diff({"a": shared, "n": 1}, {"a": shared, "n": 2}) == [Op("replace", "/n", 2)]
    assert diff([shared, 1], [shared, 2]) == [Op("replace", "/1", 2)]
    assert diff(shared, shared) == []


# Typed states


class Point(msgspec.Struct, frozen=True):
    x: int = 0
    y: float = 0.0


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str = ""
    a_slash: int = msgspec.field(default=0, name="a/b")


class Short(msgspec.Struct, omit_defaults=True):
    n: int = 0
    points: list[Point] = []


class Row(msgspec.Struct, array_like=True):
    a: int = 0
    b: tuple[int, ...] = ()


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    lives: int = 1


class Optional(msgspec.Struct):
    n: int | msgspec.UnsetType = msgspec.UNSET


@dataclass
class Card:
    title: str = ""
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Slotted:
    n: int = 0


class Everything(msgspec.Struct):
    point: Point
    renamed: Renamed
    short: Short
    row: Row
    pet: Cat | Dog
    optional: Optional
    card: Card
    slotted: Slotted
    pair: tuple[int, str]
    by_name: dict[str, Point]
    when: datetime | None = None


NUMBERS = st.sampled_from([0, 1, 2])
NAMES = st.sampled_from(["", "a", "~", "x/y", "é"])
POINTS = st.builds(Point, x=NUMBERS, y=st.sampled_from([0.0, 1.0, 0.5]))
TYPED = st.builds(
    Everything,
    point=POINTS,
    renamed=st.builds(Renamed, first_name=NAMES, a_slash=NUMBERS),
    short=st.builds(Short, n=NUMBERS, points=st.lists(POINTS, max_size=3)),
    row=st.builds(Row, a=NUMBERS, b=st.lists(NUMBERS, max_size=3).map(tuple)),
    pet=st.builds(Cat, lives=NUMBERS) | st.builds(Dog, lives=NUMBERS),
    optional=st.builds(Optional, n=NUMBERS | st.just(msgspec.UNSET)),
    card=st.builds(Card, title=NAMES, labels=st.lists(NAMES, max_size=3).map(tuple)),
    slotted=st.builds(Slotted, n=NUMBERS),
    pair=st.tuples(NUMBERS, NAMES),
    by_name=st.dictionaries(NAMES, POINTS, max_size=3),
    when=st.none() | st.just(datetime(2024, 1, 2, tzinfo=UTC)),
)


@given(TYPED, TYPED)
def test_a_diff_of_typed_states_turns_the_json_of_the_one_into_that_of_the_other(
    old: Everything, new: Everything
) -> None:
    ops = diff(old, new)
    assert text(apply(as_json(old), read(ops))) == text(as_json(new))
    assert text(jsonpatch.apply_patch(as_json(old), sent(ops))) == text(as_json(new))
    assert (ops == []) == (text(as_json(old)) == text(as_json(new)))


def test_paths_have_the_names_that_are_encoded() -> None:
    assert diff(Renamed("Ada"), Renamed("Bob")) == [Op("replace", "/firstName", "Bob")]
    assert diff(Renamed(a_slash=1), Renamed(a_slash=2)) == [Op("replace", "/a~1b", 2)]


def test_a_field_that_is_left_out_at_its_default_is_added_and_removed() -> None:
    assert diff(Short(), Short(n=1)) == [Op("add", "/n", 1)]
    assert diff(Short(n=1), Short()) == [Op("remove", "/n")]
    assert diff(Optional(), Optional(n=1)) == [Op("add", "/n", 1)]


def test_a_struct_of_another_tag_is_told_apart() -> None:
    assert diff(Cat(lives=1), Dog(lives=1)) == [Op("replace", "/type", "Dog")]


def test_a_tuple_and_a_list_of_the_same_are_the_same_json() -> None:
    assert diff((1, [2, (3,)]), [1, (2, [3])]) == []


class Color(enum.Enum):
    RED = "red"
    BLUE = "dark/blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


@each_case(
    ("one", "other"),
    [
        (Color.RED, Color.BLUE),
        (Size.SMALL, Size.LARGE),
        (1, -2),
        (1.0, 1e300),
        (datetime(2024, 1, 2, 3, 4, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC)),
        (UUID(int=1), UUID(int=2)),
        (Decimal("1.50"), Decimal(2)),
        (b"key", b"other"),
    ],
)
def test_keys_that_are_not_strings_are_written_as_in_json(one: Any, other: Any) -> None:
    old = {one: 1, other: [1, 2]}
    for new in ({one: 2, other: [1, 2]}, {one: 1}, {other: [1]}, {}):
        for before, after in ((old, new), (new, old)):
            assert text(apply(as_json(before), read(diff(before, after)))) == text(as_json(after))


@pytest.mark.parametrize("changed", [1, 150])
def test_the_members_of_large_objects_that_are_the_same_object_are_not_encoded(changed: int) -> None:
    old = dict.fromkeys(map(str, range(300)), object())  # Encoding one would fail.
    new = {**old, **dict.fromkeys(map(str, range(changed)), 1)}
    assert diff(old, new) == [Op("replace", f"/{key}", 1) for key in range(changed)]
