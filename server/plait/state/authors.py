"""Finds the author of each part of a text, by going back in the log."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

from plait.errors import Conflict, NotFound
from plait.state.budget import Budget
from plait.state.change_log import ChangeLog
from plait.state.undone import DecodedChange, drop_undone, parse_taken_back
from plait.store.thread_rows import ChangeRow
from plait_schemas.patch import PatchError, decode_ops, find, parse
from plait_schemas.shape import Shape
from plait_schemas.step import Step, is_pair
from plait_schemas.text import Region
from plait_schemas.trace import go_back

__all__ = ["Stretch", "find_authors"]

# The maximum number of changes that are searched, and of bytes of their operations.
_REACH: Final = 10_000
_REACH_SIZE: Final = 4 * 1024 * 1024
# Operations and parts of the text to look at before other tasks may run, and in total.
_AT_ONCE: Final = 2_000
_MOST_STEPS: Final = 1_000_000


class Stretch(NamedTuple):
    """A part of a text, from `start` up to `end`, and its author; None if the log does not contain the author."""

    source: str | None
    start: int
    end: int


async def find_authors(change_log: ChangeLog, version: int, pointer: str) -> list[Stretch]:
    """Return the authors of the text at a JSON pointer in a version, in order of its parts.

    Undone changes and their undos are ignored. Raises Conflict if there is no text, NotFound, and StoreError.
    """
    document = await change_log.document(version)
    try:
        place = parse(pointer)
    except PatchError as error:
        raise Conflict(str(error), path=pointer) from None
    text = find(document, place)
    if not isinstance(text, str):
        raise Conflict("there is no text", path=pointer)
    search = _Search(document, place, len(text))
    for change in reversed(await _read(change_log, version)):
        await search.go_back(change)
        if search.is_done:
            break
    return search.stretches()


async def _read(change_log: ChangeLog, version: int) -> list[DecodedChange]:
    """Return the changes up to a version that are in reach, in order."""
    rows: list[ChangeRow] = []
    size, before = 0, version + 1
    while len(rows) < _REACH and size < _REACH_SIZE and (more := await change_log.before(before)):
        rows += more
        size += sum(len(row.ops) for row in more)
        before = rows[-1].version
    rows.reverse()
    if any(parse_taken_back(row.source) is not None for row in rows):
        try:
            return drop_undone(await change_log.document(before - 1), rows, Budget())
        except (Conflict, NotFound, PatchError):
            pass  # It would take too long: a text that an undo restored then counts as written by the undo's author.
    return [DecodedChange(row.version, row.source, decode_ops(row.ops)) for row in rows]


class _Search:
    """Follows the parts of a text back through earlier versions, until their authors are found."""

    def __init__(self, document: Any, place: list[str], length: int) -> None:
        self._shape = Shape(document)
        self._place: list[str] | None = place
        # The parts without a known author, in order: their places in the earlier version that the search has reached,
        # their places in the given version, and their lengths.
        self._open: list[tuple[int, int, int]] = [(0, 0, length)] if length else []
        self._found: list[Stretch] = []
        # The number of operations and parts seen so far, and the number at which other tasks may run next.
        self._steps = 0
        self._next_pause = 0

    @property
    def is_done(self) -> bool:
        """Whether all authors are found, or the search has taken too long."""
        return not self._open or self._steps > _MOST_STEPS

    def stretches(self) -> list[Stretch]:
        """Return the parts with their authors, in order; neighbours with the same author are joined."""
        unknown = (Stretch(None, at, at + length) for _, at, length in self._open)
        found: list[Stretch] = []
        for each in sorted((*self._found, *unknown), key=lambda stretch: stretch.start):
            if found and found[-1].source == each.source:
                found[-1] = found[-1]._replace(end=each.end)
            else:
                found.append(each)
        return found

    async def go_back(self, change: DecodedChange) -> None:
        """Go back to the version before a change."""
        taken = parse_taken_back(change.source)
        source = change.source if taken is None else taken.source
        steps = [Step(op) for op in change.ops]
        index = len(steps)
        while index and self._place is not None and not self.is_done:
            if self._steps >= self._next_pause:
                await asyncio.sleep(0)
                self._next_pause = self._steps + _AT_ONCE
            self._steps += 1
            index -= 1
            step = steps[index]
            step.look_up(self._shape, has_happened=True)
            if step.is_moved and index and is_pair(steps[index - 1], step):
                index -= 1
                self._shape.undo_move(steps[index].parts, step.parts)
                self._place = go_back(self._place, steps[index : index + 2])
            else:
                self._shape.undo(step.name, step.parts)
                self._go_back_one(step, self._place, source)

    def _go_back_one(self, step: Step, place: list[str], source: str) -> None:
        if step.name == "splice":
            if step.parts == place:
                self._take_back(step.regions[0], source)
            return
        is_around = place[: len(step.parts)] == step.parts
        self._place = go_back(place, [step])
        if self._place is None or (is_around and not step.moves):
            # If the whole state was replaced, the log does not contain the texts before.
            whose = source if step.parts or not place else None
            self._close((at, length, whose) for _, at, length in self._open)
            self._open, self._place = [], None

    def _take_back(self, region: Region, source: str) -> None:
        """Go back to the text before a removal and an insertion."""
        start, removed, insert = region
        end = start + len(insert)
        # Parts that end before the insertion stay at their places.
        first = bisect_right(self._open, start, key=lambda part: part[0] + part[2])
        still: list[tuple[int, int, int]] = []
        for now, at, length in islice(self._open, first, None):
            before = max(min(start - now, length), 0)
            inside = max(min(end - now, length), 0) - before
            after = length - before - inside
            if before:
                still.append((now, at, before))
            if inside:
                self._close([(at + before, inside, source)])
            if after:
                still.append((now + before + inside - len(insert) + removed, at + before + inside, after))
        self._steps += len(self._open) - first
        self._open[first:] = still

    def _close(self, parts: Iterable[tuple[int, int, str | None]]) -> None:
        self._found += (Stretch(source, at, at + length) for at, length, source in parts)
