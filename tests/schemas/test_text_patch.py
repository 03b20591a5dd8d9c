"""Differences between JSON texts, held against those between the values."""

import json
from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_diff import MANY
from tests.schemas.test_patch import SMALL, sent, text

from plait_schemas.diff import diff
from plait_schemas.patch import Op, apply
from plait_schemas.text_patch import TextDiff

LAYOUTS = st.sampled_from([{}, {"indent": 1}, {"separators": (" ,  ", " :\n")}, {"ensure_ascii": False}])


def write(document: Any, layout: dict[str, Any]) -> bytes:
    return json.dumps(document, **layout).encode()


def read(data: bytes, path: str) -> Any:
    return msgspec.json.decode(data)


@given(SMALL, SMALL, LAYOUTS, LAYOUTS)
def test_a_diff_turns_what_the_one_text_says_into_what_the_other_says(
    old: Any, new: Any, old_layout: dict[str, Any], new_layout: dict[str, Any]
) -> None:
    ops = TextDiff().diff(write(old, old_layout), write(new, new_layout), read)
    assert text(apply(old, ops)) == text(new)
    assert text(jsonpatch.apply_patch(old, sent(ops))) == text(new)
    assert (ops == []) == (diff(old, new) == [])


@given(st.lists(SMALL, min_size=2, max_size=6), LAYOUTS)
def test_a_sequence_of_diffs_leads_from_the_first_text_to_the_last(
    documents: list[Any], layout: dict[str, Any]
) -> None:
    # Large enough for what was taken apart to be kept for the next time.
    padding = ["x" * 100] * 100
    texts = TextDiff()
    document: Any = {"document": documents[0], "padding": padding}
    before = write(document, layout)
    for each in documents[1:]:
        after = write({"document": each, "padding": padding}, layout)
        document = apply(document, texts.diff(before, after, read))
        assert text(document["document"]) == text(each)
        before = after


def test_a_diff_that_failed_leaves_the_next_one_right() -> None:
    texts = TextDiff()
    first, second = write(["x" * 5_000, {"a": [1]}], {}), write(["x" * 5_000, {"a": [2]}], {})
    with pytest.raises(msgspec.DecodeError):
        texts.diff(first, first.replace(b"1", b"01"), read)
    assert texts.diff(first, second, read) == [Op("replace", "/1/a/0", 2)]
    assert texts.diff(first, second, read) == [Op("replace", "/1/a/0", 2)]
    assert texts.diff(second, first, read) == [Op("replace", "/1/a/0", 1)]


def test_what_is_the_same_in_both_is_not_read() -> None:
    seen: list[tuple[bytes, str]] = []

    def note(data: bytes, path: str) -> Any:
        seen.append((data, path))
        return read(data, path)

    old = b'{"a": [1, {"id": 7, "b/c": 2}], "d": [1, 2, 3], "e": {"f": null}}'
    new = b'{"a": [1, {"id": 7, "b/c": 5}], "d": [1, 2, 3], "e": {"f": null, "g": [7]}}'
    assert TextDiff().diff(old, new, note) == [Op("replace", "/a/1/b~1c", 5), Op("add", "/e/g", [7])]
    assert seen == [(b"5", "/a/1/b~1c"), (b"[7]", "/e/g")]


@each_case("new", [b"{", b"{}}", b'{"a":1,}', b'{"a":01}', b'{"a":[}', b'{"a":1e999}', b'{"a":nul}'])
def test_a_text_that_is_no_json_is_an_error(new: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        TextDiff().diff(b'{"b":1}', new, read)


@each_case(("old", "new"), MANY)
def test_where_texts_differ_by_more_operations_than_are_wanted_the_whole_is_replaced(old: Any, new: Any) -> None:
    texts = TextDiff()
    ops = texts.diff(write(old, {}), write(new, {}), read, most=9)
    assert len(ops) == 9
    assert texts.diff(write(old, {}), write(new, {}), read, most=8) == [Op("replace", "", new)]
    assert texts.diff(write(new, {}), write(old, {}), read, most=9) == diff(new, old)


@pytest.mark.parametrize(("before", "after"), [(10, 110), (110, 10)])
def test_elements_that_stay_are_not_replaced_however_many_come_or_go(before: int, after: int) -> None:
    old, new = ([{"id": at} for at in range(count)] for count in (before, after))
    ops = TextDiff().diff(write(old, {}), write(new, {}), read)
    assert ops == diff(old, new)
    assert len(ops) == 100
