"""Edits of a list lead from the one to the other, and touch no element but the one that is meant."""

import copy
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_patch import text

from plait_schemas.codec import decode_json, encode_json
from plait_schemas.diff import diff
from plait_schemas.elements import Keys, id_of
from plait_schemas.patch import Op, apply, find, parse
from plait_schemas.text_patch import TextDiff

scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", 1.0])
keys = st.sampled_from(["id", "key", "a", "b/c", "0"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=10
)


def read(data: bytes, path: str) -> Any:
    return decode_json(data)


def both(old: Any, new: Any, names: Keys | None = None) -> list[Op]:
    """Return how two states differ, which is the same for their texts."""
    ops = diff(old, new, names)
    assert encode_json(TextDiff(names).diff(encode_json(old), encode_json(new), read)) == encode_json(ops)
    return ops


@given(values, values)
def test_the_operations_lead_from_the_one_to_the_other(old: Any, new: Any) -> None:
    kept = copy.deepcopy(old)
    assert text(apply(old, both(old, new))) == text(new)
    assert text(old) == text(kept)


@given(values)
def test_nothing_leads_to_an_equal_state(state: Any) -> None:
    assert both(state, copy.deepcopy(state)) == []


# Elements with an id


def row(id: int) -> dict[str, Any]:
    return {"id": id, "n": 0, "inner": [{"id": f"inner-{id}", "secret": id}], "secret": id}


@st.composite
def rebuilt(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Return a list whose elements have ids, and another of some of them, changed inside, and of others."""
    count = draw(st.integers(0, 9))
    old = [row(id) for id in range(count)]
    ids = draw(st.lists(st.integers(0, 12), unique=True, max_size=9))
    new = [row(id) for id in ids]
    for element in new:
        element["n"] = draw(st.integers(0, 1))
    return old, new


def elements_of(document: Any, ops: list[Op]) -> list[tuple[Any, Op]]:
    """Return the elements into which operations lead, as they are found there, with the operations."""
    found: list[tuple[Any, Op]] = []
    for op in ops:
        parts = parse(op.path)
        if len(parts) > 1:
            found.append((find(document, parts[:1]), op))
        document = apply(document, [op])
    return found


@given(rebuilt())
def test_an_operation_inside_an_element_leads_to_the_element_of_that_id(lists: tuple[list[Any], list[Any]]) -> None:
    old, new = lists
    after = {element["id"]: element for element in new}
    for element, op in elements_of(old, both(old, new)):
        parts = parse(op.path)
        assert element["secret"] in after
        assert find(after[element["secret"]], parts[1:]) == op.value
        assert parts[1] not in ("id", "secret")


def increasing(numbers: list[int]) -> int:
    """Return how long the longest increasing subsequence is, the slow way."""
    longest: list[int] = []
    for index, number in enumerate(numbers):
        longest.append(1 + max((longest[at] for at in range(index) if numbers[at] < number), default=0))
    return max(longest, default=0)


@given(rebuilt())
def test_no_more_elements_are_put_in_and_taken_out_than_have_to_be(lists: tuple[list[Any], list[Any]]) -> None:
    old, new = lists
    names = [op.op for op in both(old, new) if len(parse(op.path)) == 1]
    places = {element["id"]: at for at, element in enumerate(old)}
    kept = increasing([places[element["id"]] for element in new if element["id"] in places])
    assert sorted(names) == sorted(["remove"] * (len(old) - kept) + ["add"] * (len(new) - kept))


class Row(msgspec.Struct, frozen=True):
    """An element whose id has another name in JSON than in Python."""

    id_: int = msgspec.field(name="id")
    n: int = 0


@given(st.lists(st.integers(0, 5), unique=True), st.lists(st.integers(0, 5), unique=True), st.data())
def test_structs_are_known_by_the_names_that_their_fields_have_in_json(
    old_ids: list[int], new_ids: list[int], data: st.DataObject
) -> None:
    old = tuple(Row(id) for id in old_ids)
    new = tuple(Row(id, data.draw(st.integers(0, 1))) for id in new_ids)
    assert encode_json(diff(old, new)) == encode_json(diff(msgspec.to_builtins(old), msgspec.to_builtins(new)))


def test_a_drag_in_a_long_list_is_two_operations() -> None:
    old = [row(id) for id in range(900)]
    new = copy.deepcopy(old)
    new.insert(700, new.pop(100))
    assert [(op.op, op.path) for op in both(old, new)] == [("remove", "/100"), ("add", "/700")]


def test_an_edit_of_every_row_of_a_long_list_changes_each_in_its_place() -> None:
    old = [row(id) for id in range(1500)]
    new = [{**each, "n": 1} for each in old]
    assert both(old, new) == [Op("replace", f"/{at}/n", 1) for at in range(1500)]


def test_a_list_of_which_hardly_anything_stays_is_replaced_whole() -> None:
    old = [row(id) for id in range(900)]
    new = random.Random(1).sample(old, len(old))
    assert both({"rows": old}, {"rows": new}) == [Op("replace", "/rows", new)]


@pytest.mark.parametrize("name", ["id", "key", "_id"])
def test_elements_are_known_by_any_of_the_usual_members(name: str) -> None:
    old = [{name: "a", "n": 0}, {name: "b", "n": 0}]
    assert both(old, [{name: "b", "n": 1}]) == [Op("remove", "/0"), Op("replace", "/0/n", 1)]


@each_case("id", [None, True, 1.5, [], {}])
def test_what_is_neither_a_text_nor_an_integer_is_no_id(id: Any) -> None:
    assert id_of({"id": id}) is None
    assert id_of({"id": id, "key": "a"}) == "a"


def test_a_number_and_its_text_are_two_ids() -> None:
    assert both([{"id": 1, "n": 0}], [{"id": "1", "n": 0}]) == [
        Op("remove", "/0"),
        Op("add", "/0", {"id": "1", "n": 0}),
    ]


def test_an_id_that_two_elements_have_identifies_neither() -> None:
    old = [{"id": 1, "secret": "a"}, {"id": 1, "secret": "b"}, {"id": 2}]
    new = [{"id": 2}, {"id": 1, "secret": "b", "n": 1}]
    assert not elements_of(old, both(old, new))


def test_a_class_may_name_other_keys() -> None:
    names = Keys({"/columns/*/cards": "slug", "/users": "uuid"})
    old = {"columns": [{"cards": [{"slug": "a", "id": 1}, {"slug": "b", "id": 1}]}], "users": [{"uuid": "x", "n": 0}]}
    new = {"columns": [{"cards": [{"slug": "b", "id": 2}]}], "users": [{"uuid": "y", "n": 0}, {"uuid": "x", "n": 1}]}
    assert both(old, new, names) == [
        Op("remove", "/columns/0/cards/0"),
        Op("replace", "/columns/0/cards/0/id", 2),
        Op("add", "/users/0", {"uuid": "y", "n": 0}),
        Op("replace", "/users/1/n", 1),
    ]


# Elements without an id


@st.composite
def shuffled(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Return a list of elements without ids, and some of them, in another order and changed, and of others."""
    old = [{"secret": secret, "n": draw(st.integers(0, 1))} for secret in range(draw(st.integers(0, 6)))]
    new = [dict(element) for element in draw(st.permutations(old))][: draw(st.integers(0, 6))]
    new += [{"secret": secret, "n": 0} for secret in draw(st.lists(st.integers(10, 12), unique=True, max_size=2))]
    for element in new:
        if draw(st.booleans()):
            element["n"] = draw(st.integers(0, 2))
    return old, new


@given(shuffled())
def test_no_operation_leads_into_an_element_that_has_another_secret(lists: tuple[list[Any], list[Any]]) -> None:
    old, new = lists
    assert not elements_of(old, both(old, new))


@st.composite
def looking_alike(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """Return a list of elements that only their lists tell apart, and two or more of them in any order and changed."""
    old: list[Any] = [{"done": False, "secrets": [secret]} for secret in range(draw(st.integers(2, 6)))]
    new = [copy.deepcopy(element) for element in draw(st.permutations(old))]
    for at in draw(st.lists(st.sampled_from(range(len(new))), unique=True, min_size=2)):
        new[at]["secrets"].append(new[at]["secrets"][0] + 10)
    return old, new


@given(looking_alike())
def test_no_operation_leads_into_an_element_that_only_looks_the_same(lists: tuple[list[Any], list[Any]]) -> None:
    old, new = lists
    for element, op in elements_of(old, both(old, new)):
        assert op.value == element["secrets"][0] + 10


def test_a_text_in_the_place_of_another_is_another_element() -> None:
    assert both(["a", "b"], ["a", "z"]) == [Op("remove", "/1"), Op("add", "/1", "z")]


def test_an_element_that_has_moved_is_not_replaced_in_its_place() -> None:
    assert both(["a", "b", "c"], ["c", "b", "a"]) == [
        Op("remove", "/1"),
        Op("add", "/2", "b", moved=True),
        Op("remove", "/0"),
        Op("add", "/2", "a", moved=True),
    ]


@each_case(
    ("old", "new", "ops"),
    [
        pytest.param([1.5, 2], [1.5, 3], [Op("replace", "/1", 3)], id="a number"),
        pytest.param([True, 2], [1, 2], [Op("replace", "/0", 1)], id="true is not 1"),
        pytest.param(
            ["", "X", "", "O"], ["X", "", "", "O"], [Op("replace", "/0", "X"), Op("replace", "/1", "")], id="a board"
        ),
        pytest.param([[0, 0, 0], [0, 1, 0]], [[0, 0, 0], [0, 1, 2]], [Op("replace", "/1/2", 2)], id="a cell"),
        pytest.param(
            [[0, 0, 0], [0, 0, 0], [0, 1, 0]],
            [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
            [Op("replace", "/1/1", 1), Op("replace", "/2/1", 0)],
            id="a piece that goes to another row of a board",
        ),
        pytest.param([{"x": 1, "y": 1}], [{"x": 1, "y": 2}], [Op("replace", "/0", {"x": 1, "y": 2})], id="a point"),
        pytest.param(
            [{"title": "a", "cards": [1]}, {"title": "b", "cards": [2]}],
            [{"title": "a", "cards": [1, 3]}, {"title": "b", "cards": [2]}],
            [Op("add", "/0/cards/1", 3)],
            id="only inside another list",
        ),
        pytest.param(
            [[{"id": 1}, {"id": 2}], [{"id": 3}]],
            [[{"id": 2}], [{"id": 3}, {"id": 1}]],
            [Op("remove", "/0/0"), Op("add", "/1/1", {"id": 1})],
            id="rows that have an element with an id in common",
        ),
        pytest.param(
            [{"done": False, "tags": ["a"]}, {"done": False, "tags": ["b"]}],
            [{"done": False, "tags": ["b", "c"]}, {"done": False, "tags": ["a", "d"]}],
            [
                Op("replace", "/0", {"done": False, "tags": ["b", "c"]}),
                Op("replace", "/1", {"done": False, "tags": ["a", "d"]}),
            ],
            id="objects that only their lists tell apart",
        ),
        pytest.param(
            [{"tags": ["a"]}, {"done": False, "tags": ["b"]}],
            [{"tags": ["a", "c"]}, {"done": False, "tags": ["b", "d"]}],
            [Op("add", "/0/tags/1", "c"), Op("add", "/1/tags/1", "d")],
            id="objects of which no two look the same",
        ),
        pytest.param(
            [{"tags": ["a"]}, {"tags": ["b"]}, {"tags": ["c"]}],
            [{"tags": ["a"]}, {"tags": ["d"]}, {"tags": ["c"]}],
            [Op("remove", "/1/tags/0"), Op("add", "/1/tags/0", "d")],
            id="the only one that is not as before",
        ),
        pytest.param(
            [{"cards": [{"id": 1}, {"id": 2}]}, {"cards": [{"id": 3}]}],
            [{"cards": [{"id": 2}]}, {"cards": [{"id": 3}, {"id": 1}]}],
            [Op("remove", "/0/cards/0"), Op("add", "/1/cards/1", {"id": 1})],
            id="objects whose lists have an element with an id in common",
        ),
        pytest.param([{"y": 2, "x": 1}, 5], [{"x": 1, "y": 2}, 6], [Op("replace", "/1", 6)], id="the order of keys"),
    ],
)
def test_what_has_changed_in_its_place_is_changed_there(old: Any, new: Any, ops: list[Op]) -> None:
    assert both(old, new) == ops
