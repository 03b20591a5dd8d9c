"""Changes inside a text: lists of regions, which are applied, inverted, composed and transformed here.

A region is a place in the text, the number of characters that are removed after it, and the text that is inserted at
it, before the removed ones. Characters are Unicode code points. The places of all regions of a change are places in the
text before the change; regions are in order and do not overlap.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from sys import maxsize
from typing import Final

__all__ = ["UNKNOWN", "Region", "compose", "goes_on", "in_order", "invert", "spliced", "transform", "transform_both"]

Region = tuple[int, int, str]
"""The place, how many characters are removed, and the text that is inserted."""

UNKNOWN: Final = "\ud800"
"""Stands for an unknown character: half of a surrogate pair, which no text contains."""

_Piece = tuple[int, int, str | None]
"""The start and end of a part of an inserted text, or, if that is None, of the text before the change."""


def spliced(text: str, regions: Sequence[Region]) -> str:
    """Return a text after a change."""
    if len(regions) == 1:
        # The usual case. CPython appends in place to a string that nothing else refers to, which copies least.
        at, remove, insert = regions[0]
        result = text[:at]
        result += insert
        result += text[at + remove :]
        return result
    parts: list[str] = []
    end = 0
    for at, remove, insert in regions:
        parts += (text[end:at], insert)
        end = at + remove
    return "".join((*parts, text[end:]))


def goes_on(mine: Sequence[Region], other: Sequence[Region]) -> bool:
    """Tell whether another change keeps the character before the place where mine inserts."""
    before = next((at for at, _, insert in mine if insert), 0) - 1
    return not any(at <= before < at + removed for at, removed, _ in other)


def transform_both(
    mine: Sequence[Region], other: Sequence[Region], *, yields: bool = True
) -> tuple[Sequence[Region], Sequence[Region]]:
    """Transform two changes of the same text, so that each can be applied after the other.

    Of two insertions at one place, mine comes after the other's if it `yields`, else before.
    """
    if len(mine) == len(other) == 1:
        # People rarely type at the same place, so this is the usual case. Empty regions are dropped below.
        (at, remove, insert), (start, removed, inserted) = mine[0], other[0]
        does_both = (remove or insert) and (removed or inserted)
        if does_both and at + remove < start:
            return mine, ((start + len(insert) - remove, removed, inserted),)
        if does_both and start + removed < at:
            return ((at + len(inserted) - removed, remove, insert),), other
    return transform(mine, other, yields=yields), transform(other, mine, yields=not yields)


def in_order(regions: Sequence[Region]) -> Iterator[Region]:
    """Yield the regions of a change as separate changes, each at its place after the previous ones."""
    shift = 0
    for at, remove, insert in regions:
        yield at + shift, remove, insert
        shift += len(insert) - remove


def invert(text: str, regions: Sequence[Region]) -> list[Region]:
    """Return the change that leads back to `text` after `regions` were applied to it."""
    inverse: list[Region] = []
    for (at, remove, insert), (now, _, _) in zip(regions, in_order(regions), strict=True):
        _add(inverse, now, len(insert), text[at : at + remove])
    return inverse


def compose(first: Sequence[Region], second: Sequence[Region]) -> list[Region]:
    """Return one change that has the effect of two changes in sequence."""
    waiting = list(_pieces(first))[::-1]
    pieces: list[_Piece] = []
    end = 0
    for at, remove, insert in second:
        pieces += _take(waiting, at - end)
        pieces.append((0, len(insert), insert))
        _take(waiting, remove)
        end = at + remove
    found: list[Region] = []
    inserted: list[str] = []
    end = 0
    for start, stop, text in (*pieces, *reversed(waiting)):
        if text is None:
            _add(found, end, start - end, "".join(inserted))
            inserted, end = [], stop
        else:
            inserted.append(text[start:stop])
    return found


def transform(mine: Sequence[Region], other: Sequence[Region], *, yields: bool) -> list[Region]:
    """Transform a change so that it can be applied after another one of the same text.

    Characters that both remove are removed once. An insertion stays, even if the other change removes the text around
    it. Of two insertions at one place, mine comes after the other's if it `yields`.
    """
    if not mine or not other or _end(mine) < other[0][0]:
        return list(mine)
    if _end(other) < mine[0][0]:
        shift = sum(len(inserted) - removed for _, removed, inserted in other)
        return [(at + shift, remove, insert) for at, remove, insert in mine]
    # Regions before the first one of the other change stay as they are.
    index = max(bisect_left(mine, other[0][0], key=_place) - 1, 0)
    found = list(mine[:index])
    cursor = _Cursor(other)
    for at, remove, insert in islice(mine, index, None):
        if cursor.is_at_end:
            break
        index += 1
        _add(found, cursor.find_place(at, yields=yields), 0, insert)
        for start, count in cursor.find_rest(at, at + remove):
            _add(found, start, count, "")
    for at, remove, insert in islice(mine, index, index + 1):
        _add(found, at + cursor.shift, remove, insert)
    found += [(at + cursor.shift, remove, insert) for at, remove, insert in islice(mine, index + 1, None)]
    return found


# Inside


class _Cursor:
    """Goes through the regions of another change, and counts how far those before it move the text."""

    __slots__ = ("_count", "_regions", "shift")

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = regions
        self._count = 0
        # How far the regions before the cursor move the text after them.
        self.shift = 0

    @property
    def is_at_end(self) -> bool:
        return self._count == len(self._regions)

    def find_place(self, at: int, *, yields: bool) -> int:
        """Return where an insertion at `at` goes; if it `yields`, that is after the other change's insertion there."""
        while not self.is_at_end:
            start, removed, inserted = self._regions[self._count]
            if start > at or (start == at and not yields):
                break
            if start + removed > at:
                return start + self.shift + len(inserted)
            self._advance()
        return at + self.shift

    def find_rest(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the places and lengths of the parts that the other change has left from `at` to `end`."""
        while at < end:
            start, removed, _ = (end, 0, "") if self.is_at_end else self._regions[self._count]
            if start > at:
                yield at + self.shift, min(start, end) - at
            if start >= end or start + removed > end:
                break
            at = start + removed
            self._advance()

    def _advance(self) -> None:
        _, removed, inserted = self._regions[self._count]
        self.shift += len(inserted) - removed
        self._count += 1


def _place(region: Region) -> int:
    return region[0]


def _end(regions: Sequence[Region]) -> int:
    at, remove, _ = regions[-1]
    return at + remove


def _add(regions: list[Region], at: int, remove: int, insert: str) -> None:
    """Append a region that comes after all others, or add it to the last one if that has the same effect."""
    if not remove and not insert:
        return
    if regions:
        last, removed, inserted = regions[-1]
        if last + removed == at and not (removed and insert):
            regions[-1] = (last, removed + remove, inserted + insert)
            return
    regions.append((at, remove, insert))


def _pieces(regions: Sequence[Region]) -> Iterator[_Piece]:
    """Yield the pieces that make up a text after a change."""
    end = 0
    for at, remove, insert in regions:
        yield end, at, None
        yield 0, len(insert), insert
        end = at + remove
    yield end, maxsize, None


def _take(waiting: list[_Piece], count: int) -> list[_Piece]:
    """Take the first `count` characters from a list of pieces, which is in reverse order."""
    taken: list[_Piece] = []
    while count:
        start, end, text = waiting.pop()
        if end - start > count:
            waiting.append((start + count, end, text))
            end = start + count
        taken.append((start, end, text))
        count -= end - start
    return taken
