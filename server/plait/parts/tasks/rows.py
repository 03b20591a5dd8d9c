"""The stored rows, steps and ends of runs of tasks. No I/O."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, Self

import msgspec
from msgspec.structs import replace

from plait.errors import TooLarge
from plait.parts.schedule.rows import Identity, Row
from plait_schemas.codec import decode_json, encode_json

__all__ = [
    "NULL",
    "Checkpoint",
    "EndedRun",
    "JournalEntry",
    "Status",
    "TaskRow",
    "TaskRun",
    "decode_ended",
    "decode_row",
]

Status = Literal["waiting", "running", "sleeping", "done", "failed", "cancelled"]

NULL: Final = msgspec.Raw(b"null")

# The part of a record that is kept free for the error of a run.
_ROOM: Final = 16


class TaskRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a task as `get` and `list` return it. Times are in microseconds since the epoch."""

    id: str
    name: str
    # Decoded only if they are asked for, as they may be large.
    _args: msgspec.Raw = msgspec.field(name="args")
    key: str | None = None
    status: Status
    # The last value of `step.status`.
    value: Any = None
    result: Any = None
    # The class and the message of the error of its method.
    error: str | None = None
    created_at: int
    # When the run goes on; 0 if it has ended.
    due: int = 0
    ended_at: int | None = None

    @property
    def args(self) -> list[Any]:
        """The arguments, as JSON decodes them."""
        found: list[Any] = decode_json(bytes(self._args))
        return found


class TaskRow(Row, frozen=True, omit_defaults=True, kw_only=True):
    """A run that has not ended."""

    most_crashes: ClassVar = 10

    # The ids of the principals that have begun it.
    users: tuple[str, ...] = ()
    # The last value of `step.status`, and the number of its calls since the checkpoint.
    value: msgspec.Raw = NULL
    told: int = 0
    # The names of the events that have come, or whose time is over, since the checkpoint: the first one counts.
    events: tuple[str, ...] = ()
    # When the run has left the memory, 0 while it has not.
    asleep_since: int = 0
    # The events for which it waits, and that have not come, whether it is in the memory or not.
    awaits: tuple[str, ...] = ()
    # Whether all step calls of the run wait, so that it cannot cause a crash.
    is_resting: bool = False

    @property
    def identity(self) -> Identity | None:
        return (self.effect, self.key, None) if self.key else None

    @property
    def status(self) -> Status:
        """Whether the method runs, waits to be called, or has left the memory."""
        return "running" if self.process else "sleeping" if self.asleep_since else "waiting"

    def check_room(self, limit: int) -> None:
        """Raise TooLarge if a record leaves no room to store that the run begins and that it has failed."""
        if (size := len(encode_json(self))) > (most := limit - limit // _ROOM):
            what = f"the arguments, the last status and the events' names of the task {self.effect}"
            raise TooLarge(f"{what} have {size:,} bytes together; the limit is {most:,}")

    def begin(self, process: str) -> Self:
        return replace(self, process=process, asleep_since=0, is_resting=False)

    def recover(self, process: str) -> Self:
        if self.is_resting and self.process != process:
            return replace(self, process="", is_resting=False)
        return super().recover(process)

    def sleep(self, until: int, awaits: Sequence[str], now: int) -> Self:
        """Leave the memory until a time, or until an event comes, which may have happened already."""
        due = until if set(awaits).isdisjoint(self.events) else now
        # The wait for one of its own may have been stored just now, and not have begun.
        left = tuple(each for each in dict.fromkeys((*self.awaits, *awaits)) if each not in self.events)
        return replace(self, process="", due=due, asleep_since=now, awaits=left, is_resting=False)

    def wait_for(self, event: str) -> Self:
        """Begin to wait for an event."""
        return self if event in self.awaits else replace(self, awaits=(*self.awaits, event))

    def stop_waiting(self, event: str) -> Self:
        """Record that an event has come, or that its time is over."""
        awaits = tuple(each for each in self.awaits if each != event)
        events = self.events if event in self.events else (*self.events, event)
        return replace(self, events=events, awaits=awaits)

    def only_waits(self, now: int) -> bool:
        """Whether all step calls of the run wait."""
        return self.is_resting or (self.asleep_since > 0 and self.due > now)

    def receive(self, event: str, now: int) -> Self:
        """Record an event, which continues the run if the run waits for it."""
        due = now if self.asleep_since and event in self.awaits else self.due
        return replace(self.stop_waiting(event), due=due)

    def retry(self, events: Sequence[str], now: int) -> Self:
        """Begin the run again, when only these events are still stored."""
        return replace(self, process="", crashes=0, at=now, due=now, asleep_since=0, awaits=(), events=(*events,))

    def show(self) -> TaskRun:
        """Return the run as users see it."""
        return TaskRun(
            id=self.id,
            name=self.effect,
            _args=self.args,
            key=self.key or None,
            status=self.status,
            value=decode_json(bytes(self.value)),
            created_at=self.created_at,
            due=self.due,
        )


class EndedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run that has ended, in its stored form."""

    row: TaskRow
    status: Status
    ended_at: int
    result: msgspec.Raw = NULL
    error: str | None = None

    def show(self) -> TaskRun:
        """Return the run as users see it."""
        result = decode_json(bytes(self.result))
        run = self.row.show()
        return replace(run, status=self.status, result=result, error=self.error, due=0, ended_at=self.ended_at)


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a run."""

    kind: Literal["do", "sleep", "event"]
    is_done: bool = False
    # The result of a step that is done; its error, instead, if it has failed.
    value: msgspec.Raw = NULL
    error: str = ""
    # When the step has waited long enough: the end of a sleep or a timeout, or the next attempt; 0 if it does not wait.
    due: int = 0
    failures: int = 0
    # Whether the step is done at most once, and has begun.
    has_begun: bool = False


class Checkpoint(msgspec.Struct, frozen=True):
    """The last checkpoint of a run: its number, and its value."""

    number: int = 0
    value: msgspec.Raw = NULL
    # Whether a replay must read it before its first step; an earlier version did not store this.
    must_be_read: bool = False


decode_row: Final = msgspec.json.Decoder(TaskRow).decode
decode_ended: Final = msgspec.json.Decoder(EndedRun).decode
