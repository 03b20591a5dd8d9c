"""Longest subsequences: common to two sequences, or in order by both numbers of pairs."""

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from operator import lt

__all__ = ["find_increasing", "longest_common"]


def longest_common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the places, in both sequences, of the elements of a longest common subsequence.

    The time depends only on the lengths of the sequences: each row is computed at once, as the bits of an integer
    (Hyyrö 2004).
    """
    rows = _rows(old, new)
    found: list[tuple[int, int]] = []
    at = to = 0
    bit = len(new) - 1
    while at < len(old) and to < len(new):
        if old[at] == new[to]:
            found.append((at, to))
            at += 1
            to += 1
        elif rows[at] >> (bit - to) & 1:
            to += 1
        else:
            at += 1
    return found


def _rows(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[int]:
    """Return, for each place in the old sequence, the bits of the places in the new one.

    A bit is 0 if the new element makes the longest common subsequence of the rests of both sequences longer. The last
    element has the lowest bit.
    """
    bits: dict[Hashable, int] = {}
    for bit, element in enumerate(reversed(new)):
        bits[element] = bits.get(element, 0) | 1 << bit
    every = row = (1 << len(new)) - 1
    rows: list[int] = []
    for element in reversed(old):
        if (places := bits.get(element)) is not None:
            same = row & places
            row = ((row + same) | (row - same)) & every
        rows.append(row)
    return rows[::-1]


def find_increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a longest subsequence of pairs, sorted by their first, that is also sorted by their second."""
    places = [place for _, place in pairs]
    if all(map(lt, places, places[1:])):
        return pairs
    # For each length, the least place at which a sequence of that length can end, and the pair there.
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    top = top_at = -1
    for at, place in enumerate(places):
        if place > top:
            before.append(top_at)
            ends.append(place)
            last.append(at)
            top, top_at = place, at
        else:
            length = bisect_left(ends, place)
            before.append(last[length - 1] if length else -1)
            ends[length], last[length] = place, at
            top, top_at = ends[-1], last[-1]
    found: list[tuple[int, int]] = []
    at = last[-1] if last else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]
