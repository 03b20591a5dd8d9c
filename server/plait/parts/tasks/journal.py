"""The journal of one run: which of its steps are finished since the last checkpoint. No I/O."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from plait.parts.tasks.rows import NULL, Checkpoint, JournalEntry, TaskRow
from plait.state.thread_records import Change, Changes, Table, Values
from plait.store.thread_rows import Record, ThreadKey

__all__ = ["MOST_STEPS", "Journal", "ReplayDiverged", "check_event", "find_prefix"]

MOST_STEPS: Final = 1_000
"""The maximum number of steps of a run since its last checkpoint."""

_CHECKPOINT: Final = "c"
_STEP: Final = "s/"
_EVENT: Final = "e/"
# The prefix of the names of events that only plait itself sends.
_OWN: Final = "plait:"


class ReplayDiverged(Exception):
    """A task calls a step as another kind than before, or twice, or before it has read the value of its checkpoint."""


def check_event(name: str) -> None:
    """Raise ValueError for the name of an event that only plait itself sends."""
    if name.startswith(_OWN):
        raise ValueError(f"the event {name!r} cannot be used: plait itself sends those that begin with {_OWN}")


def find_prefix(id: str) -> str:
    """Return the prefix of the keys of the records of a run's journal."""
    return f"j/{id}/"


class Journal:
    """The steps and events of one run, by name.

    A checkpoint forgets the steps before it: the next write removes their records.
    """

    def __init__(self, part: str, id: str) -> None:
        prefix = find_prefix(id)
        self.entries = Values[str, JournalEntry]()
        # The data of the events that have come.
        self.events = Values[str, msgspec.Raw]()
        self._steps = Table(part, prefix + _STEP, JournalEntry, self.entries.set)
        self._events = Table(part, prefix + _EVENT, msgspec.Raw, self.events.set)
        self._checkpoints = Table(part, prefix + _CHECKPOINT, Checkpoint, self._set_checkpoint)
        self.checkpoint = Checkpoint()
        # Whether this pass must still read the value of the checkpoint with which it begins.
        self.is_unread = False
        # The kinds of the steps that were called since the checkpoint, in this pass.
        self._called: dict[str, str] = {}
        # The additional changes of the next write after a checkpoint, after which these events may come again.
        self._unstored: list[Change] = []

    def load(self, records: Sequence[Record], thread: ThreadKey) -> None:
        """Load the stored records. Events that have come since they were read are kept. Raises CorruptThread."""
        self.entries.update(self._steps.load(records, thread))
        for name, data in self._events.load(records, thread):
            self.events.setdefault(name, data)
        self.checkpoint = dict(self._checkpoints.load(records, thread)).get("", self.checkpoint)
        self.is_unread = self.checkpoint.must_be_read

    def call(self, name: str, kind: str) -> JournalEntry | None:
        """Begin a step of the method; return its stored entry. Raises ReplayDiverged, and RuntimeError."""
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

    def make_checkpoint(self, value: bytes) -> None:
        """Forget the steps that were called since the last checkpoint, and the events that they have waited for."""
        for name, kind in self._called.items():
            if self.entries.pop(name, None) is not None:
                self._unstored.append(self._steps.change(name, None))
            if kind == "event":
                self.events.pop(name, None)
                self._unstored.append(self._events.change(name, None))
        self._called = {}
        self.checkpoint = Checkpoint(self.checkpoint.number + 1, msgspec.Raw(value), value != bytes(NULL))
        self._unstored.append(self._checkpoints.change("", self.checkpoint))

    def has_come(self, event: str, row: TaskRow) -> bool:
        """Whether an event has come, or its time is over, since the checkpoint."""
        return event in row.events and event not in self._released

    def advance(self, row: TaskRow) -> TaskRow:
        """Return the row as the next write stores it: after the checkpoint, if one is not stored yet."""
        if not self._unstored:
            return row
        released = self._released
        return replace(row, told=0, events=tuple(each for each in row.events if each not in released), awaits=())

    # Changes

    def clear(self) -> Changes:
        """Return the changes that remove the whole journal."""
        steps = [self._steps.change(name, None) for name in self.entries]
        events = [self._events.change(name, None) for name in self.events]
        checkpoint = [self._checkpoints.change("", None)] if self.checkpoint.number else []
        return [*self._unstored, *steps, *events, *checkpoint]

    def drop_failed(self) -> Changes:
        """Return the changes that remove the steps that have failed, and the events that came too late or do not fit.

        Such events are forgotten at once.
        """
        failed = [name for name, entry in self.entries.items() if entry.error]
        wrong = [name for name in failed if self.entries[name].kind == "event" and name in self.events]
        for name in wrong:
            del self.events[name]
        steps = [self._steps.change(name, None) for name in failed]
        return [*steps, *(self._events.change(name, None) for name in wrong)]

    def put(self, name: str, entry: JournalEntry) -> Changes:
        """Return the changes that set a step, and store a checkpoint that is not stored."""
        return [*self._unstored, self._steps.change(name, entry)]

    def receive(self, event: str, data: msgspec.Raw) -> Changes:
        """Return the changes that add an event, likewise."""
        return [*self._unstored, self._events.change(event, data)]

    def flush(self) -> Changes:
        """Return the changes that store a checkpoint that is not stored."""
        return [*self._unstored]

    # Inside

    @property
    def _released(self) -> set[str]:
        """The events that may come again, because a checkpoint that is not stored has forgotten them."""
        return {change.key for change in self._unstored if change.set == self.events.set}

    def _set_checkpoint(self, _: str, value: Checkpoint | list[Change] | None) -> list[Change]:
        """Follow the write of a checkpoint; return the unstored changes, which are restored if the write fails."""
        unstored, self._unstored = self._unstored, []
        if isinstance(value, list):  # A checkpoint that was made in between is stored with this one.
            self._unstored = [*value, *unstored]
        return unstored
