"""The mark of a thread in which a run has begun and not ended; the next run finds it after a shutdown or a crash."""

from contextlib import suppress
from contextvars import Context
from typing import Final

from plait.actor.actor import Actor
from plait.errors import PlaitError
from plait.parts.stage import Stage
from plait.state.commit import Commit
from plait.store.protocol import Record

__all__ = ["MARK", "Mark", "is_marked"]

MARK: Final = ("agents", "cut-off")
"""The part and the key of the record."""

_MARKED: Final = (Record(*MARK, b"{}"),)

# Seconds after which a run is marked that has stored nothing in its thread: most runs end before, and cost no write.
_DELAY: Final = 0.1


class Mark:
    """Marks the thread of a run: with the first write in the thread after the run has begun, or when that takes long.

    So what a run has changed in its thread, and the mark, are durable together, as are what it stores last and the
    removal of the mark.
    """

    def __init__(self, core: Actor, *, is_stored: bool) -> None:
        self._core = core
        # Whether there is the mark, of this run or an earlier one, or will be if nothing fails.
        self.is_stored = is_stored
        self._is_over = self._is_removed = False
        core.pipeline.with_next = _MARKED
        # An empty context: the loop keeps that of a timer until its time, also of one that is cancelled.
        self._timer = core.loop.call_later(_DELAY, self._write, context=Context())

    def stop(self) -> None:
        """Mark the thread no more, if that has not been done."""
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            if self._core.pipeline.with_next is _MARKED:
                self._core.pipeline.with_next = ()
            else:
                self.is_stored = True

    def end(self, stage: Stage, *, is_cut_off: bool) -> None:
        """Remove the mark with what the run stores last; keep it if the run was cut off."""
        self.stop()
        self._is_removed = self.is_stored and not is_cut_off
        if is_cut_off:
            stage.drafts[MARK] = _Draft(*_MARKED)
        elif self._is_removed:
            stage.drafts[MARK] = _Draft(Record(*MARK, None))
        self.is_stored = is_cut_off

    def fail(self) -> None:
        """Remove the mark of a run that could not store the rest."""
        if self._is_removed:
            try:
                self._core.records.write([Record(*MARK, None)])
            except PlaitError:  # The thread has been stopped, or has ended.
                self.is_stored = True

    def _write(self) -> None:
        if self._core.pipeline.with_next is _MARKED:
            self._core.pipeline.with_next = ()
            with suppress(PlaitError):  # The thread has ended.
                self._core.records.write(_MARKED)


class _Draft:
    """Is stored with what a run has written."""

    is_ready = True

    def __init__(self, record: Record) -> None:
        self._record = record
        self.is_dirty = True

    async def prepare(self) -> None:
        """Do nothing: nothing has to be read."""

    def records(self) -> list[Record]:
        return [self._record]

    def submitted(self, commit: Commit) -> None:
        self.is_dirty = False


async def is_marked(core: Actor) -> bool:
    """Whether a thread is marked. Raises StoreError."""
    return await core.records.read(*MARK) is not None
