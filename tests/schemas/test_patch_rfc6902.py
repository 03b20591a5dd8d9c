"""The three operations as RFC 6902 has them, case by case, from JSON to JSON."""

import json
from typing import Any

import msgspec
import pytest
from tests.cases import each_case

from plait_schemas.patch import Op, PatchError, apply


def patched(document: Any, patch: Any) -> str:
    """Return a document after a patch, both as they come over a wire."""
    ops = msgspec.json.decode(json.dumps(patch), type=list[Op])
    return json.dumps(apply(json.loads(json.dumps(document)), ops), sort_keys=True)


# Each case of the appendix A that is about these operations, and what the text itself says of them.
WORKS: dict[str, tuple[Any, list[dict[str, Any]], Any]] = {
    "A.1 a member is added to an object": (
        {"name": "Ada"},
        [{"op": "add", "path": "/born", "value": 1815}],
        {"name": "Ada", "born": 1815},
    ),
    "A.2 an element is added before the one at its index": (
        {"names": ["Ada", "Grace"]},
        [{"op": "add", "path": "/names/1", "value": "Alan"}],
        {"names": ["Ada", "Alan", "Grace"]},
    ),
    "A.3 a member is removed from an object": (
        {"name": "Ada", "born": 1815},
        [{"op": "remove", "path": "/born"}],
        {"name": "Ada"},
    ),
    "A.4 an element is removed from an array, and those after it move up": (
        {"names": ["Ada", "Alan", "Grace"]},
        [{"op": "remove", "path": "/names/1"}],
        {"names": ["Ada", "Grace"]},
    ),
    "A.5 a value is replaced": (
        {"name": "Ada", "born": 0},
        [{"op": "replace", "path": "/born", "value": 1815}],
        {"name": "Ada", "born": 1815},
    ),
    "A.10 a member that is itself an object is added": (
        {"name": "Ada"},
        [{"op": "add", "path": "/address", "value": {"city": {}}}],
        {"name": "Ada", "address": {"city": {}}},
    ),
    "A.11 what is not known of an operation is ignored": (
        {"name": "Ada"},
        [{"op": "add", "path": "/born", "value": 1815, "by": "me", "from": "/name"}],
        {"name": "Ada", "born": 1815},
    ),
    "A.14 an escaped tilde before a one is no slash": (
        {"/": 1, "~1": 2},
        [{"op": "replace", "path": "/~01", "value": 3}],
        {"/": 1, "~1": 3},
    ),
    "A.16 an array is added to the end of an array as one element": (
        {"names": ["Ada"]},
        [{"op": "add", "path": "/names/-", "value": ["Alan", "Grace"]}],
        {"names": ["Ada", ["Alan", "Grace"]]},
    ),
    "4.1 add to a member that is there replaces it": (
        {"n": 1},
        [{"op": "add", "path": "/n", "value": [2]}],
        {"n": [2]},
    ),
    "4.1 add to the index after the last appends": (["a"], [{"op": "add", "path": "/1", "value": "b"}], ["a", "b"]),
    "4.1 add to the root replaces the document": ({"n": 1}, [{"op": "add", "path": "", "value": []}], []),
    "4.1 add to an empty array": ([], [{"op": "add", "path": "/0", "value": None}], [None]),
    "4.1 null is a value": ({}, [{"op": "add", "path": "/n", "value": None}], {"n": None}),
    "4.3 replace of the root": ({"n": 1}, [{"op": "replace", "path": "", "value": "text"}], "text"),
    "4.3 replace with the same value": ({"n": 1}, [{"op": "replace", "path": "/n", "value": 1}], {"n": 1}),
    "4.3 false, zero and the empty text are values": (
        {"a": 1, "b": 1, "c": 1},
        [
            {"op": "replace", "path": "/a", "value": False},
            {"op": "replace", "path": "/b", "value": 0},
            {"op": "replace", "path": "/c", "value": ""},
        ],
        {"a": False, "b": 0, "c": ""},
    ),
    "3 no operation changes nothing": ({"n": 1}, [], {"n": 1}),
    "3 each operation is carried out on what the one before has made": (
        [1, 2, 3],
        [
            {"op": "remove", "path": "/0"},
            {"op": "add", "path": "/0", "value": {"n": 1}},
            {"op": "replace", "path": "/0/n", "value": 2},
            {"op": "remove", "path": "/2"},
        ],
        [{"n": 2}, 2],
    ),
    "the empty key is a key": ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
    "a number is a key where there is an object": (
        {"1": "a"},
        [{"op": "add", "path": "/0", "value": "b"}, {"op": "remove", "path": "/1"}],
        {"0": "b"},
    ),
}

FAILS: dict[str, tuple[Any, dict[str, Any]]] = {
    "A.12 add below what is not there": ({"name": "Ada"}, {"op": "add", "path": "/address/city", "value": 1}),
    "4.1 add below a text": ({"name": "Ada"}, {"op": "add", "path": "/name/0", "value": 1}),
    "4.1 add past the end of an array": ([1], {"op": "add", "path": "/2", "value": 1}),
    "4.1 add before an array": ([1], {"op": "add", "path": "/-1", "value": 1}),
    "4.1 add at what is no index": ([1], {"op": "add", "path": "/first", "value": 1}),
    "4.1 add without a value": ({}, {"op": "add", "path": "/n"}),
    "4.2 remove of a member that is not there": ({"n": 1}, {"op": "remove", "path": "/m"}),
    "4.2 remove of an element that is not there": ([1], {"op": "remove", "path": "/1"}),
    "4.2 remove after the last element": ([1], {"op": "remove", "path": "/-"}),
    "4.2 remove of the root": ({"n": 1}, {"op": "remove", "path": ""}),
    "4.3 replace of a member that is not there": ({"n": 1}, {"op": "replace", "path": "/m", "value": 1}),
    "4.3 replace of an element that is not there": ([1], {"op": "replace", "path": "/1", "value": 1}),
    "4.3 replace after the last element": ([1], {"op": "replace", "path": "/-", "value": 1}),
    "4.3 replace without a value": ({"n": 1}, {"op": "replace", "path": "/n"}),
    "an index with a leading zero": ([1, 2], {"op": "replace", "path": "/01", "value": 1}),
    "an index with an exponent": ([1, 2], {"op": "replace", "path": "/1e0", "value": 1}),
    "an index with a fraction": ([1, 2], {"op": "replace", "path": "/1.0", "value": 1}),
    "a pointer without a slash": ({"n": 1}, {"op": "replace", "path": "n", "value": 1}),
    "a pointer as part of a URL": ({"n": 1}, {"op": "replace", "path": "#/n", "value": 1}),
}


@each_case("case", WORKS)
def test_a_patch_does_what_it_says(case: str) -> None:
    document, patch, result = WORKS[case]
    assert patched(document, patch) == json.dumps(result, sort_keys=True)


@each_case("case", FAILS)
def test_a_patch_that_does_not_fit_fails(case: str) -> None:
    document, op = FAILS[case]
    with pytest.raises(PatchError):
        patched(document, [op])


@each_case("case", FAILS)
def test_a_patch_is_carried_out_as_a_whole_or_not_at_all(case: str) -> None:
    document, op = FAILS[case]
    whole = {"same": document, "n": 1}
    with pytest.raises(PatchError):
        apply(whole, [Op("replace", "/n", 2), Op(op["op"], f"/same{op['path']}" if op["path"] else "", *_value(op))])
    assert whole == {"same": document, "n": 1}


def _value(op: dict[str, Any]) -> list[Any]:
    return [op["value"]] if "value" in op else []
