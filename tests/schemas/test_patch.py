"""Operations carried out on documents, compared with jsonpatch, and JSON pointers."""

import json
from collections.abc import Iterable
from typing import Any

import jsonpatch
import jsonpointer
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_schemas.diff import diff
from plait_schemas.patch import Op, PatchError, apply, escape, parse

# Adding zero makes -0.0 a 0.0: they are one number with two texts.
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number + 0.0)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
KEYS = st.sampled_from(["a", "b", "", "~", "/", "~1", "a/b", "0", "-", "ключ", "🔑"]) | TEXT
# Few values, so that two documents often have some in common, and those that Python holds equal but JSON does not.
SCALARS = st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, "", "1", "é"])
SMALL = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
ANY_JSON = st.recursive(
    SCALARS | st.integers(-(2**63), 2**64 - 1) | FLOATS | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=30,
)


def text(value: object) -> str:
    """Return a value as JSON text that is the same for equal documents and for no others."""
    return json.dumps(value, sort_keys=True)


def sent(ops: Iterable[Op]) -> list[dict[str, Any]]:
    """Return operations as they are read from JSON."""
    plain: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(list(ops)))
    return plain


def read(ops: Iterable[Op]) -> list[Op]:
    """Return operations after a trip through JSON."""
    return msgspec.json.decode(msgspec.json.encode(list(ops)), type=list[Op])


def as_json(value: object) -> Any:
    """Return a value as it is read from its JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


@given(SMALL, SMALL)
def test_apply_leaves_its_document_alone(old: Any, new: Any) -> None:
    before = text(old)
    apply(old, diff(old, new))
    assert text(old) == before


def test_apply_shares_what_is_not_on_the_way_to_a_change() -> None:
    document: Any = {"left": {"deep": [1]}, "right": [{"a": 1}, {"b": 2}]}
    result = apply(document, [Op("replace", "/right/0/a", 9)])
    assert result == {"left": {"deep": [1]}, "right": [{"a": 9}, {"b": 2}]}
    assert result["left"] is document["left"]
    assert result["right"][1] is document["right"][1]
    assert result["right"] is not document["right"]


def test_apply_of_nothing_returns_the_document_itself() -> None:
    document = {"a": 1}
    assert apply(document, []) is document


@each_case(
    ("document", "ops", "result"),
    [
        ({}, [("add", "/a", 1)], {"a": 1}),
        ({"a": 1}, [("add", "/a", 2)], {"a": 2}),
        ({"a": {}}, [("add", "/a/b", {"c": 1})], {"a": {"b": {"c": 1}}}),
        ([], [("add", "/0", 1)], [1]),
        ([1, 3], [("add", "/1", 2)], [1, 2, 3]),
        ([1], [("add", "/1", 2)], [1, 2]),
        ([1], [("add", "/-", 2), ("add", "/-", 3)], [1, 2, 3]),
        ({"a": [[]]}, [("add", "/a/0/-", 1)], {"a": [[1]]}),
        ({"a": 1, "b": 2}, [("remove", "/a")], {"b": 2}),
        ([1, 2, 3], [("remove", "/0"), ("remove", "/1")], [2]),
        ({"a": 1}, [("replace", "/a", None)], {"a": None}),
        ({"a": None}, [("replace", "/a", 1)], {"a": 1}),
        ([1, 2], [("replace", "/1", [])], [1, []]),
        ({"a": 1}, [("replace", "", [1])], [1]),
        ({"a": 1}, [("add", "", None)], None),
        ({"": 1}, [("replace", "/", 2)], {"": 2}),
        ({"": {"": 1}}, [("remove", "//")], {"": {}}),
        ({"a/b": 1, "m~n": 2}, [("remove", "/a~1b"), ("replace", "/m~0n", 3)], {"m~n": 3}),
        ({"~1": 1}, [("replace", "/~01", 2)], {"~1": 2}),
        ({"0": 1, "-": 2}, [("replace", "/0", 3), ("replace", "/-", 4)], {"0": 3, "-": 4}),
        ({"ö": {"🔑": 1}}, [("replace", "/ö/🔑", 2)], {"ö": {"🔑": 2}}),
        ({"a": 1}, [("add", "/b", [1, 2]), ("remove", "/b/0"), ("add", "/b/1", 3)], {"a": 1, "b": [2, 3]}),
    ],
)
def test_operations_do_what_rfc_6902_says(document: Any, ops: list[tuple[Any, ...]], result: Any) -> None:
    assert text(apply(document, [Op(*op) for op in ops])) == text(result)


@each_case(
    ("document", "op"),
    [
        ({}, ("remove", "/a")),
        ({}, ("replace", "/a", 1)),
        ({}, ("add", "/a/b", 1)),
        ({"a": 1}, ("add", "/a/b", 1)),
        ({"a": None}, ("remove", "/a/b")),
        ({"a": "text"}, ("add", "/a/0", "x")),
        ([1], ("add", "/2", 1)),
        ([1], ("remove", "/1")),
        ([1], ("replace", "/1", 1)),
        ([1], ("replace", "/-", 1)),
        ([1], ("remove", "/-")),
        ([[1]], ("add", "/-/0", 1)),
        ([1], ("replace", "/-1", 1)),
        ([1], ("replace", "/01", 1)),
        ([1, 2], ("replace", "/1e0", 1)),
        ([1, 2], ("replace", "/+1", 1)),
        ([1, 2], ("replace", "/ 1", 1)),
        ([1, 2], ("replace", "/\u0661", 1)),
        ([1, 2], ("replace", "/²", 1)),
        ([1], ("replace", "/", 1)),
        ([1], ("add", "/a", 1)),
        ({"a": 1}, ("remove", "")),
        ({"a": 1}, ("add", "a", 1)),
        ({"a": 1}, ("replace", "#/a", 1)),
    ],
)
def test_an_operation_that_does_not_fit_is_an_error(document: Any, op: tuple[Any, ...]) -> None:
    before = text(document)
    with pytest.raises(PatchError):
        apply(document, [Op(*op)])
    assert text(document) == before


PARTS = st.sampled_from(["a", "b", "0", "1", "2", "-", "01", "", "~0", "~1", "x~0y"])
PATHS = st.lists(PARTS, max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts))
OPS = st.builds(Op, st.sampled_from(["add", "replace"]), PATHS, SCALARS) | st.builds(Op, st.just("remove"), PATHS)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0", "", "~", "/"]), inner),
    max_leaves=12,
)


@given(DOCUMENTS, st.lists(OPS, min_size=1, max_size=3))
def test_apply_does_and_refuses_what_jsonpatch_does(document: Any, ops: list[Op]) -> None:
    try:
        expected = text(jsonpatch.apply_patch(document, sent(ops)))
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException):
        with pytest.raises(PatchError):
            apply(document, ops)
    else:
        assert text(apply(document, ops)) == expected


# Pointers


@given(st.lists(TEXT | st.text("~/01", max_size=4)))
def test_parse_takes_apart_what_escape_put_together(parts: list[str]) -> None:
    pointer = "".join(f"/{escape(part)}" for part in parts)
    assert parse(pointer) == parts
    assert jsonpointer.JsonPointer(pointer).parts == parts
