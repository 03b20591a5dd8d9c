"""The smallest change of a text, which somebody has most likely made where only its result is known."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from plait_schemas.align import increasing
from plait_schemas.subsequence import longest_common
from plait_schemas.text import Region

__all__ = ["Letters"]

_FEW_COMPARED: Final = 10_000
"""A region that removes more characters, times what it inserts, is a long one."""

_MOST_COMPARED: Final = 1_000_000
"""So many are compared of all short regions, and of all long ones."""

_STAYS: Final = 0.95
"""A long region counts as typing only if so much of the text stays; otherwise it was rewritten."""

_GROWTH_PER_LETTER: Final = 0.25
"""And only if the text is no more than so many times as long now for each of its frequent letters.

A longer text has those of any short one, and the sooner, the fewer there are.
"""

_FREQUENT: Final = 0.9
"""So much of a text its frequent letters make up: others, which are in it once or twice, tell nothing."""

_MOST_PLACES: Final = 250
"""And only if it is typed in no more than so many places: an own change around all of them can be rebased."""

_COST_PER_CHARACTER: Final = 10
"""What a character of a region costs at least, however few it removes or inserts."""


class Letters:
    """Compares regions by characters, with a budget for all of them."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        # For short and for long regions.
        self._left = [_MOST_COMPARED, _MOST_COMPARED]

    def takes_all(self, remove: int, insert: int) -> bool:
        """Tell whether all of a region is compared by characters, whatever words it has."""
        return remove * insert <= _FEW_COMPARED and self._left[False] > 0

    def refine(self, text: str, region: Region) -> list[Region]:
        """Return what a region changes without the characters that stay, if it is known that they are the same ones."""
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
    """Tell whether a text has the length of one that others have typed in."""
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
    """Yield what turns one text, which begins at `start`, into another if as many characters stay as can.

    Those that each has once do so first: they are the same ones, which others, such as accents, only may be.
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
    """Return the places of as many as can stay of the characters that two texts have once."""
    counts, new_counts = Counter(old), Counter(new)
    return increasing(
        [
            (place, new.index(letter))
            for place, letter in enumerate(old)
            if counts[letter] == 1 and new_counts[letter] == 1
        ]
    )
