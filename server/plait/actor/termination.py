"""Terminates a thread: it can still be read, but takes no new work."""

from collections.abc import Callable, Sequence
from typing import Final

from plait.actor.timer import Timer
from plait.clock import read_wall_clock
from plait.errors import Terminated
from plait.state.commit import Commit
from plait.state.pipeline import Pipeline
from plait.state.thread_records import Records
from plait.state.transaction import Transaction
from plait.store.protocol import ThreadKey
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import decode_json, encode_json

__all__ = ["MARK", "Termination"]

# No attribute of a class can have this name.
_PART: Final = "thread-life"
_KEY: Final = "terminated"

MARK: Final = RecordRange(_PART)
"""The range of the mark of a terminated thread, which is read when a thread wakes."""


class Termination:
    """Terminates one thread, and tells whether that has happened."""

    __slots__ = ("_key", "_pipeline", "_records", "_timer", "at")

    def __init__(self, key: ThreadKey, pipeline: Pipeline, records: Records, timer: Timer) -> None:
        self._key = key
        self._pipeline = pipeline
        self._records = records
        self._timer = timer
        # When it was terminated, in microseconds since the epoch; None if it was not.
        self.at: int | None = None

    def load(self, records: Sequence[Record]) -> None:
        """Read the mark from the stored records of a waking thread."""
        for record in records:
            assert record.value is not None
            self._set(decode_json(record.value)["at"])

    def check(self) -> None:
        """Raise Terminated if the thread takes no new work."""
        if self.at is not None:
            raise Terminated(f"{self._key} was terminated")

    def begin(self, then: Callable[[], None]) -> Commit:
        """Mark the thread and remove its later work, as one write; call `then` when that is durable.

        Does nothing if the thread is already terminated.
        """
        with Transaction(self._pipeline, self._key) as transaction:
            is_first = self.at is None
            if is_first:
                at = read_wall_clock()
                self._records.write([Record(_PART, _KEY, encode_json({"at": at}))], undo=lambda: self._set(None))
                self._set(at)
                for part in self._timer.parts:
                    part.terminate()
        commit = transaction.commit
        assert commit is not None
        if is_first:
            commit.then(lambda failure: then() if failure is None else None)
        return commit

    def _set(self, at: int | None) -> None:
        self.at = at
        self._timer.is_terminated = at is not None
