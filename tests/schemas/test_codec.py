"""What JSON text may not hold, held against slower ways to tell."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_schemas.codec import (
    NOT_JSON,
    check_json,
    complete_pairs,
    decode_json,
    encode_json,
    nests_deeper,
    printable,
    weigh,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.text('[]{}()"\\/\n\t\bnu0é', max_size=10)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=6),
    max_leaves=40,
)


def depth(document: Any) -> int:
    """Return how deep objects and arrays nest, the plain way."""
    if isinstance(document, dict):
        return 1 + max(map(depth, document.values()), default=0)
    if isinstance(document, list):
        return 1 + max(map(depth, document), default=0)
    return 0


@given(DOCUMENTS, st.integers(0, 8), st.booleans(), st.sampled_from([None, 1]))
@example(["a\n", [], [], []], 2, True, None)
@example(["\\", [], [], []], 2, True, None)
@example(['"[', [], [], []], 2, True, None)
@example(["é", [], [], []], 2, True, None)
def test_nests_deeper_tells_what_a_walk_over_the_document_tells(
    document: Any, limit: int, ascii_only: bool, indent: int | None
) -> None:
    data = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    assert nests_deeper(data, limit) == (depth(document) > limit)


def weight(document: Any) -> int:
    """Return the weight of a document, the plain way."""
    match document:
        case list():
            return 2 + max(len(document) - 1, 0) + sum(map(weight, document))
        case dict():
            return 6 + max(len(document) - 1, 0) + sum(map(weight, document.values()))
        case _:
            return 0


@given(DOCUMENTS, st.booleans())
@example(["\\", ",", '"['], True)
def test_the_weight_is_that_of_the_document_whatever_is_in_its_strings(document: Any, ascii_only: bool) -> None:
    data = json.dumps(document, ensure_ascii=ascii_only).encode()
    assert weigh(data, 0) == weight(document)
    assert weight(document) <= weigh(data, len(data) * 6)
    assert weight(document) <= len(data) * 7 / 3 + 2


@given(DOCUMENTS)
def test_nests_deeper_draws_the_line_at_the_depth_itself(document: Any) -> None:
    data = json.dumps(document).encode()
    assert not nests_deeper(data, depth(document))
    if deep := depth(document):
        assert nests_deeper(data, deep - 1)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a\\"]":'])
def test_nests_deeper_finds_hostile_depth(opening: bytes) -> None:
    assert nests_deeper(opening * 100_000, 64)


def test_many_values_side_by_side_are_not_deep() -> None:
    data = json.dumps([{"text": 'line\n"two" \\ \u2028', "list": [[], {}]}] * 5_000).encode()
    assert not nests_deeper(data, 4)
    assert nests_deeper(data, 3)


@each_case("text", ["NaN", "Infinity", "1e400", "[-1e999]", '{"a": 1e309}'])
def test_json_with_a_number_that_is_not_finite_is_not_decoded(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json(text.encode())


@given(DOCUMENTS.filter(lambda document: "e" not in str(document)))
def test_what_is_encoded_is_decoded_as_it_was(document: Any) -> None:
    assert decode_json(encode_json(document)) == document


# Halves of surrogate pairs


ANY_TEXT = st.text(st.characters() | st.sampled_from('\\"u\ud83d\ude00\udfff\ud800'))


@given(ANY_TEXT)
def test_json_of_any_text_that_javascript_has_can_be_decoded_once_its_pairs_are_complete(text: str) -> None:
    data = json.dumps(text).encode()
    # A pair that was put together of two halves is whole.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    completed = complete_pairs(data)
    assert (completed is None) == (text.encode("utf-16", "surrogatepass") == whole.encode("utf-16"))
    assert decode_json(data if completed is None else completed) == whole


@each_case("text", ["", "hello", "Grüße 😀", "\ud83d", "a\ude00b"])
def test_what_is_printable_is_utf_8_and_says_the_same(text: str) -> None:
    assert printable(text) == text.encode(errors="backslashreplace").decode()
    assert printable(printable(text)) == printable(text)


_NUMBERS = [b"1e308", b"1e309", b"-1E+400", b"1e-400", b"0e999", b"1" * 4300, b"1" * 4301]
_NUMBERS += [b"9" * count + b".5" for count in (300, 400)]
_TEXTS = [
    b'"a\\u00e9"',
    b'"\\ud800"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\x01"',
    b'"1e999"',
    b'"\\"1e999"',
    b'"\\\\"',
    b'"[,]{:}"',
]
_BROKEN = [b"", b"-", b"1.", b"01", b"nul", b"NaN", b"1 2", b"1,", b"'a'"]
_AROUND = [b"%b", b"[%b]", b"[[], %b ,[ 1 ]]", b'{"a":[{"b\\"":%b}], "c":"1"}', b"[%b,1e999]", b'["1e999",%b]']


@each_case("part", [*_NUMBERS, *_TEXTS, *_BROKEN, b"[[],[]]", b"{}", b"true"])
@each_case("around", _AROUND)
def test_text_is_found_to_be_json_exactly_if_it_can_be_decoded(part: bytes, around: bytes) -> None:
    data = around % part
    found = [_refusal(check, data) for check in (check_json, decode_json)]
    assert found[0] == found[1]


def _refusal(check: Callable[[bytes], object], data: bytes) -> type[Exception] | None:
    try:
        check(data)
    except NOT_JSON as error:
        return type(error)
    return None


@each_case(
    ("value", "is_so"),
    [
        ([10**199] * 251, True),
        ([10**199] * 250, False),
        ([10**198] * 1_000, False),
        ([-(10**4_000)] * 13, True),
        (["1" * 60_000, '"' + "1" * 60_000, "\\"], False),
        ({"1" * 60_000: 1.5}, False),
    ],
)
def test_long_integers_weigh_more_than_other_numbers(value: Any, *, is_so: bool) -> None:
    assert (weigh(encode_json(value), 0) > 501_000) == is_so
