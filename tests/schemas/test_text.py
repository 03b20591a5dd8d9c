"""Changes inside a text, compared with a text in which each character has a name."""

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait_schemas.text import Region, compose, in_order, invert, spliced, transform, transform_both

Draw = Callable[[st.SearchStrategy[Any]], Any]

CHARACTERS = st.sampled_from(["a", "b", " ", "\n", "é", "e\u0301", "🔑", "👩‍👧", "\u0301"])
TEXTS = st.lists(CHARACTERS, max_size=12).map("".join)


@st.composite
def changes(draw: Draw, text: str) -> list[Region]:
    """Return a change of a text."""
    regions: list[Region] = []
    end = 0
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(end, len(text)))
        remove = draw(st.integers(0, min(3, len(text) - at)))
        insert = draw(TEXTS.map(lambda text: text[:3]))
        is_after = not regions or at > end or (remove == 0 and regions[-1][1] > 0 and insert)
        if is_after and (remove or insert):
            regions.append((at, remove, insert))
            end = at + remove
    return regions


@st.composite
def cases(draw: Draw) -> tuple[str, list[Region], list[Region]]:
    """Return a text, and what two sides do to it."""
    text = draw(TEXTS)
    return text, draw(changes(text)), draw(changes(text))


@st.composite
def chains(draw: Draw) -> tuple[str, list[Region], list[Region]]:
    """Return a text, changes of it, and changes of the result."""
    text = draw(TEXTS)
    first = draw(changes(text))
    return text, first, draw(changes(spliced(text, first)))


# A model: the places between characters, each with the insertions of both sides, and the removed characters.


def merged(text: str, first: Sequence[Region], second: Sequence[Region]) -> str:
    """Return the text with two changes that were made at once, what `first` inserts before what `second` does."""
    inserted = [[""] * (len(text) + 1) for _ in range(2)]
    removed: set[int] = set()
    for side, regions in enumerate((first, second)):
        for at, remove, insert in regions:
            inserted[side][at] += insert
            removed |= set(range(at, at + remove))
    found = ""
    for at in range(len(text) + 1):
        found += inserted[0][at] + inserted[1][at]
        found += text[at] if at < len(text) and at not in removed else ""
    return found


@given(cases())
def test_two_changes_lead_both_ways_to_the_text_with_all_that_either_inserted_and_none_that_either_removed(
    case: tuple[str, list[Region], list[Region]],
) -> None:
    text, first, second = case
    expected = merged(text, first, second)
    later, earlier = transform(second, first, yields=True), transform(first, second, yields=False)
    assert spliced(spliced(text, first), later) == expected
    assert spliced(spliced(text, second), earlier) == expected


@given(cases())
def test_a_transformed_change_is_in_order_and_has_no_regions_that_are_one(
    case: tuple[str, list[Region], list[Region]],
) -> None:
    text, first, second = case
    for yields in (False, True):
        found = transform(first, second, yields=yields)
        assert all(remove or insert for _, remove, insert in found)
        for (at, remove, _), (after, _, insert) in pairwise(found):
            assert at + remove < after or (at + remove == after and remove and insert)
        assert not found or found[-1][0] + found[-1][1] <= len(spliced(text, second))


def test_insertions_between_which_all_is_removed_are_one_and_so_are_removals_that_touch() -> None:
    assert transform([(1, 0, "a"), (3, 0, "b")], [(1, 2, "")], yields=True) == [(1, 0, "ab")]
    assert transform([(0, 1, ""), (2, 1, "")], [(1, 1, "")], yields=True) == [(0, 2, "")]


def test_two_single_regions_are_transformed_as_any_others_wherever_they_are() -> None:
    regions = [(at, remove, insert) for at in range(5) for remove in range(3) for insert in ("", "x", "yz")]
    for one, other in product(regions, repeat=2):
        both = [*map(list, transform_both((one,), (other,)))]
        assert both == [transform((one,), (other,), yields=True), transform((other,), (one,), yields=False)]


@given(cases())
def test_regions_in_order_do_the_same_one_after_the_other(case: tuple[str, list[Region], list[Region]]) -> None:
    text, change, _ = case
    found = text
    for region in in_order(change):
        found = spliced(found, [region])
    assert found == spliced(text, change)


@given(cases())
def test_an_inverted_change_leads_back(case: tuple[str, list[Region], list[Region]]) -> None:
    text, change, _ = case
    assert spliced(spliced(text, change), invert(text, change)) == text


@given(chains())
def test_a_composed_change_does_what_both_do(case: tuple[str, list[Region], list[Region]]) -> None:
    text, first, second = case
    assert spliced(text, compose(first, second)) == spliced(spliced(text, first), second)


@given(chains())
def test_nothing_is_left_of_what_is_inserted_and_removed_again(case: tuple[str, list[Region], list[Region]]) -> None:
    text, change, _ = case
    insertions = [(at, 0, insert) for at, _, insert in change if insert]
    assert compose(insertions, invert(text, insertions)) == []


@each_case(
    ("text", "first", "second", "both"),
    [
        ("", [(0, 0, "a")], [(0, 0, "b")], "ab"),
        ("one word", [(4, 4, "cat")], [(4, 4, "dog")], "one catdog"),
        ("one word!", [(4, 4, "cat")], [(8, 0, "s")], "one cats!"),
        ("one word!", [(4, 4, "cat")], [(6, 0, "-")], "one cat-!"),
        ("abcdef", [(1, 4, "")], [(2, 2, "x")], "axf"),
        ("abcdef", [(1, 2, "")], [(2, 2, "")], "aef"),
        ("🔑🔑", [(1, 0, "a")], [(1, 1, "b")], "🔑ab"),
    ],
)
def test_two_who_change_one_text_at_once(text: str, first: list[Region], second: list[Region], both: str) -> None:
    assert spliced(spliced(text, first), transform(second, first, yields=True)) == both
    assert spliced(spliced(text, second), transform(first, second, yields=False)) == both
