"""The steps of a task: each is stored when it is finished, and not repeated then."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from datetime import datetime
from functools import lru_cache, partial
from types import NoneType
from typing import Any, Final, Protocol, TypeVar, cast, overload

import msgspec
from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.clock import read_due_clock
from plait.errors import is_outage
from plait.parts.attempts import RetryPolicy, Uncounted
from plait.parts.encoding import check_type, encode_named
from plait.parts.schedule.rules import LATEST, to_microseconds
from plait.parts.stage import LastBlock, Stage, do_nothing, find_stage
from plait.parts.tasks.journal import Journal, JournalWrite
from plait.parts.tasks.rows import JournalEntry, TaskRow
from plait.parts.tasks.telling import telling_step
from plait.parts.written import Result, Written
from plait.state.commit import Commit
from plait.state.transaction import Transaction
from plait.store.record_checks import is_key
from plait_schemas.codec import decode_json, make_decoder

__all__ = ["Approval", "FinalDraft", "GiveUp", "Step", "StepFailed", "Unknown", "describe"]

T = TypeVar("T")

# Seconds that a run stays in memory while all of its step calls wait, and after which it is stored that they do.
_REST: Final = 1.0
_SOON: Final = 0.05

# The key of the step in whose function the calling code runs; None outside of steps.
_key: Final[ContextVar[str | None]] = ContextVar("plait_step", default=None)

# What the methods return that write at once; in a transaction, they need not be awaited.
_WRITES: Final = (Commit, Written, Result)

_find_decoder = lru_cache(1024)(make_decoder)


class GiveUp(Exception):
    """Raise it in the function of a step to fail without further attempts."""


class StepFailed(Exception):
    """The last attempt of a step has raised. Its message begins with the class of that error, which is its cause.

    A replay raises it again, without the cause.
    """


class Unknown(Exception):
    """A step that is done at most once was cut off: it is not known whether it has had its effect."""


class Approval(msgspec.Struct, frozen=True):
    """The answer that `step.approval` waits for."""

    approved: bool
    reason: str = ""
    metadata: dict[str, Any] = {}


class _IsAwaitable(Exception):
    """Undoes the transaction of a function that turns out to be asynchronous."""


def describe(error: BaseException) -> str:
    """Return an error as it is stored."""
    return f"{type(error).__name__}: {error}"


class FinalDraft:
    """The end of a step or run, which is stored with what its stage has."""

    is_ready = True

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        # Of a step: the task that calls its function.
        self.task = task
        # Stores it, in an open transaction; None until it has ended.
        self.end: Callable[[], object] | None = None

    @property
    def is_dirty(self) -> bool:
        return self.end is not None

    async def prepare(self) -> None:
        """Do nothing, as nothing must be read."""

    def write(self) -> None:
        end, self.end = self.end, None
        assert end is not None
        end()

    def drop(self) -> None:
        self.end = None


class StepRunner(Protocol):
    """The rows of the tasks of a thread, as far as a step knows them."""

    def find(self, id: str) -> TaskRow | None: ...

    def store_step(self, row: TaskRow, write: JournalWrite) -> Commit:
        """Store a row, if it has changed, with other records, as one write."""
        ...

    def count_rest(self, change: int) -> None:
        """Count the runs whose step calls all wait."""


class Step:
    """The steps of one run of a task: `await step.do("charge", self.charge)`.

    Each has a name, by which a replay finds its result; a name may be used again after a checkpoint.
    """

    def __init__(self, runner: StepRunner, actor: Actor, row: TaskRow, journal: Journal) -> None:
        self.id = row.id
        self._task_name = row.effect
        self._runner = runner
        self._actor = actor
        self.journal = journal
        # The task that runs the method.
        self._task: asyncio.Task[Any] | None = None
        # The number of calls whose function runs, and the calls that wait.
        self._active = 0
        self._waiting: set[_Wait] = set()
        self._is_resting = False
        # Ends the pass after some rest.
        self._timer: asyncio.TimerHandle | None = None
        # The number of calls of `status` since the checkpoint.
        self._told = 0
        # Until when, and for which events, the run has left the memory; None while it has not.
        self.left: tuple[int, list[str]] | None = None
        # Whether the method has ended or must end, and no step may begin.
        self.is_closed = False

    # Steps

    @overload
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
        type: type[T],
    ) -> T: ...
    @overload
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
        """Call a function, store its result, and return that as its JSON decodes, as a `type` if given.

        A `def` runs in a transaction with its result. What an `async def` writes to parts is stored with its result,
        and its changes of the state at once. If it raises, it is called again, up to `attempts` times in all: after
        about `base` seconds, then twice as long each time, at most `most`; after that, or a GiveUp, raises StepFailed.
        An attempt of an `async def` that takes longer than `timeout` seconds fails. With `once`, there is one attempt,
        and Unknown is raised if it was cut off.
        """
        policy = RetryPolicy(1 if once else attempts, base, most)
        entry, cause = self._call(name, "do") or JournalEntry("do"), None
        while not entry.is_done:
            if entry.has_begun:
                raise Unknown(f"the step {name!r} was cut off, and is done at most once")
            if entry.due:
                await self._wait(entry.due)
            if once:
                await self._put(name, replace(entry, has_begun=True))
            try:
                with self._running(name), telling_step(self._actor.instruments, self._actor.key, self._task_name, name):
                    entry = await self._attempt(name, function, timeout)
            except Exception as error:
                if is_outage(error) or isinstance(error, Uncounted):
                    raise
                entry, cause = _fail(entry, policy, error), error
                await self._put(name, entry, is_waiting=not entry.is_done)
        if entry.error:
            raise StepFailed(entry.error) from cause
        return _decode(entry.value, type)

    async def sleep(self, name: str, seconds: float) -> None:
        """Wait for some seconds, also when the server restarts in between."""
        check_type("seconds", seconds, int, float)
        await self._sleep(name, min(read_due_clock() + round(max(0.0, seconds) * 1e6), LATEST))

    async def sleep_until(self, name: str, when: datetime) -> None:
        """Wait until a time, which must have a time zone."""
        check_type("when", when, datetime)
        if when.utcoffset() is None:
            raise ValueError(f"{when!r} has no time zone: use, for example, datetime(…, tzinfo=UTC)")
        await self._sleep(name, max(1, to_microseconds(when)))

    async def event(self, name: str, *, timeout: float | None = None, type: Any = Any) -> Any:
        """Return the data of the first event of a name that `tasks.send` has sent to this run, before or after this.

        Raises TimeoutError if none has come after `timeout` seconds.
        """
        check_type("timeout", timeout, int, float, NoneType)
        entry = self._call(name, "event") or JournalEntry("event")
        if not entry.is_done and name not in self.journal.events:
            if not entry.due:
                due = LATEST if timeout is None else min(read_due_clock() + round(timeout * 1e6), LATEST)
                entry = JournalEntry("event", due=due)
                await self._put(name, entry, is_waiting=True)
            await self._wait(entry.due, name)
            if name not in self.journal.events:
                entry = JournalEntry("event", is_done=True, error="TimeoutError")
                await self._put(name, entry)
        if entry.is_done:
            raise TimeoutError(f"the event {name!r} has not come in time")
        return _decode(self.journal.events[name], type)

    async def approval(self, name: str, *, timeout: float | None = None) -> Approval:
        """Wait for an event as `event` does: `{"approved": true}` or false, if wanted with `reason` and `metadata`."""
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
            self._runner.store_step(replace(row, value=data, told=max(self._told, row.told)), self.journal.flush())

    def checkpoint(self, value: object) -> None:
        """Forget the finished steps: a replay begins with this `value`, which is JSON. Stored with the next step.

        Does nothing if no step was called since the last checkpoint. Raises RuntimeError while a step runs or waits.
        """
        if self._active or self._waiting:
            raise RuntimeError("a checkpoint cannot be made while a step runs or waits")
        data = encode_named("checkpoint", value)
        if self.journal.has_called:
            self.journal.make_checkpoint(data)
            self._told = 0

    @property
    def value(self) -> Any:
        """The value of the last checkpoint; None if there is none."""
        return decode_json(bytes(self.journal.checkpoint.value))

    @property
    def key(self) -> str:
        """The key of the running step, the same in each attempt: an idempotency key for other services."""
        if (found := _key.get()) is None:
            raise RuntimeError("step.key is the key of a step: use it in the function of one")
        return found

    def transaction(self) -> LastBlock:
        """Store what a block changes with the result of the step: `with step.transaction():` in its `async def`.

        The block is the last that the function does: it may not await in it or after it. What it has written to parts
        before is stored, too. `async with` is needed after changes of stored messages. Raises RuntimeError outside of
        the function of a step, and in tasks that it has started.
        """
        self._find_row()
        stage = find_stage(self._actor)
        final = None if stage is None else stage.drafts.get(self)
        if stage is None or not isinstance(final, FinalDraft) or final.task is not asyncio.current_task():
            raise RuntimeError("step.transaction() is for the async def of a step itself, not for tasks that it starts")
        return stage.open()

    # Called by the runner

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Note the task that calls the method."""
        self._task = task

    def receive(self, event: str) -> None:
        """Continue the calls that wait for an event that has come."""
        for wait in self._waiting:
            if wait.event == event:
                wait.end()

    def close(self) -> None:
        """Begin no other step."""
        self.is_closed = True
        self._look()

    # Inside

    @property
    def _has_row(self) -> bool:
        return self._runner.find(self.id) is not None

    def _find_row(self) -> TaskRow:
        row = self._runner.find(self.id)
        if row is None or self.is_closed:
            raise asyncio.CancelledError
        return row

    def _call(self, name: str, kind: str) -> JournalEntry | None:
        self._find_row()
        check_type("the name of a step", name, str)
        if not is_key(name) or len(name.encode()) > 400:
            raise ValueError(f"the name of a step must have 1 to 400 bytes, and no control characters, not {name!r}")
        return self.journal.call(name, kind)

    def _put(self, name: str, entry: JournalEntry, *, is_waiting: bool = False) -> Commit:
        """Store a step; the run that has made progress has not crashed, nor has one that only waits."""
        before = self._find_row()
        row = self.journal.advance(before)
        if row.is_resting is not (is_resting := is_waiting and not self._active):
            row = replace(row, is_resting=is_resting)
        if entry.is_done and row.crashes:
            row = row.progress()
        if entry.kind == "event" and entry.is_done:
            row = replace(row, events=(*row.events, name))
        return self._runner.store_step(row, self.journal.put(name, entry))

    async def _attempt(self, name: str, function: Callable[[], object], timeout: float | None) -> JournalEntry:
        if inspect.iscoroutinefunction(function):
            return await self._attempt_staged(name, cast(Awaitable[object], function()), timeout)
        with suppress(_IsAwaitable), Transaction(self._actor.state, self._actor.key) as transaction:
            made = function()
            if inspect.isawaitable(made) and not isinstance(made, _WRITES):
                if not transaction.is_empty:
                    if inspect.iscoroutine(made):
                        made.close()
                    raise TypeError(
                        f"the function of the step {name!r} writes, and returns an awaitable: use async def"
                    )
                raise _IsAwaitable
            entry = _finish(name, made)
            if self._has_row:  # The function may have cancelled its run.
                self._put(name, entry)
        if transaction.commit is None:
            return await self._attempt_staged(name, cast(Awaitable[object], made), timeout)
        await transaction.commit
        return entry

    async def _attempt_staged(self, name: str, work: Awaitable[object], timeout: float | None) -> JournalEntry:
        stage = Stage(self._actor, do_nothing)
        final = stage.drafts[self] = FinalDraft(asyncio.current_task())
        stage.enter()
        try:
            async with asyncio.timeout(timeout):
                entry = _finish(name, await work)
            has_cancelled = stage.is_open and not self._has_row  # In the block of its transaction.
            final.end = do_nothing if has_cancelled else partial(self._put, name, entry)
            await stage.commit(is_last=True)
        except BaseException:
            stage.drop()
            raise
        finally:
            stage.leave()
        return entry

    async def _sleep(self, name: str, until: int) -> None:
        entry = self._call(name, "sleep")
        if entry is None:
            entry = JournalEntry("sleep", is_done=True, due=until)
            await self._put(name, entry, is_waiting=True)
        await self._wait(entry.due)

    async def _wait(self, until: int, event: str = "") -> None:
        """Wait until a time or an event, unless the run leaves the memory before."""
        if until <= read_due_clock() or event in self.journal.events:
            return
        wait = _Wait(self._actor, until, event)
        self._waiting.add(wait)
        self._look()
        try:
            await wait.future
        finally:
            wait.timer.cancel()
            self._waiting.discard(wait)
            self._look()

    @contextmanager
    def _running(self, name: str) -> Iterator[None]:
        token = _key.set(f"{self.id}/{self.journal.checkpoint.number}/{name}")
        self._active += 1
        self._look()
        try:
            yield
        finally:
            self._active -= 1
            self._look()
            _key.reset(token)

    def _look(self) -> None:
        """Set the timer that ends the pass, if all calls wait."""
        is_resting = len(self._waiting) > 0 and not self._active and not self.is_closed
        if is_resting is self._is_resting:
            return
        self._is_resting = is_resting
        self._runner.count_rest(1 if is_resting else -1)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._actor.loop.call_later(_SOON, self._rest, context=Context()) if is_resting else None

    def _rest(self) -> None:
        """Store that all calls wait, unless it is: the run has no part in a crash from here on."""
        row = self._runner.find(self.id)
        if row is not None and not row.is_resting:
            self._runner.store_step(replace(row, is_resting=True), ((), do_nothing))
        self._timer = self._actor.loop.call_later(_REST, self._leave, context=Context())

    def _leave(self) -> None:
        """Leave the memory: cancel the method, which is called again when the first call has waited long enough."""
        assert self._task is not None
        self.left = min(each.until for each in self._waiting), [each.event for each in self._waiting if each.event]
        self.close()
        self._task.cancel()


class _Wait:
    """A step call that waits until a time, or for an event."""

    def __init__(self, actor: Actor, until: int, event: str) -> None:
        self._actor = actor
        self.until = until
        self.event = event
        self.future: asyncio.Future[None] = actor.loop.create_future()
        self.timer = self._set()

    def end(self) -> None:
        """Continue the call."""
        if not self.future.done():
            self.future.set_result(None)

    def _set(self) -> asyncio.TimerHandle:
        delay = (self.until - read_due_clock()) / 1e6
        return self._actor.loop.call_later(min(delay, self._actor.host.timer_interval), self._check, context=Context())

    def _check(self) -> None:
        if read_due_clock() >= self.until:
            self.end()
        else:
            self.timer = self._set()


def _decode(data: msgspec.Raw, type: Any) -> Any:
    return decode_json(bytes(data)) if type is Any else _find_decoder(type)(data)


def _fail(entry: JournalEntry, policy: RetryPolicy, error: Exception) -> JournalEntry:
    """Return a step after an attempt that has raised."""
    failures = entry.failures + 1
    if failures >= policy.attempts or isinstance(error, GiveUp):
        return JournalEntry("do", is_done=True, failures=failures, error=describe(error))
    return JournalEntry("do", failures=failures, due=read_due_clock() + policy.pause(failures))


def _finish(name: str, value: object) -> JournalEntry:
    """Return a step that is done with a value, or with that of a write."""
    if isinstance(value, _WRITES):
        value = value.value if isinstance(value, Result) else None
    return JournalEntry("do", is_done=True, value=msgspec.Raw(encode_named(name, value)))
