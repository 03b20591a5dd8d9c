"""The journal of one run: which of its steps are finished since the last checkpoint. No I/O."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from plait.parts.tasks.rows import NULL, Checkpoint, JournalEntry, TaskRow, decode_checkpoint, decode_entry
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = ["MOST_STEPS", "Journal", "JournalWrite", "ReplayDiverged", "check_event", "find_event_key", "find_prefix"]

MOST_STEPS: Final = 1_000
"""The maximum number of steps of a run since its last checkpoint."""

_CHECKPOINT: Final = "c"
_STEP: Final = "s/"
_EVENT: Final = "e/"
# How the names of events begin that only plait itself sends.
_OWN: Final = "plait:"

JournalWrite = tuple[Sequence[Record], Callable[[], None]]
"""The records of a write, and what undoes it."""


class ReplayDiverged(Exception):
    """A task calls a step as another kind than before, or twice, or before it has read the value of its checkpoint."""


def check_event(name: str) -> None:
    """Raise ValueError for the name of an event that only plait itself sends."""
    if name.startswith(_OWN):
        raise ValueError(f"the event {name!r} cannot be used: plait itself sends those that begin with {_OWN}")


def find_prefix(id: str) -> str:
    """Return how the keys of the records of a run's journal begin."""
    return f"j/{id}/"


def find_event_key(id: str, event: str) -> str:
    """Return the key of the record of an event."""
    return f"{find_prefix(id)}{_EVENT}{event}"


class Journal:
    """The steps and events of one run, by name.

    A checkpoint forgets the steps before it: the next write removes their records.
    """

    def __init__(self, part: str, id: str) -> None:
        self._part = part
        self._prefix = find_prefix(id)
        self.entries: dict[str, JournalEntry] = {}
        # The data of the events that have come.
        self.events: dict[str, msgspec.Raw] = {}
        self.checkpoint = Checkpoint()
        # Whether the value of the checkpoint with which this pass begins must still be read.
        self.is_unread = False
        # The kinds of the steps that were called since the checkpoint, in this pass.
        self._called: dict[str, str] = {}
        # What the next write stores besides, as a checkpoint was made, and the events that may then come again.
        self._unstored: dict[str, bytes | None] = {}
        self._released: set[str] = set()

    def load(self, records: Iterable[Record]) -> None:
        """Read the stored records. Events that have come in between are kept."""
        cut = len(self._prefix)
        for record in records:
            assert record.value is not None
            place, name = record.key[cut : cut + 2], record.key[cut + 2 :]
            if place == _STEP:
                self.entries[name] = decode_entry(record.value)
            elif place == _EVENT:
                self.events.setdefault(name, msgspec.Raw(record.value))
            else:
                self.checkpoint = decode_checkpoint(record.value)
                self.is_unread = self.checkpoint.must_be_read

    def call(self, name: str, kind: str) -> JournalEntry | None:
        """Begin a step of the method; return what is stored of it. Raises ReplayDiverged, and RuntimeError."""
        if self.is_unread:
            what = "read `step.value`, which is that of the last checkpoint, before the first step"
            raise ReplayDiverged(f"the step {name!r} would be repeated: {what}")
        before = self._called.get(name)
        if before is not None:
            what = f"as {before} and as {kind}" if before != kind else f"twice as {kind}"
            raise ReplayDiverged(f"the step {name!r} is called {what} since the last checkpoint")
        entry = self.entries.get(name)
        if entry is not None and entry.kind != kind:
            raise ReplayDiverged(f"the step {name!r} was called as {entry.kind} before, and now as {kind}")
        if len(self._called) >= MOST_STEPS:
            raise RuntimeError(f"there are {MOST_STEPS:,} steps since the last checkpoint: call step.checkpoint")
        self._called[name] = kind
        return entry

    @property
    def has_called(self) -> bool:
        """Whether a step was called since the checkpoint."""
        return bool(self._called)

    @property
    def awaited(self) -> list[str]:
        """The events that the method has waited for since the checkpoint, and that have not come."""
        return [name for name, kind in self._called.items() if kind == "event" and name not in self.events]

    def make_checkpoint(self, value: bytes) -> None:
        """Forget the steps that were called since the last checkpoint, and the events that they have waited for."""
        for name, kind in self._called.items():
            if self.entries.pop(name, None) is not None:
                self._unstored[_STEP + name] = None
            if kind == "event":
                self._released.add(name)
                if self.events.pop(name, None) is not None:
                    self._unstored[_EVENT + name] = None
        self._called = {}
        self.checkpoint = Checkpoint(self.checkpoint.number + 1, msgspec.Raw(value), value != bytes(NULL))
        self._unstored[_CHECKPOINT] = encode_json(self.checkpoint)

    def has_come(self, event: str, row: TaskRow) -> bool:
        """Whether an event has come, or its time is over, since the checkpoint."""
        return event in row.events and event not in self._released

    def advance(self, row: TaskRow) -> TaskRow:
        """Return the row as the next write stores it: after the checkpoint, if there is one that is not stored."""
        if not self._unstored:
            return row
        return replace(row, told=0, events=tuple(each for each in row.events if each not in self._released))

    def clear(self) -> list[Record]:
        """Return the records that remove all of it."""
        keys = [_STEP + name for name in self.entries] + [_EVENT + name for name in self.events]
        if self.checkpoint.number:
            keys.append(_CHECKPOINT)
        return [self._record(key, None) for key in dict.fromkeys([*keys, *self._unstored])]

    def drop_failed(self) -> list[Record]:
        """Forget the steps that have failed, and the events that came too late or were not of their type.

        Returns the records that remove them.
        """
        failed = [name for name, entry in self.entries.items() if entry.error]
        wrong = [name for name in failed if self.entries[name].kind == "event" and name in self.events]
        for name in wrong:
            del self.events[name]
        return [self._record(key, None) for key in [*map(_STEP.__add__, failed), *map(_EVENT.__add__, wrong)]]

    # Writes: they return the records, and what undoes them

    def put(self, name: str, entry: JournalEntry) -> JournalWrite:
        """Set a step."""
        return self._write(self.entries, name, entry, _STEP + name, encode_json(entry))

    def receive(self, event: str, data: msgspec.Raw) -> JournalWrite:
        """Add an event."""
        return self._write(self.events, event, data, _EVENT + event, bytes(data))

    def flush(self) -> JournalWrite:
        """Store only a checkpoint that is not stored."""
        return self._write({}, "", None)

    def _write(
        self, values: dict[str, Any], name: str, value: object, key: str | None = None, data: bytes | None = None
    ) -> JournalWrite:
        before, unstored, released = values.get(name), self._unstored, self._released
        values[name], self._unstored, self._released = value, {}, set()

        def undo() -> None:
            if before is None:
                del values[name]
            else:
                values[name] = before
            # A checkpoint that was made in between is stored with this one.
            self._unstored, self._released = {**unstored, **self._unstored}, released | self._released

        written = unstored if key is None else {**unstored, key: data}
        return [self._record(key, value) for key, value in written.items()], undo

    def _record(self, key: str, value: bytes | None) -> Record:
        return Record(self._part, self._prefix + key, value)
