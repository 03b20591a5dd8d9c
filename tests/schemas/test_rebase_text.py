"""Operations inside texts, rebased over those of others."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.schemas.test_rebase_laws import moved_lists

from plait_schemas.diff import diff
from plait_schemas.inverse import taking_back
from plait_schemas.patch import Op, apply, splice, splices
from plait_schemas.rebase import Rebased, rebase
from plait_schemas.text import UNKNOWN


def own(op: Op) -> Op:
    """Return a splice that goes on after what its client has inserted."""
    return msgspec.structs.replace(op, own=True)


DOCUMENT: Any = {"note": "one word", "title": "one word", "lines": ["one word", "two"], "rows": [{"t": "one word"}, {}]}

# What was pushed, what others did before, and what there is to do then.
FREE: dict[str, tuple[list[Op], list[Op], list[Op]]] = {
    "after an insertion before it": (
        [splice("/note", 4, 4, "cat")],
        [splice("/note", 0, 0, "🔑 ")],
        [splice("/note", 6, 4, "cat")],
    ),
    "after an insertion at the same place": (
        [splice("/note", 4, 0, "x")],
        [splice("/note", 4, 0, "yz")],
        [splice("/note", 6, 0, "x")],
    ),
    "after a removal around it": (
        [splice("/note", 5, 2, "x")],
        [splice("/note", 4, 4)],
        [splice("/note", 4, 0, "x")],
    ),
    "around an insertion": (
        [splice("/note", 4, 4)],
        [splice("/note", 6, 0, "xy")],
        [splice("/note", 4, 2), splice("/note", 6, 2)],
    ),
    "what others have replaced as well": (
        [splice("/note", 4, 4, "cat")],
        [splice("/note", 4, 4, "dog")],
        [splice("/note", 7, 0, "cat")],
    ),
    "what others have removed already": (
        [splice("/note", 5, 2), Op("add", "/new", 1)],
        [splice("/note", 4, 4)],
        [Op("add", "/new", 1)],
    ),
    "in several places, one after the other": (
        [splice("/note", 0, 0, "a"), splice("/note", 9, 0, "z")],
        [splice("/note", 3, 1), splice("/note", 0, 1)],
        [splice("/note", 0, 0, "a"), splice("/note", 7, 0, "z")],
    ),
    "of its own before an insertion at the same place": (
        [own(splice("/note", 4, 0, "x"))],
        [splice("/note", 4, 0, "yz")],
        [own(splice("/note", 4, 0, "x"))],
    ),
    "of its own after a removal before it": (
        [own(splice("/note", 4, 0, "x"))],
        [splice("/note", 3, 1), splice("/note", 3, 0, "yz")],
        [splice("/note", 5, 0, "x")],
    ),
    "of its own around an insertion, which it does not go on after": (
        [own(splice("/note", 4, 4, "x"))],
        [splice("/note", 6, 0, "y")],
        [own(splice("/note", 4, 2, "x")), splice("/note", 6, 2)],
    ),
    "in another text": ([splice("/note", 0, 1)], [splice("/title", 0, 1)], [splice("/note", 0, 1)]),
    "in an element, after one before it": (
        [splice("/lines/0", 0, 1)],
        [Op("add", "/lines/0", "x")],
        [splice("/lines/1", 0, 1)],
    ),
    "inside an element that has moved": (
        [splice("/rows/0/t", 0, 1)],
        [Op("remove", "/rows/0"), Op("add", "/rows/1", {"t": "one word"}, moved=True)],
        [splice("/rows/1/t", 0, 1)],
    ),
    "an element that has moved": (
        [splice("/lines/0", 0, 1)],
        [Op("remove", "/lines/0"), Op("add", "/lines/1", "one word", moved=True)],
        [splice("/lines/1", 0, 1)],
    ),
    "the move of an element, after what others did inside it": (
        [Op("remove", "/rows/0"), Op("add", "/rows/1", {"t": "one word"}, moved=True)],
        [splice("/rows/0/t", 0, 4)],
        [Op("remove", "/rows/0"), Op("add", "/rows/1", {"t": "word"}, moved=True)],
    ),
    "the move of a text, after what others did in it": (
        [Op("remove", "/lines/0"), Op("add", "/lines/1", "one word", moved=True)],
        [splice("/lines/0", 0, 4), splice("/lines/0", 4, 0, "s")],
        [Op("remove", "/lines/0"), Op("add", "/lines/1", "words", moved=True)],
    ),
}

# Where others have put something else, or nothing, in the place of the text or of what it is in.
LOST: dict[str, tuple[Op, Op]] = {
    "a text that others have replaced": (splice("/note", 0, 1), Op("replace", "/note", "one word")),
    "a text that others have added anew": (splice("/note", 0, 1), Op("add", "/note", "one word")),
    "a text that others have removed": (splice("/note", 0, 1), Op("remove", "/note")),
    "a text in a document that others have replaced": (splice("/note", 0, 1), Op("replace", "", {"note": "one word"})),
    "a text in an element that others have replaced": (
        splice("/rows/0/t", 0, 1),
        Op("replace", "/rows/0", {"t": "one"}),
    ),
    "a text in an element that others have removed": (splice("/rows/0/t", 0, 1), Op("remove", "/rows/0")),
    "an element that others have replaced": (splice("/lines/0", 0, 1), Op("replace", "/lines/0", "one word")),
    "an element that others have removed": (splice("/lines/0", 0, 1), Op("remove", "/lines/0")),
}

# The same the other way: what others have done in a text is gone with it.
OVERWRITTEN: dict[str, tuple[Op, Op]] = {
    "a text": (Op("replace", "/note", "x"), splice("/note", 0, 1)),
    "a text that is removed": (Op("remove", "/note"), splice("/note", 0, 1)),
    "the document": (Op("replace", "", {}), splice("/note", 0, 1)),
    "an element": (Op("replace", "/rows/0", {}), splice("/rows/0/t", 0, 1)),
    "an element that is removed": (Op("remove", "/rows/0"), splice("/rows/0/t", 0, 1)),
    "a text in a list": (Op("replace", "/lines/0", "x"), splice("/lines/0", 0, 1)),
    "a text in a list that is removed": (Op("remove", "/lines/0"), splice("/lines/0", 0, 1)),
}


@each_case("case", FREE)
def test_a_splice_is_done_where_its_place_has_moved_to(case: str) -> None:
    mine, over, expected = FREE[case]
    newer = apply(DOCUMENT, over)
    found = rebase(mine, over, newer)
    assert (found.ops, found.conflicts, found.is_lost) == (expected, [], False)
    assert apply(apply(DOCUMENT, mine), found.over) == apply(newer, found.ops)


@each_case("case", LOST)
def test_a_splice_of_a_text_that_is_another_or_gone_is_lost(case: str) -> None:
    mine, over = LOST[case]
    found = rebase([mine], [over], apply(DOCUMENT, [over]))
    assert (found.is_lost, len(found.conflicts)) == (True, 1)
    assert found.over[-1] == over


@each_case("case", OVERWRITTEN)
def test_what_others_did_in_a_text_that_is_overwritten_is_gone_and_contests_it(case: str) -> None:
    mine, over = OVERWRITTEN[case]
    found = rebase([mine], [over], apply(DOCUMENT, [over]))
    assert found == Rebased([mine], [mine.path], False, [], [])


def test_each_part_of_what_others_removed_names_the_operation_that_it_is_of() -> None:
    mine, over = [splice("/note", 4, 0, "xy")], [Op("add", "/a", 1), splice("/note", 2, 4), Op("add", "/b", 2)]
    found = rebase(mine, over, apply(DOCUMENT, over))
    assert found.over == [over[0], splice("/note", 2, 2), splice("/note", 4, 2), over[2]]
    assert found.indices == [0, 1, 1, 2]


def test_the_edits_of_one_word_by_two_lose_no_letter_that_nobody_deleted() -> None:
    document = {"note": "the word here"}
    mine, over = [splice("/note", 4, 4, "cat")], [splice("/note", 6, 2, "od"), splice("/note", 8, 0, "!")]
    newer = apply(document, over)
    assert newer == {"note": "the wood! here"}
    assert apply(newer, rebase(mine, over, newer).ops) == {"note": "the catod! here"}


@pytest.mark.parametrize("places", [280, 320])
def test_a_change_in_too_many_places_is_lost_rather_than_slow(places: int) -> None:
    document = {"note": "ab" * places}
    over = splices("/note", [(2 * at + 1, 0, "x") for at in range(places)])
    newer = apply(document, over)
    found = rebase([splice("/note", 0, 2 * places)], over, newer)
    assert found.is_lost == (places > 300)
    if not found.is_lost:
        assert apply(newer, found.ops) == {"note": "x" * places}
    back = rebase(over, [splice("/note", 0, 2 * places)], {"note": ""})
    assert back.is_lost == (places > 300)


# What is taken back


def test_what_is_taken_back_has_the_lengths_and_no_characters() -> None:
    ops = [splice("/note", 4, 4, "ca"), splice("/note", 6, 0, "t"), splice("/none", 1)]
    assert taking_back(ops, DOCUMENT) == [splice("/note", 6, 1), splice("/note", 4, 2, UNKNOWN * 4)]


def test_what_was_made_after_a_splice_is_where_it_belongs_without_it() -> None:
    refused, later = [splice("/note", 0, 4, "a longer ")], [splice("/note", 9, 4, "text")]
    found = rebase(later, taking_back(refused, DOCUMENT), DOCUMENT)
    assert found.ops == [splice("/note", 4, 4, "text")]
    assert apply(DOCUMENT, found.ops) == {**DOCUMENT, "note": "one text"}


def test_the_move_of_an_element_in_which_a_removal_is_taken_back_is_lost() -> None:
    refused = [splice("/rows/0/t", 0, 4)]
    move = [Op("remove", "/rows/0"), Op("add", "/rows/1", {"t": "word"}, moved=True)]
    assert rebase(move, taking_back(refused, DOCUMENT), DOCUMENT).is_lost
    inserted = [splice("/rows/0/t", 0, 0, "x")]
    move = [Op("remove", "/rows/0"), Op("add", "/rows/1", {"t": "xone word"}, moved=True)]
    found = rebase(move, taking_back(inserted, DOCUMENT), DOCUMENT)
    assert found.ops == [move[0], Op("add", "/rows/1", {"t": "one word"}, moved=True)]


@given(moved_lists(), st.data())
def test_what_is_written_in_an_element_follows_it_and_is_in_no_other(
    lists: tuple[Any, Any, Any], data: st.DataObject
) -> None:
    document, _, newer = lists
    over = diff(document, newer)
    for at, element in enumerate(document):
        place = data.draw(st.integers(0, len(element["id"])))
        found = rebase([splice(f"/{at}/id", place, 0, "🔑")], over, newer)
        there = [each["id"] for each in newer]
        assert found.is_lost == (element["id"] not in there)
        if not found.is_lost:
            assert found.ops == [splice(f"/{there.index(element['id'])}/id", place, 0, "🔑")]
