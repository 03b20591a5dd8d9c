"""The smallest change of texts, and what it leaves."""

from itertools import takewhile
from string import ascii_letters, ascii_lowercase, digits
from typing import Any, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_schemas.diff import diff
from plait_schemas.elements import Keys
from plait_schemas.patch import Op, apply, splice
from plait_schemas.rebase import rebase

KEYS = Keys({}, ["/note", "/cards/*/body"])
TEXTS = st.text("ab🔑\u0301 .\n", max_size=25)
CARDS = st.lists(st.builds(lambda id, body: {"id": id, "body": body}, st.integers(0, 3), TEXTS), max_size=4)
PADS = st.builds(lambda note, cards: {"note": note, "cards": cards}, TEXTS, CARDS)


def change(old: str, new: str) -> list[Op]:
    """Return how one text becomes another."""
    return diff({"note": old}, {"note": new}, KEYS, by_letters=True)


def count_common(old: str, new: str) -> int:
    """Return how many characters of one text can be left where they are to make another."""
    lengths = [0] * (len(new) + 1)
    for character in old:
        last = 0
        for at, other in enumerate(new, 1):
            length = last + 1 if character == other else max(lengths[at], lengths[at - 1])
            last, lengths[at] = lengths[at], length
    return lengths[-1]


@given(PADS, PADS)
def test_it_leads_from_the_one_state_to_the_other(old: Any, new: Any) -> None:
    ops = diff(old, new, KEYS, by_letters=True)
    assert apply(old, ops) == new
    assert all(op.remove or op.insert for op in ops if op.op == "splice")


@given(st.text("ab🔑\u0301 .\n", max_size=8), TEXTS)
def test_of_a_short_text_stays_what_is_there_once_and_what_else_may(old: str, new: str) -> None:
    ops = change(old, new)
    removed = "".join(old[op.at : op.at + (op.remove or 0)] for op in in_old(ops))
    start = count_shared(old, new)
    end = count_shared(old[start:][::-1], new[start:][::-1])
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    once = {letter for letter in old if old.count(letter) == new.count(letter) == 1}
    chain = count_common("".join(c for c in old if c in once), "".join(c for c in new if c in once))
    assert sum(letter in once for letter in removed) == len(once) - chain
    if not once:
        assert len(removed) == len(old) - count_common(old, new)


def count_shared(one: str, other: str) -> int:
    """Return how many characters two texts begin with that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def in_old(ops: list[Op]) -> list[Any]:
    """Return splices of a text, which are one after the other, as they are on the text before them."""
    found: list[Any] = []
    shift = 0
    for op in ops:
        found.append(msgspec.structs.replace(op, at=cast(int, op.at) + shift))
        shift += (op.remove or 0) - len(op.insert or "")
    return found


def test_a_text_that_has_moved_is_changed_where_it_is() -> None:
    old = {"cards": [{"id": 1, "body": "a note"}, {"id": 2, "body": ""}, {"id": 3, "body": "b"}]}
    new = {"cards": [{"id": 3, "body": "b"}, {"id": 1, "body": "a coded"}]}
    ops = diff(old, new, KEYS, by_letters=True)
    assert apply(old, ops) == new
    assert [op for op in ops if op.op == "splice"] == [
        splice("/cards/1/body", 2, 1, "c"),
        splice("/cards/1/body", 4, 1, "d"),
        splice("/cards/1/body", 6, 0, "d"),
    ]


@each_case(
    ("letters", "length", "deleted", "between", "stays"),
    [
        # Others have typed in it, and deleted a little.
        (ascii_lowercase, 220, 10, "-", True),
        # They have rewritten it.
        (ascii_lowercase, 220, 20, "-", False),
        # They have typed much in it.
        (ascii_lowercase, 220, 0, "-" * 3, True),
        # A much longer text may have it in it by chance, and the sooner, the fewer different letters there are.
        (ascii_lowercase, 220, 0, "-" * 8, False),
        (digits, 220, 0, "-" * 3, False),
        # They have typed in too many places.
        (ascii_lowercase, 320, 0, "-", False),
    ],
)
def test_a_long_text_stays_where_others_have_typed_in_it_and_not_written_it_anew(
    letters: str, length: int, deleted: int, between: str, stays: bool
) -> None:
    text = (letters * length)[:length]
    ops = change(f"<{text}>", f"<{between.join(text[:100] + text[100 + deleted :])}>")
    assert (len(ops) > 1) == stays


def test_a_long_text_of_few_different_letters_may_be_so_in_a_longer_one_whatever_few_others_are_in_that() -> None:
    text, head = digits * 22, ascii_letters
    assert len(change(f"<{text}>", f"<{head}{'---'.join(text)}>")) == 1


def test_a_letter_that_is_there_once_stays_and_not_one_of_many_accents() -> None:
    old, new = "9\u0301A\u0301B\u0301C\u0301f", "9\u0301Ae\u0301xe\u0301yz\u0301C🔑fe\u0301"
    removed = rebase([splice("/note", old.index("C"), 3)], change(old, new), {"note": new})
    assert "C" not in apply({"note": new}, removed.ops)["note"]


def test_an_own_correction_stays_where_it_is_in_however_many_places_others_have_changed_the_text() -> None:
    def write(color: str, *, is_fixed: bool = False) -> str:
        return "".join(
            f"The {color} of item {at}\nis {'the' if is_fixed and at == 300 else 'teh'} same.\n" for at in range(400)
        )

    old, new = write("color"), write("colour")
    place = old.index("teh", old.index("item 300"))
    fixed = rebase([splice("/note", place + 1, 2, "he")], change(old, new), {"note": new})
    assert apply({"note": new}, fixed.ops) == {"note": write("colour", is_fixed=True)}


def test_what_would_take_too_long_is_not_compared_by_characters() -> None:
    old, new = ascii_lowercase * 800, (ascii_lowercase * 800).replace("a", "A")
    assert len(change(old, new)) == 1
    assert len(change(old[:900], new[:900])) == 35


def test_what_is_much_shorter_than_it_was_need_not_be_compared_by_characters() -> None:
    old, text = ascii_lowercase * 200, ascii_lowercase * 34
    before, after = (
        {"first": f"<{old}>", "note": text},
        {"first": f"({text[:150]})", "note": text.replace("a", "A")},
    )
    assert len(diff(before, after, Keys({}, ["/*"]), by_letters=True)) == 35


def test_no_letters_of_a_text_that_others_wrote_anew_are_removed_for_being_in_what_was_removed_here() -> None:
    old = "Im Anfang war das Wort, und die Leute sprachen jeden Tag davon, weil niemand sie daran hinderte. " * 8
    new = "At first there was one word, and people talked about it every day, as nobody kept them from it. " * 8
    document = {"note": new}
    assert apply(document, rebase([splice("/note", 0, 120)], change(old, new), document).ops) == document
    replaced = rebase([splice("/note", 0, len(old), "mine")], change(old, new), document)
    assert not replaced.is_lost
    assert "mine" in apply(document, replaced.ops)["note"]


def test_of_many_texts_only_the_first_are_compared_by_characters_however_many_long_ones_were_written_anew() -> None:
    keys = Keys({}, ["/long/*", "/short/*"])
    old, new = (
        {"long": {str(at): long * 13 for at in range(120)}, "short": {str(at): short * 13 for at in range(200)}}
        for long, short in (("abcdefghi", "abcde"), ("ABCDEFGHI", "a-b-c-d-e-"))
    )
    ops = diff(old, new, keys, by_letters=True)
    assert apply(old, ops) == new
    whole = [op for op in ops if op.path.startswith("/short") and op.op == "splice" and op.remove]
    assert len(whole) == 200 - 1_000_000 // (64 * 129)
