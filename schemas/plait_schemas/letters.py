"""The smallest change between two texts: the most likely edit when only its result is known."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from plait_schemas.subsequence import find_increasing, longest_common
from plait_schemas.text import Region

__all__ = ["Letters"]

_FEW_COMPARED: Final = 10_000
"""A region is long if the characters that it removes, times those that it inserts, are more than this."""

_MOST_COMPARED: Final = 1_000_000
"""The budget for comparing all short regions, and the same for all long ones."""

_STAYS: Final = 0.95
"""A long region counts as typing only if at least this share of the text stays; otherwise the text was rewritten."""

_GROWTH_PER_LETTER: Final = 0.25
"""And only if the text grows by no more than this factor for each of its frequent letters.

A much longer text contains the letters of any short one by chance, the more likely the fewer different letters it has.
"""

_FREQUENT: Final = 0.9
"""The frequent letters make up this share of a text; the rare ones say nothing about it."""

_MOST_PLACES: Final = 250
"""And only if it changes no more than this many places, so that a change around all of them can still be rebased."""

_COST_PER_CHARACTER: Final = 10
"""The least that each character of a region costs, however few characters are removed or inserted."""


class Letters:
    """Compares regions by characters, with a budget for all of them."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        # The budget that is left, for short and for long regions.
        self._left = [_MOST_COMPARED, _MOST_COMPARED]

    def takes_all(self, remove: int, insert: int) -> bool:
        """Tell whether a whole region is compared by characters, without regard to words."""
        return remove * insert <= _FEW_COMPARED and self._left[False] > 0

    def refine(self, text: str, region: Region) -> list[Region]:
        """Split a region around the characters that stay; return it unsplit if the text was rewritten."""
        at, remove, insert = region
        is_long = remove * len(insert) > _FEW_COMPARED
        cost = max(remove * len(insert), _COST_PER_CHARACTER * (remove + len(insert)))
        if not remove or not insert or cost > self._left[is_long] or (is_long and not _may_stay(remove, insert)):
            return [region]
        self._left[is_long] -= cost
        found = list(_smallest(text[at : at + remove], insert, at))
        removed = sum(each for _, each, _ in found)
        is_anew = removed > (1 - _STAYS) * remove or len(found) > _MOST_PLACES
        return [region] if is_long and is_anew else found


def _may_stay(remove: int, insert: str) -> bool:
    """Tell whether the lengths of two texts allow that the second is the first, with characters typed into it."""
    if len(insert) < _STAYS * remove:
        return False
    letters = made = 0
    for _, count in Counter(insert).most_common():
        if made >= _FREQUENT * len(insert):
            break
        made += count
        letters += 1
    return len(insert) <= _GROWTH_PER_LETTER * letters * remove


def _smallest(old: str, new: str, start: int) -> Iterator[Region]:
    """Yield the regions that turn one text, which begins at `start`, into another, so that the most characters stay.

    Characters that each text has once are matched first: repeated ones, such as accents, may match by chance.
    """
    last = last_new = 0
    for place, new_place in (*_find_same(old, new), (len(old), len(new))):
        if place > last or new_place > last_new:
            yield start + last, place - last, new[last_new:new_place]
        last, last_new = place + 1, new_place + 1


def _find_same(old: str, new: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the characters that stay, in both texts."""
    at = to = 0
    for end, new_end in (*_common_once(old, new), (len(old), len(new))):
        for place, new_place in longest_common(old[at:end], new[to:new_end]):
            yield at + place, to + new_place
        if end < len(old):
            yield end, new_end
        at, to = end + 1, new_end + 1


def _common_once(old: str, new: str) -> list[tuple[int, int]]:
    """Return the places of characters that each of two texts has once, the most that are in the same order."""
    counts, new_counts = Counter(old), Counter(new)
    return find_increasing(
        [
            (place, new.index(letter))
            for place, letter in enumerate(old)
            if counts[letter] == 1 and new_counts[letter] == 1
        ]
    )
