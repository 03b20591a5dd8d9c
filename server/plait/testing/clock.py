"""A clock that a test turns, which an event loop and the apps in it follow."""

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Self
from unittest.mock import patch

from anyio.to_thread import current_default_thread_limiter

from plait.clock import CLOCK

__all__ = ["Clock"]

# Seconds between two looks at working OS threads.
_LOOK: Final = 0.001
# Maximum seconds that pass at once: a hundred years.
_LONGEST: Final = 100 * 365 * 86_400.0
# Seconds by which a timer may be late, because of rounding, and still count as due.
_SAME: Final = 5e-7


class Clock:
    """The clock of an event loop and of the apps in it: it goes on by itself, and `advance` turns it forward.

    plait and all timers of the loop follow it, such as `asyncio.sleep`; `time.time()` does not. Timers that were set
    before `serve` go by real time, so that a timeout around it guards the test.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if not isinstance(loop, asyncio.BaseEventLoop):
            kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
            raise RuntimeError(f"plait.testing turns the clock of asyncio's own event loop, and this is {kind}")
        # Any, as the timers and the next callbacks of a loop are not public attributes.
        self._loop: Any = loop
        self._real: Callable[[], float] = loop.time
        # The seconds by which this clock is ahead of the loop's own time, and its time while it is turned.
        self._ahead = 0.0
        self._standing: float | None = None
        # The timers that go by real time, with their due times, by id, as timers may be equal.
        self._outer: dict[int, tuple[Any, float]] = {}
        # The calls that run in OS threads.
        self._working: dict[asyncio.Future[Any], str] = {}
        # Seconds of real time in which the work that is due at one time must be done. A test may set it.
        self.patience = 10.0
        # The number of apps that use this clock, and the patches to undo at the end.
        self._users = 0
        self._patches = ExitStack()

    @property
    def now(self) -> float:
        """The time of day in seconds since 1970, as `time.time()` returns it: for `expires_at`, for example."""
        return CLOCK.read_wall() / 1e6

    async def advance(self, seconds: float) -> None:
        """Turn the clock forward, as fast as possible; due work is done at its time, in order.

        The clock jumps from one timer to the next, and waits at each timer until nothing more happens, as `settle`
        does.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"seconds must be a number, not {seconds!r}")
        if not 0 <= seconds <= _LONGEST:
            raise ValueError(f"seconds must be from 0 to {_LONGEST:.0f}, not {seconds!r}")
        with self._stand_still() as now:
            end = now + seconds
            await self.settle()
            while (due := self._find_due()) <= end + _SAME:
                self._turn_to(due)
                await self.settle()
            self._turn_to(end)

    async def settle(self) -> None:
        """Wait until nothing more happens before time passes, even in OS threads of `asyncio.to_thread`.

        Raises RuntimeError if this takes more than `patience` seconds. Does not wait for other processes.
        """
        until, threads = time.monotonic() + self.patience, current_default_thread_limiter()
        while True:
            self._follow_real_time()
            await asyncio.sleep(0)
            if not self._loop._ready and self._find_due() >= self._time():
                if not (self._working or threads.borrowed_tokens):
                    return
                time.sleep(_LOOK)  # noqa: ASYNC251 - The loop has nothing to do, and its timers may stand still.
            if time.monotonic() > until:
                raise RuntimeError(f"after {self.patience:g} s, there is still something to do: {self._describe()}")

    # Inside

    @classmethod
    @contextmanager
    def turning(cls) -> Iterator[Self]:
        """Make the running loop and plait follow a clock during the block: their current one, or a new one."""
        loop = asyncio.get_running_loop()
        found = getattr(loop.time, "__self__", None)
        clock = found if isinstance(found, cls) else cls(loop)
        clock._users += 1
        try:
            if clock is not found:
                clock._begin()
            yield clock
        finally:
            clock._users -= 1
            if not clock._users:
                clock._end()

    def _begin(self) -> None:
        self._outer = {id(each): (each, each.when()) for each in self._loop._scheduled}
        start, wall = self._time(), CLOCK.read_wall() * 1000
        steady = CLOCK.read_steady()

        def count() -> int:
            # Whole microseconds, as due times are.
            return round((self._time() - start) * 1e6) * 1000

        CLOCK.use(lambda: wall + count(), lambda: steady + count())
        self._patches.callback(CLOCK.use)
        # In debug mode, a callback that turns the clock would be logged as a slow one.
        self._patches.enter_context(patch.object(self._loop, "slow_callback_duration", math.inf))
        # The loop calls timers early by this resolution. A timer that then waits again would be called forever, as the
        # clock stands still.
        self._patches.enter_context(patch.object(self._loop, "_clock_resolution", 0.0))
        run = self._loop.run_in_executor
        self._patches.enter_context(patch.object(self._loop, "time", self._time))
        self._patches.enter_context(patch.object(self._loop, "run_in_executor", partial(self._run_in_executor, run)))

    def _end(self) -> None:
        """Give the loop its own time back; its timers keep their remaining time."""
        self._patches.close()
        for each in self._loop._scheduled:
            _, each._when = self._outer.get(id(each), (each, each._when - self._ahead))
        heapq.heapify(self._loop._scheduled)

    def _time(self) -> float:
        return self._real() + self._ahead if self._standing is None else self._standing

    @contextmanager
    def _stand_still(self) -> Iterator[float]:
        if self._standing is not None:
            raise RuntimeError("the clock is being advanced already")
        self._standing = now = self._time()
        try:
            yield now
        finally:
            self._ahead, self._standing = self._standing - self._real(), None
            self._follow_real_time()

    def _turn_to(self, when: float) -> None:
        # A bit later, as the loop calls timers that are before its time.
        self._standing = max(self._time(), math.nextafter(when, math.inf))

    def _find_due(self) -> float:
        """Return the due time of the next timer that follows this clock."""
        timers = self._loop._scheduled
        if timers and self._follows(timers[0]):
            return float(timers[0].when())
        return min((each.when() for each in timers if self._follows(each)), default=math.inf)

    def _follows(self, timer: asyncio.TimerHandle) -> bool:
        return not timer.cancelled() and id(timer) not in self._outer

    def _follow_real_time(self) -> None:
        """Make the timers that go by real time wait for it."""
        if self._outer:
            ahead = self._time() - self._real()
            for timer, due in self._outer.values():
                timer._when = due + ahead
            heapq.heapify(self._loop._scheduled)

    def _run_in_executor(self, run: Any, executor: Any, call: Any, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = run(executor, call, *args)
        self._working[future] = _name_call(call)
        future.add_done_callback(self._working.pop)
        return future

    def _describe(self) -> str:
        """Return a description of the unfinished work."""
        ready = (getattr(each._callback, "__self__", None) for each in self._loop._ready)
        tasks = {str(each.get_coro()) for each in ready if isinstance(each, asyncio.Task)}
        calls = {f"{name} in an OS thread" for name in self._working.values()}
        what = ", ".join(sorted(tasks | calls)) or "a callback, or a call in an OS thread"
        waits = calls or current_default_thread_limiter().borrowed_tokens
        return f"{what}; no timer of the loop is reached while an OS thread runs" if waits else what


def _name_call(call: Any) -> str:
    """Return a readable name of a function, even inside of a call of `asyncio.to_thread`."""
    while isinstance(call, partial):
        call = call.args[0] if call.args else call.func
    return str(getattr(call, "__qualname__", call))
