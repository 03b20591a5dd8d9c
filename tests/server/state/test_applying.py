"""Operations on a state of a type change its objects one by one: the result must be what the whole JSON is read as."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait.errors import InvalidState
from plait.limits import UNLIMITED
from plait.state.applying import apply_ops
from plait.state.revision import Revision
from plait.state.types import StateType
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.patch import Op, PatchError, apply, read_ops


class Row(msgspec.Struct):
    id: int = 0
    texts: list[str] = msgspec.field(default_factory=list)


class Game(msgspec.Struct, rename="camel"):
    score: int = 0
    top_row: Row | None = None
    rows: list[Row] = msgspec.field(default_factory=list)
    by_name: dict[str, Row] = msgspec.field(default_factory=dict)


@dataclass
class Card:
    id: int = 0
    texts: list[str] = field(default_factory=list)
    is_done: bool = False


@dataclass
class Board:
    score: int = 0
    top_row: Card | None = None
    rows: list[Card] = field(default_factory=list)
    by_name: dict[str, Card] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Frozen:
    score: int = 0
    top_row: Row | None = None
    rows: tuple[Card, ...] = ()
    by_name: dict[str, Card] = field(default_factory=dict)


class Capped(msgspec.Struct):
    """Its code keeps two fields in step, and the score low."""

    score: int = 0
    twice: int = 0
    rows: list[Row] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self.score = min(self.score, 3)
        self.twice = 2 * self.score


@dataclass
class CappedBoard:
    score: int = 0
    twice: int = 0
    rows: list[Card] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.score = min(self.score, 3)
        self.twice = 2 * self.score


@dataclass
class Sorted:
    """Its code changes a list in place."""

    score: int = 0
    twice: int = 0
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows.sort(key=lambda row: row.id)


class FrozenRow(msgspec.Struct, frozen=True):
    id: int = 0
    texts: tuple[str, ...] = ()


class Ordered(msgspec.Struct, frozen=True):
    """Its code refuses some values of two fields together."""

    score: int = 0
    twice: int = 9
    rows: tuple[FrozenRow, ...] = ()

    def __post_init__(self) -> None:
        if self.score > self.twice:
            raise ValueError("the score is too high")


class InStep(msgspec.Struct, frozen=True):
    """Its code sets a field by another one."""

    score: int = 0
    twice: int = 0
    rows: tuple[FrozenRow, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "twice", 2 * self.score)


@dataclass(frozen=True)
class Totals:
    """It keeps values that are no fields."""

    score: int = 0
    twice: int = 0
    rows: tuple[Card, ...] = ()

    @cached_property
    def total(self) -> int:
        return self.score + self.twice


TYPES = [Game, Board, Frozen, Capped, CappedBoard, Sorted, Ordered, InStep, Totals]

rows = st.fixed_dictionaries({"id": st.integers(0, 3), "texts": st.lists(st.sampled_from("ab"), max_size=2)})
values = st.integers(0, 5) | rows | st.lists(rows, max_size=3) | st.just("a") | st.none()
places = st.sampled_from(
    ["/score", "/twice", "/rows", "/rows/0", "/rows/1", "/rows/-", "/rows/0/id", "/rows/1/texts", "/rows/0/is_done"]
)
others = st.sampled_from(["/topRow", "/top_row", "/topRow/id", "/byName/x", "/by_name/x", "/by_name/x/texts/0", "/no"])


@st.composite
def operations(draw: st.DrawFn) -> Op:
    path = draw(places | others)
    kind = draw(st.sampled_from(["replace", "add", "remove"]))
    return Op("remove", path) if kind == "remove" else Op("add" if kind == "add" else "replace", path, draw(values))


def make(type_: Any, document: Any) -> Revision:
    return Revision(StateType(type_), tree=msgspec.convert(document, type_))


def change(type_: Any, before: Revision, ops: Sequence[Op]) -> tuple[Revision, Sequence[Op]]:
    return apply_ops(StateType(type_), before, ops, UNLIMITED, drops_unknown=True, most_moved=None)


def follow(document: Any, ops: Sequence[Op]) -> Any:
    """Return the document of a client that gets the operations."""
    return apply(document, read_ops(encode_json(ops)))


@given(st.sampled_from(TYPES), st.lists(rows, max_size=3), st.lists(operations(), min_size=1, max_size=4))
def test_operations_lead_to_the_state_that_their_json_is_read_as(type_: Any, start: list[Any], ops: list[Op]) -> None:
    before = make(type_, {"score": 1, "rows": start})
    document = decode_json(before.require_json())
    try:
        expected = encode_json(msgspec.convert(apply(document, ops), type_))
    except (PatchError, msgspec.ValidationError):
        expected = None
    try:
        after, made = change(type_, before, ops)
    except (PatchError, InvalidState):
        assert expected is None
        return
    if expected is not None:  # Otherwise an operation in between led to no state.
        assert after.require_json() == expected
    assert follow(document, made) == decode_json(after.require_json())
    assert decode_json(before.require_json()) == document


@each_case("type_", [Capped, CappedBoard])
def test_clients_are_told_of_what_the_code_of_a_type_changes_beside_their_operation(type_: Any) -> None:
    before = make(type_, {"score": 1})
    after, made = change(type_, before, [Op("replace", "/score", 9)])
    assert (after.state.score, after.state.twice) == (3, 6)
    assert follow(decode_json(before.require_json()), made) == {"score": 3, "twice": 6, "rows": []}


def test_the_unchanged_objects_of_a_dataclass_are_kept() -> None:
    before = make(Board, {"rows": [{"id": 1}, {"id": 2}]})
    after, _ = change(Board, before, [Op("replace", "/rows/0/id", 7)])
    assert after.tree == Board(rows=[Card(7), Card(2)])
    assert after.tree.rows[1] is before.tree.rows[1]
    assert before.tree == Board(rows=[Card(1), Card(2)])


def test_a_member_that_the_document_leaves_out_as_a_default_is_not_replaced() -> None:
    before = make(Board, {"score": 1, "rows": [{"id": 1}]})
    with pytest.raises(PatchError, match="does not exist"):
        change(Board, before, [Op("replace", "/rows/0/is_done", True)])
    after, made = change(Board, before, [Op("add", "/rows/0/is_done", True)])
    assert follow(decode_json(before.require_json()), made) == decode_json(after.require_json())


def test_a_changed_dataclass_keeps_nothing_that_it_has_computed() -> None:
    before = make(Totals, {"score": 1, "twice": 2})
    assert before.tree.total == 3
    after, _ = change(Totals, before, [Op("replace", "/score", 5)])
    assert after.tree.total == 7
