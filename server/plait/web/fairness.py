"""Shares the event loop between costly work and all other work, so that no peer can keep the server busy."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["AT_ONCE", "LARGE", "FairScheduler", "Ticket"]

AT_ONCE: Final = 0.01
"""Seconds of costly work in one iteration of the loop; further work waits."""

LARGE: Final = 16 * 1024
"""A message with at least this many bytes counts as costly work from the start."""

# Maximum seconds of rest after a long piece of work.
_LONGEST_REST: Final = 0.1


class Ticket:
    """A place in the queue."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Leave the queue."""
        self._callback = None

    def use(self) -> None:
        """Call the callback, unless the ticket was cancelled."""
        if self._callback is not None:
            self._callback()


class _Measure:
    """Counts the time of a block. A class, since a generator would cost more than most blocks."""

    __slots__ = ("_scheduler", "_start")

    def __init__(self, scheduler: "FairScheduler") -> None:
        self._scheduler = scheduler
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = self._scheduler.clock()

    def __exit__(self, *_: object) -> None:
        self._scheduler.spend(self._scheduler.clock() - self._start)


class FairScheduler:
    """Schedules the costly work of one server; cheap work is done at once.

    Each iteration of the loop does at most `AT_ONCE` seconds of costly work, or one piece that takes longer. After such
    a piece, costly work pauses for as long as the piece took.
    """

    __slots__ = ("_spent", "_timer", "_waiting", "clock", "work_clock")

    def __init__(self) -> None:
        # The functions that return the time, and the processor time of this OS thread, in seconds.
        self.clock = time.perf_counter
        self.work_clock = time.thread_time
        self._waiting: deque[Ticket] = deque()
        # Seconds of costly work in this iteration, or in the iteration before the rest.
        self._spent = 0.0
        # The callback that continues with the waiting work.
        self._timer: asyncio.Handle | None = None

    @property
    def is_free(self) -> bool:
        """Whether costly work may begin at once."""
        return self._spent < AT_ONCE and not self._waiting

    def wait(self, callback: Callable[[], None]) -> Ticket:
        """Call `callback` after the waiting ones, and count its time."""
        ticket = Ticket(callback)
        self._waiting.append(ticket)
        self._begin_later()
        return ticket

    def run(self, callback: Callable[[], None]) -> Ticket | None:
        """Call `callback` at once if costly work may begin, otherwise after the waiting ones, and count its time."""
        if not self.is_free:
            return self.wait(callback)
        with self.measure():
            callback()
        return None

    def spend(self, seconds: float) -> None:
        """Count costly work that was done without waiting."""
        self._spent += seconds
        self._begin_later()

    def measure(self) -> "_Measure":
        """Count the time of the block, which must not await anything."""
        return _Measure(self)

    async def wait_for_slot(self) -> None:
        """Wait until costly work may begin; the caller must then do it in a `measure` block, before any `await`."""
        if self.is_free:
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not ready.done():
                ready.set_result(None)
                # The caller continues directly after this callback.
                self._spent = max(self._spent, AT_ONCE)

        ticket = self.wait(begin)
        try:
            await ready
        finally:
            ticket.cancel()

    # Inside

    def _begin_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._rest)

    def _rest(self) -> None:
        """Rest for a while if the costly work took long."""
        rest = min(self._spent - 2 * AT_ONCE, _LONGEST_REST)
        if rest > 0:
            self._timer = asyncio.get_running_loop().call_later(rest, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._timer = None
        self._spent = 0.0
        while self._waiting and self._spent < AT_ONCE:
            ticket = self._waiting.popleft()
            with self.measure():
                ticket.use()
        if self._waiting:
            self._begin_later()
