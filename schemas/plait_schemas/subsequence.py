"""The longest part that two sequences have in common, in order."""

from collections.abc import Hashable, Sequence

__all__ = ["longest_common"]


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
