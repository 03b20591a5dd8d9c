"""Operations inside a text."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_patch import sent, text
from tests.schemas.test_rebase_laws import DOCUMENTS, draw_ops

from plait_schemas.inverse import invert
from plait_schemas.patch import Op, PatchError, apply, compact, decode_ops, splice
from plait_schemas.rebase import rebase

Draw = Callable[[st.SearchStrategy[Any]], Any]

UNSET = msgspec.UNSET


@each_case(
    ("document", "op", "result"),
    [
        ({"note": "abc"}, splice("/note", 1, 1, "xy"), {"note": "axyc"}),
        ({"note": ""}, splice("/note", 0, 0, "x"), {"note": "x"}),
        ({"note": "abc"}, splice("/note", 3, 0, "d"), {"note": "abcd"}),
        ({"note": "abc"}, splice("/note", 0, 3), {"note": ""}),
        ({"note": "🔑e\u0301b"}, splice("/note", 1, 2, "🔒"), {"note": "🔑🔒b"}),
        ([["a"]], splice("/0/0", 1, 0, "b"), [["ab"]]),
        ({"a/b": "x"}, splice("/a~1b", 0, 1), {"a/b": ""}),
        ("abc", splice("", 1, 1), "ac"),
    ],
)
def test_a_splice_changes_a_part_of_a_text(document: Any, op: Op, result: Any) -> None:
    before = text(document)
    assert apply(document, [op]) == result
    assert text(document) == before
    assert apply(result, invert(document, [op])) == document


@each_case(
    ("op", "message"),
    [
        (splice("/note", 12, 0, "x"), "splice '/note': position 12 is past the end of a text of 9"),
        (splice("/note", 7, 3), "splice '/note': 3 characters from position 7 on reach past the end of a text of 9"),
        (splice("/note", -1), "splice '/note': -1 is negative"),
        (splice("/note", 1, -2), "splice '/note': -2 is negative"),
        (splice("/list", 0), "splice '/list': the value is not a text"),
        (splice("/number", 0), "splice '/number': the value is not a text"),
        (splice("/none", 0), "splice '/none': there is no text"),
        (splice("/list/-", 0), "splice '/list/-': there is no text"),
        (splice("/note/0", 0), "splice '/note/0': there is no text"),
        (Op("splice", "/note", insert="x"), "splice '/note' has no position `at`"),
        (Op("splice", "/note", "x", at=0), "splice '/note' has a value"),
        (Op("splice", "/note", None, at=0), "splice '/note' has a value"),
        (
            splice("/note", 0, 0, "\ud83d"),
            "splice '/note': a text in it has half a surrogate pair, as when an emoji is cut in two",
        ),
    ],
)
def test_a_splice_that_fits_no_text_says_why(op: Op, message: str) -> None:
    document = {"note": "nine long", "list": ["a"], "number": 3}
    for carry_out in (apply, invert):
        with pytest.raises(PatchError) as caught:
            carry_out(document, [op])
        assert str(caught.value) == message


NOT_AN_INTEGER: list[Any] = [True, 1.0, "1", None]


@each_case("given", NOT_AN_INTEGER)
def test_a_place_and_a_count_are_integers(given: Any) -> None:
    for op in (Op("splice", "", at=given), Op("splice", "", at=0, remove=given)):
        with pytest.raises(PatchError, match="are integers"):
            apply("abc", [op])
        with pytest.raises(msgspec.ValidationError):
            decode_ops(msgspec.json.encode([op]))


def test_what_is_nothing_is_left_out_and_may_be() -> None:
    assert sent([splice("/a", 3, 0, "x"), splice("/a", 3, 1)]) == [
        {"op": "splice", "path": "/a", "at": 3, "insert": "x"},
        {"op": "splice", "path": "/a", "at": 3, "remove": 1},
    ]
    read = decode_ops(b'[{"op":"splice","path":"","at":1,"remove":0,"insert":""},{"op":"splice","path":"","at":1}]')
    assert apply("ab", read) == "ab"


# One after the other


@st.composite
def histories(draw: Draw) -> tuple[Any, list[Op]]:
    """Return a document and what is done to it."""
    document = draw(DOCUMENTS | st.just({"note": "a🔑b", "other": ""}))
    ops: list[Op] = []
    for _ in range(draw(st.integers(0, 3))):
        ops += draw_ops(draw, apply(document, ops))
    return document, ops


@given(histories())
def test_inverted_operations_lead_back(case: tuple[Any, list[Op]]) -> None:
    document, ops = case
    assert text(apply(apply(document, ops), invert(document, ops))) == text(document)


@given(histories())
def test_compact_operations_do_the_same_and_are_no_more(case: tuple[Any, list[Op]]) -> None:
    document, ops = case
    found = compact(ops)
    assert text(apply(document, found)) == text(apply(document, ops))
    assert len(found) <= len(ops)


def wanted_splices(most: int, letter: str = "x") -> st.SearchStrategy[list[tuple[int, int, str]]]:
    inserts = st.sampled_from(["", letter, "🔑" + letter])
    return st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), inserts), max_size=most)


def fit(wanted: list[tuple[int, int, str]]) -> list[Op]:
    """Return splices of "abcdef", one after the other, each made to fit."""
    ops: list[Op] = []
    now = "abcdef"
    for at, remove, insert in wanted:
        start = min(at, len(now))
        ops.append(splice("", start, min(remove, len(now) - start), insert))
        now = apply(now, ops[-1:])
    return ops


@given(wanted_splices(12))
def test_compact_splices_of_one_text_do_the_same(wanted: list[tuple[int, int, str]]) -> None:
    ops = fit(wanted)
    assert apply("abcdef", compact(ops)) == apply("abcdef", ops)


@given(wanted_splices(5, "A"), wanted_splices(2, "b"))
@example([(2, 0, "AA"), (0, 3, "")], [(4, 0, ""), (1, 2, "b")])
def test_what_is_rebased_over_compact_splices_comes_to_the_same_place(
    others: list[tuple[int, int, str]], wanted: list[tuple[int, int, str]]
) -> None:
    over, ops = fit(others), fit(wanted)
    now = apply("abcdef", over)
    assert apply(now, rebase(ops, compact(over), now).ops) == apply(now, rebase(ops, over, now).ops)


def test_what_is_typed_or_streamed_is_one_splice() -> None:
    typed = [splice("/note", 5 + at, 0, letter) for at, letter in enumerate("helo")]
    corrected = [splice("/note", 8, 1), splice("/note", 8, 0, "lo"), splice("/note", 4, 1)]
    assert compact(typed) == [splice("/note", 5, 0, "helo")]
    assert compact([*typed, *corrected]) == [splice("/note", 5, 0, "hello"), splice("/note", 4, 1)]
    assert compact([splice("/note", 3, 0, "x"), splice("/note", 3, 1)]) == []
    assert compact([splice("/note", 9, 3), splice("/note", 7, 2)]) == [splice("/note", 7, 5)]


@each_case(
    "ops",
    [
        [splice("/a", 5, 0, "x"), splice("/b", 6, 0, "y")],
        [splice("/a", 5, 0, "x"), splice("/a", 7, 0, "y")],
        [splice("/a", 5, 0, "x"), splice("/a", 2, 2)],
        [splice("/a", 5, 0, "x"), Op("replace", "/a", "z"), splice("/a", 1, 0, "y")],
    ],
)
def test_splices_elsewhere_stay_as_they_are(ops: list[Op]) -> None:
    assert compact(ops) == ops
