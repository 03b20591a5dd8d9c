"""The waiting step calls of one run; if all calls wait, the run leaves the memory after some rest."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Final

from msgspec.structs import replace

from plait.clock import read_due_clock
from plait.parts.schedule.rows import Agenda
from plait.parts.tasks.rows import TaskRow
from plait.state.commit import Commit
from plait.state.thread_records import Changes

__all__ = ["StepRunner", "Waits"]

# Seconds that a run stays in memory while all of its step calls wait; after them, the rest is stored.
_REST: Final = 1.0
_SOON: Final = 0.05


class StepRunner:
    """The runner of tasks, as their steps use it."""

    agenda: Agenda[TaskRow]

    def store(self, rows: Mapping[str, TaskRow | None], more: Changes = ()) -> Commit:
        """Store or remove rows, with more changes, as one write."""
        raise NotImplementedError

    def count_resting(self, change: int) -> None:
        """Count the running attempts that only wait."""
        raise NotImplementedError


class Waits:
    """The calls of one run that wait.

    While all calls wait, the run rests, and the runner counts it; soon after, that is stored. The `task` of the run is
    cancelled when it leaves the memory.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, runner: StepRunner, id: str, task: asyncio.Task[Any]
    ) -> None:
        self._loop = loop
        # The clock is read at least after so many seconds.
        self._interval = interval
        self._runner = runner
        self._id = id
        self._task = task
        # The tasks of the calls whose function runs, and the calls that wait.
        self.active: list[asyncio.Task[Any] | None] = []
        self._waiting: set[_Wait] = set()
        self._is_resting = False
        self._timer: asyncio.TimerHandle | None = None
        # Whether the method has ended or must end, and no step may begin.
        self.is_closed = False
        # Until when, and for which events, the run has left the memory; None while it has not.
        self.left: tuple[int, list[str]] | None = None

    @property
    def has_calls(self) -> bool:
        """Whether a call works or waits."""
        return bool(self.active or self._waiting)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Note a call whose function runs in the block."""
        self._check_open()
        self.active.append(task := asyncio.current_task())
        self._look()
        try:
            yield
        finally:
            self.active.remove(task)
            self._look()

    async def wait(self, until: int, event: str) -> None:
        """Wait until a time, or until `end` is called for an event."""
        self._check_open()
        if until <= read_due_clock():
            return
        wait = _Wait(self._loop, self._interval, until, event)
        self._waiting.add(wait)
        self._look()
        try:
            await wait.future
        finally:
            wait.timer.cancel()
            self._waiting.discard(wait)
            self._look()

    def end(self, event: str) -> None:
        """Continue the calls that wait for an event."""
        for wait in self._waiting:
            if wait.event == event:
                wait.end()

    def close(self) -> None:
        """End all calls except the one of the calling code, because the method ends or must end."""
        self.is_closed = True
        self._look()
        current = asyncio.current_task() if self.active else None
        for task in self.active:
            if task is not None and task is not current:
                task.cancel()
        for wait in self._waiting:
            wait.future.cancel()

    # Inside

    def _check_open(self) -> None:
        if self.is_closed:
            raise asyncio.CancelledError

    def _look(self) -> None:
        """Set the timer if all calls wait."""
        is_resting = len(self._waiting) > 0 and not self.active and not self.is_closed
        if is_resting is self._is_resting:
            return
        self._is_resting = is_resting
        self._runner.count_resting(1 if is_resting else -1)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_SOON, self._begin_rest, context=Context()) if is_resting else None

    def _begin_rest(self) -> None:
        """Store that all calls wait, unless that is stored: the run can then not cause a crash."""
        self._timer = self._loop.call_later(_REST, self._end_rest, context=Context())
        row = self._runner.agenda.rows.get(self._id)
        if row is not None and not row.is_resting:
            self._runner.store({self._id: replace(row, is_resting=True)})

    def _end_rest(self) -> None:
        self.left = min(each.until for each in self._waiting), [each.event for each in self._waiting if each.event]
        self.close()
        self._task.cancel()


class _Wait:
    """A step call that waits until a time, or for an event."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float, until: int, event: str) -> None:
        self._loop = loop
        self._interval = interval
        self.until = until
        self.event = event
        self.future: asyncio.Future[None] = loop.create_future()
        self.timer = self._set()

    def end(self) -> None:
        """Continue the call."""
        if not self.future.done():
            self.future.set_result(None)

    def _set(self) -> asyncio.TimerHandle:
        delay = (self.until - read_due_clock()) / 1e6
        return self._loop.call_later(min(delay, self._interval), self._check, context=Context())

    def _check(self) -> None:
        if read_due_clock() >= self.until:
            self.end()
        else:
            self.timer = self._set()
