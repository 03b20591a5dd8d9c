"""The shown JSON of a typed state when the state is changed."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import BaseModel, Field

from plait_client.typed import written
from plait_schemas.elements import Keys


class Card(msgspec.Struct, frozen=True):
    text: str = ""
    id: int | None = None


class Table(msgspec.Struct, frozen=True, omit_defaults=True):
    cards: tuple[Card, ...] = ()
    tags: frozenset[str] = frozenset()
    at: datetime | None = None
    first: Card = Card()
    by: dict[int, Card] = {}


class Circle(msgspec.Struct, frozen=True, tag=True):
    size: int = 0


class Square(msgspec.Struct, frozen=True, tag=True):
    size: int = 0


class Drawing(msgspec.Struct, frozen=True):
    shape: Circle | Square = Circle()


def shown(table: Any, **changes: Any) -> Any:
    """Return what is shown when a program changes fields of a table."""
    old = msgspec.convert(table, Table, str_keys=True)
    return written(replace(old, **changes), old, table)


def test_what_the_type_has_no_field_for_stays_at_every_depth() -> None:
    table = {"note": 1, "first": {"text": "a", "mark": 2}, "by": {"7": {"text": "b", "mark": 3}}}
    assert shown(table, first=Card("A"), by={7: Card("B"), 8: Card("c")}) == {
        "note": 1,
        "first": {"text": "A", "mark": 2},
        "by": {"7": {"text": "B", "mark": 3}, "8": {"text": "c", "id": None}},
    }


def test_what_a_program_has_not_changed_is_written_as_it_was() -> None:
    table = {"at": "2024-01-01T00:00:00.000Z", "tags": ["b", "c", "a"], "first": {}}
    assert shown(table, cards=(Card("a"),)) == {**table, "cards": [{"text": "a", "id": None}]}
    equal = replace(msgspec.convert(table, Table), tags=frozenset("cab"), at=datetime(2024, 1, 1, tzinfo=UTC))
    assert written(equal, msgspec.convert(table, Table), table) == table


def test_a_set_keeps_its_order_and_what_is_put_in_comes_where_something_was_taken_out_or_last() -> None:
    assert shown({"tags": ["b", "a", "c"]}, tags=frozenset("cbxd"))["tags"] == ["b", "d", "c", "x"]
    assert shown({"tags": ["b", "a", "c"]}, tags=frozenset("cb"))["tags"] == ["b", "c"]


def test_a_default_that_was_left_out_is_written_when_it_has_changed() -> None:
    assert shown({}, first=Card("a")) == {"first": {"text": "a", "id": None}}
    assert shown({"first": {"text": "", "mark": 1}}, first=Card("a"))["first"] == {"text": "a", "mark": 1}
    assert shown({"first": {"text": "a", "mark": 1}}, first=Card())["first"] == {"text": "", "mark": 1}
    assert shown({"cards": []}, at=datetime(2024, 1, 1, tzinfo=UTC)) == {"cards": [], "at": "2024-01-01T00:00:00Z"}


def test_elements_keep_what_the_type_does_not_see_wherever_they_come_to_be() -> None:
    cards = [{"id": 1, "mark": "one"}, {"id": 2, "mark": "two"}, {"text": "c", "mark": "three"}]
    one, two, three = msgspec.convert(cards, tuple[Card, ...])
    changed = (Card("new"), three, replace(two, text="B"), Card("other", 9))
    assert shown({"cards": cards}, cards=changed)["cards"] == [
        {"text": "new", "id": None},
        {"text": "c", "mark": "three"},
        {"text": "B", "id": 2, "mark": "two"},
        {"text": "other", "id": 9},
    ]
    assert shown({"cards": cards}, cards=(one, two, Card("C")))["cards"][2] == {"text": "C", "mark": "three"}


class Named(msgspec.Struct, frozen=True):
    slug: str = ""
    n: int = 0


class Rack(msgspec.Struct, frozen=True):
    by: dict[str, tuple[Named, ...]] = {}


def test_elements_are_known_by_the_member_that_the_class_names() -> None:
    document = {"by": {"a/b": [{"slug": "a", "color": "red"}, {"slug": "b", "color": "blue"}]}}
    old = msgspec.convert(document, Rack)
    new = Rack({"a/b": (Named("b", 1),)})
    assert written(new, old, document, Keys({"/by/*": "slug"})) == {
        "by": {"a/b": [{"slug": "b", "color": "blue", "n": 1}]}
    }


def test_equal_elements_are_taken_one_after_the_other() -> None:
    cards = [{"text": "a", "mark": 1}, {"text": "a", "mark": 2}]
    assert shown({"cards": cards}, cards=(Card("b"), Card("a"), Card("a")))["cards"][1:] == cards


def test_another_type_of_a_union_takes_nothing_over() -> None:
    drawing = {"shape": {"type": "Circle", "size": 1, "radius": 2}}
    old = msgspec.convert(drawing, Drawing)
    assert written(Drawing(Square(1)), old, drawing) == {"shape": {"type": "Square", "size": 1}}


def test_json_values_are_written_as_they_are() -> None:
    document = {"a": 1, "b": [1, 2]}
    assert written({"b": (2, 1)}, document, document) == {"b": [2, 1]}
    assert written({"a": 1}, None, None) == {"a": 1}
    with pytest.raises(ValueError, match="infinite"):
        written({"a": [float("inf")]}, document, document)


cards = st.builds(Card, st.sampled_from("abc"), st.none() | st.integers(0, 3))
tables = st.builds(
    Table,
    st.lists(cards, max_size=4).map(tuple),
    st.frozensets(st.sampled_from("abcd")),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    cards,
    st.dictionaries(st.integers(0, 2), cards, max_size=2),
)


@given(tables, tables, st.randoms())
def test_what_is_shown_is_the_state_that_the_program_made(old: Table, new: Table, random: Any) -> None:
    document = msgspec.to_builtins(old, str_keys=True)
    random.shuffle(document.get("tags", []))
    assert msgspec.convert(written(new, old, document), Table, str_keys=True) == new


class Model(BaseModel):
    name: str = Field(default="", alias="title")
    inner: "Model | None" = None
    tags: list[str] = []


def test_only_what_differs_in_a_model_is_written() -> None:
    document = {"title": "a", "unknown": 1, "inner": {"title": "b", "other": 2, "when": "2020"}}
    old = Model.model_validate(document)
    new = old.model_copy(update={"inner": Model(title="c", tags=["x"])})
    assert written(new, old, document) == {
        "title": "a",
        "unknown": 1,
        "inner": {"title": "c", "other": 2, "when": "2020", "tags": ["x"]},
    }
    assert written(old, old, document) is document
