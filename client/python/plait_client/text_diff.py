"""The smallest change of texts, which is most likely what somebody did where only whole states are known."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

from plait_schemas.patch import Op, Owned, apply, find, parse, region_of, splices
from plait_schemas.text import Region

__all__ = ["shrink"]

_FEW_COMPARED: Final = 10_000
"""A splice that removes more characters, times what it inserts, is a long one."""

_MOST_COMPARED: Final = 1_000_000
"""So many are compared of all short splices, and of all long ones."""

_STAYS: Final = 0.95
"""In a long one, so much stays at least of a text that others have typed in, and did not write anew."""

_GROWTH_PER_LETTER: Final = 0.25
"""And it is no more than so many times as long now for each different letter in it.

A longer text has those of any short one, and the sooner, the fewer there are.
"""

_MOST_PLACES: Final = 250
"""And others have typed in no more than so many places: an own change around all of them is to be rebased, too."""


def shrink(ops: Iterable[Op], document: Any) -> list[Op]:
    """Return a difference, as `diff` finds it from `document` on, whose splices leave all characters that may stay."""
    budget = _Budget()
    found: list[Op] = []
    owned: Owned = {}
    for path, run in groupby(ops, _text_path):
        if path is None:
            others = list(run)
            found += others
            # The texts after them may be in other places.
            document = apply(document, others, owned)
            continue
        text = find(document, parse(path))
        regions: list[Region] = []
        shift = 0
        for op in run:
            at, remove, insert = region_of(op)
            regions += _finer(text, (at + shift, remove, insert), budget)
            shift += remove - len(insert)
        found += splices(path, regions)
    return found


def _text_path(op: Op) -> str | None:
    return op.path if op.op == "splice" else None


class _Budget:
    """How much more may be compared by characters."""

    def __init__(self) -> None:
        # For short and for long splices.
        self._left = [_MOST_COMPARED, _MOST_COMPARED]

    def pay(self, cost: int) -> bool:
        """Return whether the comparison of a splice can be paid."""
        is_long = cost > _FEW_COMPARED
        if cost > self._left[is_long]:
            return False
        self._left[is_long] -= cost
        return True


def _finer(text: str, region: Region, budget: _Budget) -> list[Region]:
    """Return what a region changes without the characters that stay, if it is known that they are the same ones."""
    _, remove, insert = region
    cost = remove * len(insert)
    is_long = cost > _FEW_COMPARED
    if cost == 0 or (is_long and _has_grown_much(region)) or not budget.pay(cost):
        return [region]
    found = list(_smallest(text, region))
    removed = sum(each for _, each, _ in found)
    is_anew = removed > (1 - _STAYS) * remove or len(found) > _MOST_PLACES
    return [region] if is_long and is_anew else found


def _has_grown_much(region: Region) -> bool:
    _, remove, insert = region
    return len(insert) > _GROWTH_PER_LETTER * len(set(insert)) * remove


def _smallest(text: str, region: Region) -> Iterator[Region]:
    """Yield what a region changes if the characters of a longest common subsequence are left out."""
    at, remove, new = region
    old = text[at : at + remove]
    lengths = _common_lengths(old, new)
    place = to = 0
    start, begin = 0, 0
    while place < len(old) or to < len(new):
        if place < len(old) and to < len(new) and old[place] == new[to]:
            if place > start or to > begin:
                yield at + start, place - start, new[begin:to]
            place, to = place + 1, to + 1
            start, begin = place, to
        elif to == len(new) or (place < len(old) and lengths[place + 1][to] >= lengths[place][to + 1]):
            place += 1
        else:
            to += 1
    if place > start or to > begin:
        yield at + start, place - start, new[begin:to]


def _common_lengths(old: str, new: str) -> list[list[int]]:
    """Return how long a longest common subsequence is, from each pair of places on."""
    below = [0] * (len(new) + 1)
    rows = [below]
    for character in reversed(old):
        row = [0] * (len(new) + 1)
        for to in range(len(new) - 1, -1, -1):
            if character == new[to]:
                row[to] = below[to + 1] + 1
            else:
                row[to] = max(row[to + 1], below[to])
        rows.append(row)
        below = row
    return rows[::-1]
