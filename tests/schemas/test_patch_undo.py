"""Reading a document at a place, undoing operations, and what stays the same object."""

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_diff import Untouchable
from tests.schemas.test_patch import DOCUMENTS, OPS, SMALL, text

from plait_schemas.diff import diff
from plait_schemas.inverse import invert
from plait_schemas.patch import Op, PatchError, apply, find, parse

UNSET = msgspec.UNSET


def places(document: Any, at: str = "") -> list[str]:
    """Return the pointers of everything in a document."""
    match document:
        case dict():
            members: Iterable[tuple[str, Any]] = document.items()
        case list():
            members = ((str(index), item) for index, item in enumerate(document))
        case _:
            members = ()
    escaped = ((key.replace("~", "~0").replace("/", "~1"), item) for key, item in members)
    return [at, *itertools.chain.from_iterable(places(item, f"{at}/{key}") for key, item in escaped)]


def touches(ops: Iterable[Op], pointer: str) -> bool:
    """Tell whether operations change what is at `pointer`, something in it, or something that it is in."""
    return any(
        op.path == pointer or op.path.startswith(f"{pointer}/") or pointer.startswith(f"{op.path}/") for op in ops
    )


# Find


@given(SMALL)
def test_find_returns_what_apply_would_replace(document: Any) -> None:
    for place in places(document):
        found = find(document, parse(place))
        assert found is not UNSET
        assert text(apply(document, [Op("replace", place, found)])) == text(document)


@given(DOCUMENTS, OPS)
def test_find_finds_nothing_where_apply_replaces_nothing(document: Any, op: Op) -> None:
    try:
        apply(document, [Op("replace", op.path, 1)])
    except PatchError:
        assert find(document, parse(op.path)) is UNSET or "01" in parse(op.path)
    else:
        assert find(document, parse(op.path)) is not UNSET


@each_case(
    ("document", "pointer", "found"),
    [
        ({"a": [1, {"b": None}]}, "", {"a": [1, {"b": None}]}),
        ({"a": [1, {"b": None}]}, "/a/1/b", None),
        ({"a": [1]}, "/a/1", UNSET),
        ({"a": [1]}, "/a/-", UNSET),
        ({"a": [1]}, "/a/-1", UNSET),
        ({"a": [1]}, "/a/²", UNSET),
        ({"a": [1]}, "/b", UNSET),
        ({"a": "text"}, "/a/0", UNSET),
        ({"a": None}, "/a/b", UNSET),
        ({"0": 1}, "/0", 1),
        ({"~": {"/": 1}}, "/~0/~1", 1),
    ],
)
def test_find_tells_null_from_nothing(document: Any, pointer: str, found: Any) -> None:
    assert find(document, parse(pointer)) == found


# Invert


@given(DOCUMENTS, st.lists(OPS, max_size=4))
@example({"a": [1]}, [Op("add", "/a/-", 2), Op("replace", "/a/1", 3), Op("remove", "/a/0")])
@example({"a": None}, [Op("add", "/a", 1), Op("remove", "/a")])
@example({"a": 1}, [Op("replace", "", []), Op("add", "/-", 1)])
@example({"": 1}, [Op("add", "", {"": 2}), Op("add", "/", None)])
def test_the_inverse_leads_back(document: Any, ops: list[Op]) -> None:
    try:
        result = apply(document, ops)
    except PatchError:
        with pytest.raises(PatchError):
            invert(document, ops)
    else:
        inverse = invert(document, ops)
        assert text(apply(result, inverse)) == text(document)
        assert text(apply(document, [*ops, *inverse])) == text(document)


@given(SMALL, SMALL)
def test_the_inverse_of_a_diff_leads_back(old: Any, new: Any) -> None:
    ops = diff(old, new)
    assert text(apply(new, invert(old, ops))) == text(old)


@given(SMALL, SMALL)
def test_the_inverse_of_the_inverse_leads_on(old: Any, new: Any) -> None:
    ops = diff(old, new)
    assert text(apply(old, invert(new, invert(old, ops)))) == text(new)


@each_case(
    ("document", "op", "inverse"),
    [
        ({}, Op("add", "/a", 1), Op("remove", "/a")),
        ({"a": 1}, Op("add", "/a", 2), Op("replace", "/a", 1)),
        ({"a": None}, Op("add", "/a", 2), Op("replace", "/a", None)),
        ({"a": [1]}, Op("remove", "/a"), Op("add", "/a", [1])),
        ({"a": 1}, Op("replace", "/a", 2), Op("replace", "/a", 1)),
        ([1], Op("add", "/0", 2), Op("remove", "/0")),
        ([1], Op("add", "/-", 2), Op("remove", "/1")),
        ({"a/b": [1]}, Op("add", "/a~1b/-", 2), Op("remove", "/a~1b/1")),
        ({"-": 1}, Op("add", "/-", 2), Op("replace", "/-", 1)),
        ({}, Op("add", "/-", 2), Op("remove", "/-")),
        ([1, 2], Op("remove", "/0"), Op("add", "/0", 1)),
        ({"a": 1}, Op("replace", "", 2), Op("replace", "", {"a": 1})),
        ({"a": 1}, Op("add", "", 2), Op("replace", "", {"a": 1})),
    ],
)
def test_each_operation_has_its_inverse(document: Any, op: Op, inverse: Op) -> None:
    assert invert(document, [op]) == [inverse]


def test_operations_are_undone_from_the_last_to_the_first() -> None:
    ops = [Op("add", "/a", {}), Op("add", "/a/b", 1), Op("replace", "/a/b", 2)]
    assert invert({}, ops) == [Op("replace", "/a/b", 1), Op("remove", "/a/b"), Op("remove", "/a")]


def test_invert_leaves_the_document_alone() -> None:
    document = {"a": [1, 2]}
    invert(document, [Op("remove", "/a/0"), Op("add", "/a/-", 3)])
    assert document == {"a": [1, 2]}


# Identity


@given(st.dictionaries(st.sampled_from("abc"), SMALL), st.dictionaries(st.sampled_from("abc"), SMALL))
def test_what_is_not_touched_is_the_same(old: dict[str, Any], new: dict[str, Any]) -> None:
    ops = diff(old, new)
    for key, value in old.items():
        if not touches(ops, f"/{key}"):
            assert text(new[key]) == text(value)


@given(DOCUMENTS, OPS)
def test_what_an_operation_does_not_touch_is_the_same_object_afterwards(document: Any, op: Op) -> None:
    try:
        result = apply(document, [op])
    except PatchError:
        return
    parent = op.path.rpartition("/")[0]
    if not op.path or isinstance(find(document, parse(parent)), list):
        # The elements of an array move.
        op = Op(op.op, parent)
    for place in places(document):
        if not touches([op], place):
            assert find(result, parse(place)) is find(document, parse(place))


def test_elements_that_move_are_the_same_objects() -> None:
    document: list[Any] = [{"n": 1}, {"n": 2}, {"n": 3}]
    assert apply(document, [Op("remove", "/0")])[1] is document[2]
    assert apply(document, [Op("add", "/0", 0)])[3] is document[2]
    assert apply(document, [Op("replace", "/1/n", 0)])[0] is document[0]


@given(st.dictionaries(st.sampled_from("abc"), SMALL), st.dictionaries(st.sampled_from("abc"), SMALL))
def test_what_a_diff_finds_equal_is_the_same_object_afterwards(old: dict[str, Any], new: dict[str, Any]) -> None:
    result = apply(old, diff(old, new))
    for key, value in old.items():
        if key in new and diff(value, new[key]) == []:
            assert result[key] is value


class Incomparable(list[int]):
    """Raises when it is compared."""

    def __ne__(self, other: object) -> bool:
        raise AssertionError("was compared")

    __eq__ = __ne__
    __hash__ = None


def test_a_document_is_not_compared_with_itself() -> None:
    assert diff(document := Incomparable([1]), document) == []


def test_a_document_and_what_was_made_of_it_are_compared_only_where_they_differ() -> None:
    rows = [{"id": id, "n": id, "shared": Untouchable()} for id in range(3)]
    ops = [Op("replace", "/1/n", 5), Op("add", "/0", {"n": 6})]
    assert diff(rows, apply(rows, ops[:1])) == ops[:1]
    assert diff(rows[1], apply(rows, ops)[2]) == [Op("replace", "/n", 5)]
