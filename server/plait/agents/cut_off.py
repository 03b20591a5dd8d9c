"""Marks threads with long runs that have not ended, so that the next run finds the mark after a shutdown or a crash."""

import asyncio
from contextlib import suppress
from contextvars import Context
from itertools import islice
from typing import Final

from plait.actor.thread import ThreadActor
from plait.errors import PlaitError
from plait.parts.stage import Draft, Stage
from plait.store.thread_rows import Record

__all__ = ["MARK", "Mark", "Marks"]

MARK: Final = ("agents", "cut-off")
"""The part and the key of the record."""

_MARKED: Final = Record(*MARK, b"{}")
_NOT_MARKED: Final = Record(*MARK, None)

# Seconds after which the thread of a run is marked: most runs end earlier, and cost no write.
_DELAY: Final = 0.1
# Maximum number of threads that are marked in one iteration of the loop.
_AT_ONCE: Final = 64


class Marks:
    """Marks threads whose runs take long, with one timer for all of them."""

    def __init__(self) -> None:
        # The threads to mark, and their times, in order of time.
        self.due: dict[Mark, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the timer, unless it is set or there are no threads to mark."""
        if self._timer is None and self.due:
            # An empty context: the timer belongs to no run.
            self._timer = loop.call_at(next(iter(self.due.values())), self._fire, loop, context=Context())

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now = None, loop.time()
        for mark in [each for each, time in islice(self.due.items(), _AT_ONCE) if time <= now]:
            del self.due[mark]
            mark.write()
        self.arm(loop)


class Mark:
    """The mark of one thread. The last writes of a run and the removal of the mark are stored as one."""

    __slots__ = ("_actor", "_is_stored", "_marks", "is_untold")

    def __init__(self, actor: ThreadActor, marks: Marks) -> None:
        self._actor = actor
        self._marks = marks
        # Whether the record is or may be stored; None if that is not known.
        self._is_stored: bool | None = None
        # Whether a run was cut off and no later run has been told and has ended.
        self.is_untold = False

    async def begin(self) -> bool:
        """Mark the thread if the run takes long; return whether one was cut off before. Raises StoreError."""
        if self._is_stored is None:
            self._is_stored = self.is_untold = await self._actor.records.read(*MARK) is not None
        if not self._is_stored:
            loop = asyncio.get_running_loop()
            self._marks.due[self] = loop.time() + _DELAY
            self._marks.arm(loop)
        return self.is_untold

    def write(self) -> None:
        """Store the mark."""
        with suppress(PlaitError):  # The thread has ended.
            self._actor.records.write([_MARKED])
            self._is_stored = True

    def end(self, stage: Stage, *, is_cut_off: bool) -> None:
        """Remove the mark with the last writes of a run, or make sure that it is stored if the run was cut off."""
        self._marks.due.pop(self, None)
        self.is_untold = is_cut_off
        if is_cut_off or self._is_stored:
            stage.drafts[MARK] = _Draft(self, _MARKED if is_cut_off else _NOT_MARKED)

    def store(self, record: Record) -> None:
        """Store the mark, or remove it. Raises what `Pipeline.store` raises."""
        commit = self._actor.records.write([record])
        self._is_stored = record is _MARKED
        commit.then(self._finish)

    def leave(self, *, is_last: bool) -> None:
        """Remove the mark if the run could not, and is the last one; otherwise the next run removes it when it ends."""
        self._marks.due.pop(self, None)
        if is_last and self._is_stored and not self.is_untold and self._actor.state.history.is_begun:
            with suppress(PlaitError):  # The thread has been stopped, or has ended.
                self.store(_NOT_MARKED)

    def _finish(self, error: PlaitError | None) -> None:
        if error is not None:
            self._is_stored = True  # The record may be stored.


class _Draft(Draft):
    """The part of a mark in a run's stage, which is stored with the run."""

    is_dirty = True

    def __init__(self, mark: Mark, record: Record) -> None:
        self._mark = mark
        self._record = record

    def write(self) -> None:
        self._mark.store(self._record)
        self.is_dirty = False

    def drop(self) -> None:
        self.is_dirty = False
