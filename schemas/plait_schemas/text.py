"""Changes inside a text: lists of regions, how they are carried out, taken back, composed and brought past others.

A region is a place in the text, how many characters are removed from there on, and what is inserted there, before the
place of what is removed. Characters are Unicode code points. The regions of one change are all counted on the text
before it, are in order and do not overlap.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from sys import maxsize
from typing import Final

__all__ = ["UNKNOWN", "Region", "compose", "goes_on", "in_order", "invert", "spliced", "transform", "transform_both"]

Region = tuple[int, int, str]
"""Where it is, how many characters are removed, and what is inserted."""

UNKNOWN: Final = "\ud800"
"""Stands for a character that is not known: half a surrogate pair, which is in no text."""

_Piece = tuple[int, int, str | None]
"""From where to where a text reaches, of one that was inserted, or without that of the text that was there before."""


def spliced(text: str, regions: Sequence[Region]) -> str:
    """Return a text with a change carried out on it."""
    if len(regions) == 1:
        # As letters come. CPython appends in place to a string that nothing else refers to, which copies least.
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
    """Tell whether another change leaves the character before the place where mine inserts."""
    before = next((at for at, _, insert in mine if insert), 0) - 1
    return not any(at <= before < at + removed for at, removed, _ in other)


def transform_both(
    mine: Sequence[Region], other: Sequence[Region], *, yields: bool = True
) -> tuple[Sequence[Region], Sequence[Region]]:
    """Return both of two changes that were made on the same text as they are after the other.

    Of two insertions at one place, mine comes after the other's if it `yields`, else before.
    """
    if len(mine) == len(other) == 1:
        # Letters that are typed are hardly ever where others type.
        # A region that does nothing is left out, below.
        (at, remove, insert), (start, removed, inserted) = mine[0], other[0]
        does_both = (remove or insert) and (removed or inserted)
        if does_both and at + remove < start:
            return mine, ((start + len(insert) - remove, removed, inserted),)
        if does_both and start + removed < at:
            return ((at + len(inserted) - removed, remove, insert),), other
    return transform(mine, other, yields=yields), transform(other, mine, yields=not yields)


def in_order(regions: Sequence[Region]) -> Iterator[Region]:
    """Yield the regions of a change as changes of their own, each of which is carried out after those before it."""
    shift = 0
    for at, remove, insert in regions:
        yield at + shift, remove, insert
        shift += len(insert) - remove


def invert(text: str, regions: Sequence[Region]) -> list[Region]:
    """Return what leads back to a text from what a change makes of it."""
    inverse: list[Region] = []
    for (at, remove, insert), (now, _, _) in zip(regions, in_order(regions), strict=True):
        _add(inverse, now, len(insert), text[at : at + remove])
    return inverse


def compose(first: Sequence[Region], second: Sequence[Region]) -> list[Region]:
    """Return one change that does what two do, one after the other."""
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
    """Return a change as it is after another that was made on the same text.

    What both remove is removed once, and what either inserts stays, also where the other removes the text around it.
    Of two insertions at one place, mine comes after the other's if it `yields`.
    """
    if not mine or not other or _end(mine) < other[0][0]:
        return list(mine)
    if _end(other) < mine[0][0]:
        shift = sum(len(inserted) - removed for _, removed, inserted in other)
        return [(at + shift, remove, insert) for at, remove, insert in mine]
    # What is before the first of the others stays as it is.
    index = max(bisect_left(mine, other[0][0], key=_place) - 1, 0)
    found = list(mine[:index])
    past = _Past(other)
    for at, remove, insert in islice(mine, index, None):
        if past.has_all:
            break
        index += 1
        _add(found, past.find_place(at, yields=yields), 0, insert)
        for start, count in past.find_rest(at, at + remove):
            _add(found, start, count, "")
    for at, remove, insert in islice(mine, index, index + 1):
        _add(found, at + past.shift, remove, insert)
    found += [(at + past.shift, remove, insert) for at, remove, insert in islice(mine, index + 1, None)]
    return found


# Inside


class _Past:
    """Those regions of another change that are before a place, which goes from the start of the text to its end."""

    __slots__ = ("_count", "_regions", "shift")

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions = regions
        self._count = 0
        # How far they move what is after them.
        self.shift = 0

    @property
    def has_all(self) -> bool:
        return self._count == len(self._regions)

    def find_place(self, at: int, *, yields: bool) -> int:
        """Return where what is inserted at a place comes, after what the other inserts there if it `yields`."""
        while not self.has_all:
            start, removed, inserted = self._regions[self._count]
            if start > at or (start == at and not yields):
                break
            if start + removed > at:
                return start + self.shift + len(inserted)
            self._go_on()
        return at + self.shift

    def find_rest(self, at: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield where the other has left something from `at` to `end`, and how much."""
        while at < end:
            start, removed, _ = (end, 0, "") if self.has_all else self._regions[self._count]
            if start > at:
                yield at + self.shift, min(start, end) - at
            if start >= end or start + removed > end:
                break
            at = start + removed
            self._go_on()

    def _go_on(self) -> None:
        _, removed, inserted = self._regions[self._count]
        self.shift += len(inserted) - removed
        self._count += 1


def _place(region: Region) -> int:
    return region[0]


def _end(regions: Sequence[Region]) -> int:
    at, remove, _ = regions[-1]
    return at + remove


def _add(regions: list[Region], at: int, remove: int, insert: str) -> None:
    """Append a region that comes after all others, as part of the last one where that is the same."""
    if not remove and not insert:
        return
    if regions:
        last, removed, inserted = regions[-1]
        if last + removed == at and not (removed and insert):
            regions[-1] = (last, removed + remove, inserted + insert)
            return
    regions.append((at, remove, insert))


def _pieces(regions: Sequence[Region]) -> Iterator[_Piece]:
    """Yield what a text is made of after a change."""
    end = 0
    for at, remove, insert in regions:
        yield end, at, None
        yield 0, len(insert), insert
        end = at + remove
    yield end, maxsize, None


def _take(waiting: list[_Piece], count: int) -> list[_Piece]:
    """Take so many characters off the end of a list of pieces, which is in reverse."""
    taken: list[_Piece] = []
    while count:
        start, end, text = waiting.pop()
        if end - start > count:
            waiting.append((start + count, end, text))
            end = start + count
        taken.append((start, end, text))
        count -= end - start
    return taken
