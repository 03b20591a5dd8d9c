"""The steps of a task: each step is stored when it is finished, and not repeated after that."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from time import perf_counter
from typing import Any, Final, TypedDict, TypeVar, Unpack, cast, overload

import msgspec
from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.turns import find_trace
from plait.clock import read_due_clock
from plait.errors import is_outage
from plait.instruments.protocol import NO_INSTRUMENTS, find_outcome
from plait.parts.attempts import RetryPolicy, Uncounted
from plait.parts.encoding import check_seconds, check_type, encode_named
from plait.parts.schedule.rules import LATEST, to_microseconds
from plait.parts.stage import LastBlock, find_stage
from plait.parts.tasks.attempting import StepStage, attempt_step
from plait.parts.tasks.journal import Journal, check_event
from plait.parts.tasks.rows import JournalEntry, TaskRow
from plait.parts.tasks.step_errors import GiveUp, StepFailed, Unknown, describe
from plait.parts.tasks.waits import StepRunner, Waits
from plait.state.commit import Commit
from plait.state.thread_records import Changes
from plait.store.record_checks import is_key
from plait_schemas.codec import decode_json, find_decoder

__all__ = ["Approval", "Step"]

T = TypeVar("T")

# Seconds before a step is refused, because the method must end.
_PAUSE: Final = 0.05

# The key of the step in whose function the calling code runs; None outside of steps.
_key: Final[ContextVar[str | None]] = ContextVar("plait_step", default=None)


class Approval(msgspec.Struct, frozen=True):
    """The answer that `step.approval` waits for."""

    approved: bool
    reason: str = ""
    metadata: dict[str, Any] = {}


class StepOptions(TypedDict, total=False):
    """How `Step.do` attempts a step."""

    attempts: int
    base: float
    most: float
    timeout: float | None
    once: bool


class Step:
    """The steps of one run of a task: `await step.do("charge", self.charge)`.

    Each has a name, by which a replay finds its result; a name may be used again after a checkpoint.
    """

    def __init__(self, actor: Actor, row: TaskRow, journal: Journal, runner: StepRunner) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.id = row.id
        # When the run was begun, and the ids of the principals that have begun it.
        self.begun_at = row.created_at
        self.users = row.users
        self._task_name = row.effect
        self._runner = runner
        self._actor = actor
        self.journal = journal
        # The task that makes the steps calls the method, and is cancelled when the run leaves the memory.
        self.waits = Waits(actor.loop, actor.host.timer_interval, runner, row.id, task)
        # The number of calls of `status` since the checkpoint.
        self._told = 0

    # Steps

    @overload
    async def do(
        self, name: str, function: Callable[[], object], *, type: type[T], **options: Unpack[StepOptions]
    ) -> T: ...
    @overload
    async def do(
        self, name: str, function: Callable[[], object], *, type: Any = Any, **options: Unpack[StepOptions]
    ) -> Any: ...
    async def do(
        self,
        name: str,
        function: Callable[[], object],
        *,
        attempts: int = 3,
        base: float = 0.5,
        most: float = 60.0,
        timeout: float | None = None,
        once: bool = False,
        type: Any = Any,
    ) -> Any:
        """Call a function, store its result, and return the result decoded from JSON, as a `type` if given.

        A `def` runs in a transaction with its result. The writes of an `async def` to parts are stored with its result,
        and its changes of the state at once. A function that raises is called again, up to `attempts` times in all:
        after about `base` seconds, then twice as long each time, at most `most`; after that, or after a GiveUp, raises
        StepFailed. An attempt of an `async def` that takes longer than `timeout` seconds fails. With `once`, there is
        one attempt, and Unknown is raised if it was cut off.
        """
        policy = RetryPolicy.of(1 if once else attempts, base, most)
        if timeout is not None:
            check_seconds("timeout", timeout)
        entry, cause = await self._call(name, "do") or JournalEntry("do"), None
        while not entry.is_done:
            if entry.has_begun:
                raise Unknown(f"the step {name!r} was cut off, and is done at most once")
            if entry.due:
                await self._wait(entry.due)
            if once:
                await self.put(name, replace(entry, has_begun=True))
            try:
                with self._running(name), self._telling(name):
                    entry = await attempt_step(self._actor, self, name, function, timeout=timeout)
            except Exception as error:
                if is_outage(error) or isinstance(error, Uncounted):
                    raise
                entry, cause = _fail(entry, policy, error), error
                await self.put(name, entry, is_waiting=not entry.is_done)
        if entry.error:
            raise StepFailed(entry.error) from cause
        return _decode(entry.value, type)

    async def sleep(self, name: str, seconds: float) -> None:
        """Wait for some seconds, also when the server restarts in between."""
        check_seconds("seconds", seconds)
        await self._sleep(name, min(read_due_clock() + round(max(0.0, seconds) * 1e6), LATEST))

    async def sleep_until(self, name: str, when: datetime) -> None:
        """Wait until a time, which must have a time zone."""
        check_type("when", when, datetime)
        if when.utcoffset() is None:
            raise ValueError(f"{when!r} has no time zone: use, for example, datetime(…, tzinfo=UTC)")
        await self._sleep(name, max(1, to_microseconds(when)))

    async def event(self, name: str, *, timeout: float | None = None, type: Any = Any) -> Any:
        """Return the data of the first event of a name that `tasks.send` has sent to this run, before or after this.

        Raises TimeoutError if none has come after `timeout` seconds, and msgspec.ValidationError if it is no `type`.
        """
        check_type("the name of an event", name, str)
        check_event(name)
        return await self.wait_for_event(name, timeout=timeout, type=type)

    async def wait_for_event(self, name: str, *, timeout: float | None = None, type: Any = Any) -> Any:
        """Do what `event` does, also for an event of plait itself."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        entry = await self._call(name, "event") or JournalEntry("event")
        if not entry.is_done and name not in self.journal.events:
            is_new = not entry.due
            if is_new:
                due = LATEST if timeout is None else min(read_due_clock() + round(timeout * 1e6), LATEST)
                entry = JournalEntry("event", due=due)
            if is_new or name not in self._find_row().awaits:  # An earlier version has not stored the latter.
                await self.put(name, entry, is_waiting=True)
            await self._wait(entry.due, name)
            if name not in self.journal.events:
                entry = JournalEntry("event", is_done=True, error="TimeoutError")
                await self.put(name, entry)
        if (data := self.journal.events.get(name)) is None:
            raise TimeoutError(f"the event {name!r} has not come in time")
        try:
            return _decode(data, type)
        except msgspec.ValidationError as error:
            if not entry.is_done:
                await self.put(name, JournalEntry("event", is_done=True, error=describe(error)))
            raise

    async def approval(self, name: str, *, timeout: float | None = None) -> Approval:
        """Wait for an event as `event` does: `{"approved": true}` or false, optionally with `reason` and `metadata`."""
        return cast(Approval, await self.event(name, timeout=timeout, type=Approval))

    # Between steps

    def status(self, value: object) -> None:
        """Show a value, which is JSON, as the run's progress; the last one is kept. A replay shows nothing again."""
        data = msgspec.Raw(encode_named("status", value))
        row = self.journal.advance(self._find_row())
        if _key.get() is None:
            self._told += 1
            if self._told <= row.told:
                return
        if bytes(row.value) != bytes(data):
            row = replace(row, value=data, told=max(self._told, row.told))
            row.check_room(self._actor.limits.record)
            self._store(row, self.journal.flush())

    def checkpoint(self, value: object) -> None:
        """Forget the finished steps: a replay begins with this `value`, which is JSON. Stored with the next step.

        Does nothing if no step was called since the last checkpoint. Raises RuntimeError while a step runs or waits.
        """
        if self.waits.has_calls:
            raise RuntimeError("a checkpoint cannot be made while a step runs or waits")
        data = encode_named("checkpoint", value)
        if self.journal.has_called:
            self.journal.make_checkpoint(data)
            self._told = 0

    @property
    def value(self) -> Any:
        """The value of the last checkpoint; None if there is none. A replay must read it before its first step."""
        self.journal.is_unread = False
        return decode_json(bytes(self.journal.checkpoint.value))

    @property
    def key(self) -> str:
        """The key of the running step, the same in each attempt: an idempotency key for other services."""
        if (found := _key.get()) is None:
            raise RuntimeError("step.key is the key of a step: use it in the function of one")
        return found

    def transaction(self) -> LastBlock:
        """Store the changes of a block with the result of the step: `with step.transaction():` in its `async def`.

        The block must be the last thing in the function: the function may not await in it or after it. Earlier writes
        of the function to parts are stored, too. `async with` is needed after changes of stored messages. Raises
        RuntimeError outside of the function of a step, and in tasks that the function has started.
        """
        self._find_row()
        stage = find_stage(self._actor)
        if not isinstance(stage, StepStage) or stage.task is not asyncio.current_task():
            raise RuntimeError("step.transaction() is for the async def of a step itself, not for tasks that it starts")
        return stage.open()

    # Called by the runner, and by attempts

    @property
    def is_closed(self) -> bool:
        """Whether the method has ended or must end, and no step may begin."""
        return self.waits.is_closed

    @property
    def has_row(self) -> bool:
        """Whether the run has not ended."""
        return self.id in self._runner.agenda.rows

    def put(self, name: str, entry: JournalEntry, *, is_waiting: bool = False) -> Commit:
        """Store a step; a run that has made progress has not crashed, nor has a run that only waits."""
        before = self._find_row()
        row = self.journal.advance(before)
        if row.is_resting is not (is_resting := is_waiting and not self.waits.active):
            row = replace(row, is_resting=is_resting)
        if entry.is_done and row.crashes:
            row = row.progress()
        if entry.kind == "event":
            row = row.wait_for(name) if is_waiting else row.stop_waiting(name)
        return self._store(row, self.journal.put(name, entry))

    # Inside

    def _find_row(self) -> TaskRow:
        row = self._runner.agenda.rows.get(self.id)
        if row is None or self.is_closed:
            raise asyncio.CancelledError
        return row

    async def _call(self, name: str, kind: str) -> JournalEntry | None:
        """Begin a call; return the stored entry. Raises CancelledError, after a pause, if no step may begin."""
        if self.is_closed:
            await asyncio.sleep(_PAUSE)  # The method may catch the error again and again.
        self._find_row()
        check_type("the name of a step", name, str)
        if (_key.get() or "").startswith(f"{self.id}/"):
            raise RuntimeError(f"the step {name!r} is in the function of another one: call steps in the method")
        if not is_key(name) or len(name.encode()) > 400:
            raise ValueError(f"the name of a step must have 1 to 400 bytes, and no control characters, not {name!r}")
        return self.journal.call(name, kind)

    async def _sleep(self, name: str, until: int) -> None:
        entry = await self._call(name, "sleep")
        if entry is None:
            entry = JournalEntry("sleep", is_done=True, due=until)
            await self.put(name, entry, is_waiting=True)
        await self._wait(entry.due)

    async def _wait(self, until: int, event: str = "") -> None:
        """Wait until a time or an event, unless the run leaves the memory before."""
        if event not in self.journal.events:
            await self.waits.wait(until, event)

    @contextmanager
    def _running(self, name: str) -> Iterator[None]:
        token = _key.set(f"{self.id}/{self.journal.checkpoint.number}/{name}")
        try:
            with self.waits.working():
                yield
        finally:
            _key.reset(token)

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Tell the instruments of the block, which attempts a step and stores its end."""
        instruments = self._actor.instruments
        if instruments is NO_INSTRUMENTS:
            yield
            return
        began, outcome = perf_counter(), "ok"
        trace = instruments.step_began(*self._actor.key, self._task_name, name, find_trace(instruments))
        try:
            yield
        except BaseException as error:
            outcome = find_outcome(error)
            raise
        finally:
            instruments.step_ended(trace, perf_counter() - began, outcome)

    def _store(self, row: TaskRow, more: Changes) -> Commit:
        """Store the row of the run, if it has changed, with its journal."""
        is_same = row is self._runner.agenda.rows.get(row.id)
        return self._runner.store({} if is_same else {row.id: row}, more)


def _decode(data: msgspec.Raw, type: Any) -> Any:
    return decode_json(bytes(data)) if type is Any else find_decoder(type)(data)


def _fail(entry: JournalEntry, policy: RetryPolicy, error: Exception) -> JournalEntry:
    """Return a step after an attempt that has raised."""
    failures = entry.failures + 1
    if failures >= policy.attempts or isinstance(error, GiveUp):
        return JournalEntry("do", is_done=True, failures=failures, error=describe(error))
    return JournalEntry("do", failures=failures, due=read_due_clock() + policy.pause(failures))
