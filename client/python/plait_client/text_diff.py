"""The change of texts that somebody has most likely made, where only whole states are known."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

from plait_schemas.align import increasing
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
"""And it is no more than so many times as long now for each of its frequent letters.

A longer text has those of any short one, and the sooner, the fewer there are.
"""

_FREQUENT: Final = 0.9
"""So much of a text its frequent letters make up: others, which are in it once or twice, tell nothing."""

_MOST_PLACES: Final = 250
"""And others have typed in no more than so many places of it: an own change around all of them can be rebased."""

_COST_PER_CHARACTER: Final = 10
"""What a character of a splice costs at least, however few it removes or inserts."""


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

    def allows(self, cost: int, is_long: bool) -> bool:
        """Tell whether the comparison of a splice can be paid."""
        return cost <= self._left[is_long]

    def pay(self, cost: int, is_long: bool) -> None:
        self._left[is_long] -= cost


def _finer(text: str, region: Region, budget: _Budget) -> list[Region]:
    """Return what a region changes without the characters that stay, if it is known that they are the same ones."""
    at, remove, insert = region
    is_long = remove * len(insert) > _FEW_COMPARED
    cost = max(remove * len(insert), _COST_PER_CHARACTER * (remove + len(insert)))
    if not remove or not insert or not budget.allows(cost, is_long) or (is_long and not _may_stay(region)):
        return [region]
    budget.pay(cost, is_long)
    found = list(_smallest(text[at : at + remove], insert, at))
    removed = sum(each for _, each, _ in found)
    is_anew = removed > (1 - _STAYS) * remove or len(found) > _MOST_PLACES
    return [region] if is_long and is_anew else found


def _may_stay(region: Region) -> bool:
    """Tell whether a text has the length of one that others have typed in."""
    _, remove, insert = region
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
    for place, new_place in [*_common_once(old, new), (len(old), len(new))]:
        yield from _smallest_between(old[last:place], new[last_new:new_place], start + last)
        last, last_new = place + 1, new_place + 1


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


def _smallest_between(old: str, new: str, start: int) -> Iterator[Region]:
    if not old or not new:
        if old or new:
            yield start, len(old), new
        return
    rows = _common_rows(old, new)
    at = to = last = last_to = 0
    # How long a longest common subsequence of what is left is, and without the next character of the old text.
    length, below = rows[0].count("0"), rows[1].count("0")
    while at < len(old) or to < len(new):
        if at < len(old) and to < len(new) and old[at] == new[to]:
            if at > last or to > last_to:
                yield start + last, at - last, new[last_to:to]
            length = below - (rows[at + 1][to] == "0")
            last, last_to = at, to = at + 1, to + 1
            below = rows[at + 1].count("0", to)
        elif to == len(new) or (at < len(old) and below >= length - (rows[at][to] == "0")):
            length, at = below, at + 1
            below = rows[at + 1].count("0", to)
        else:
            length -= rows[at][to] == "0"
            below -= rows[at + 1][to] == "0"
            to += 1
    if at > last or to > last_to:
        yield start + last, at - last, new[last_to:to]


def _common_rows(old: str, new: str) -> list[str]:
    """Return, for each place in the old text, a "0" for some places in the new one, and a "1" for all others.

    So many of the first as there are from a place on, so long is a longest common subsequence of what is left of both
    texts there. All places of a row are found at once, as the bits of an integer (Hyyrö 2004).
    """
    places = {letter: bytearray(b"0" * len(new)) for letter in set(old) & set(new)}
    for to, letter in enumerate(new):
        if letter in places:
            places[letter][to] = ord("1")
    bits = {letter: int(found, 2) for letter, found in places.items()}
    every = row = (1 << len(new)) - 1
    # There is a row more after the last character, so that there is one after each.
    rows = ["1" * len(new)] * 2
    for letter in reversed(old):
        if letter in bits:
            same = row & bits[letter]
            row = ((row + same) | (row - same)) & every
            rows.append(f"{row:0{len(new)}b}")
        else:
            rows.append(rows[-1])
    return rows[::-1]
