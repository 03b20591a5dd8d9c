"""Differences between two texts, as places in both."""

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["Same", "Span", "find_between", "join", "join_nearest", "shift", "trim"]

Span = tuple[int, int, int, int]
"""A difference: its start and end in the old text, and its start and end in the new one."""

Same = tuple[int, int, int]
"""An equal part: its start in the old text, its start in the new one, and its length."""


def find_between(old: str, new: str, same: Sequence[Same]) -> list[Span]:
    """Return the differences between equal parts, without the common beginning and end of each."""
    found: list[Span] = []
    last = to = 0
    for place, new_place, length in (*same, (len(old), len(new), 0)):
        gone, come = old[last:place], new[to:new_place]
        if gone != come:
            found += shift([trim(gone, come)], last, to)
        last, to = place + length, new_place + length
    return found


def shift(spans: Sequence[Span], at: int, to: int) -> list[Span]:
    """Convert spans of two parts, which begin at `at` and `to`, to spans of the whole texts."""
    return [(at + start, at + end, to + new_start, to + new_end) for start, end, new_start, new_end in spans]


def join(spans: Sequence[Span]) -> list[Span]:
    """Join neighbouring spans if the text between them is shorter than either of them.

    Spans that both only insert, or both only remove, are not joined: that would rewrite the text between them.
    """
    found: list[Span] = []
    for span in spans:
        found.append(span)
        while len(found) > 1:
            (at, end, to, new_end), (other, other_end, other_to, other_new_end) = found[-2:]
            is_one_kind = (at == end and other == other_end) or (to == new_end and other_to == other_new_end)
            sizes = max(end - at, new_end - to), max(other_end - other, other_new_end - other_to)
            if is_one_kind or other - end >= min(sizes):
                break
            found[-2:] = [(at, other_end, to, other_new_end)]
    return found


def join_nearest(spans: list[Span], most: int) -> list[Span]:
    """Return at most `most` spans, by joining those that are nearest to each other."""
    if len(spans) <= most:
        return spans
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    joined = set(sorted(range(len(gaps)), key=gaps.__getitem__)[: len(spans) - most])
    found = [spans[0]]
    for index, span in enumerate(spans[1:]):
        if index in joined:
            at, _, to, _ = found[-1]
            found[-1] = (at, span[1], to, span[3])
        else:
            found.append(span)
    return found


# Common ends


def trim(old: str, new: str) -> Span:
    """Return the difference between the common beginning and the common end of two texts."""
    most = min(len(old), len(new))
    start = _count_common(old, new, most)
    # The common end may not overlap the common beginning.
    tail = _count_common(old[::-1], new[::-1], most - start)
    return start, len(old) - tail, start, len(new) - tail


def _count_common(old: str, new: str, most: int) -> int:
    """Return the length of the common beginning, up to `most`."""
    low, high = 0, most
    if old[:high] == new[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle
    return low
