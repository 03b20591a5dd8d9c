"""The smallest change of texts, which is most likely what somebody did where only whole states are known."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

from plait_schemas.patch import Op, Owned, apply, find, parse, region_of, splices
from plait_schemas.text import Region

__all__ = ["shrink"]

_MOST_COMPARED: Final = 1_000_000
"""Splices that in all remove so many characters times what they insert are compared by characters."""


def shrink(ops: Iterable[Op], document: Any) -> list[Op]:
    """Return a difference, as `diff` finds it from `document` on, whose splices leave all characters that may stay."""
    left = _MOST_COMPARED
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
            region = at + shift, remove, insert
            shift += remove - len(insert)
            cost = remove * len(insert)
            if 0 < cost <= left:
                left -= cost
                regions += _smallest(text, region)
            else:
                regions.append(region)
        found += splices(path, regions)
    return found


def _text_path(op: Op) -> str | None:
    return op.path if op.op == "splice" else None


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
