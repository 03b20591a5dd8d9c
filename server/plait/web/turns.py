"""Turns for what costs much: one after the other, with iterations of the loop in between that are everybody else's."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["AT_ONCE", "LARGE", "Ticket", "Turns"]

AT_ONCE: Final = 0.01
"""Seconds of costly work in one iteration of the loop, after which more of it waits."""

LARGE: Final = 16 * 1024
"""Bytes from which on a message is taken for costly before it has been handled."""

# Seconds that others have to themselves after something that took very long, at most.
_LONGEST_REST: Final = 0.1


class Ticket:
    """A place in the queue."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Let go of the place."""
        self._callback = None

    def use(self) -> None:
        """Call back, unless the place has been let go."""
        if self._callback is not None:
            self._callback()


class Turns:
    """Shares out the time of one server for what costs much; what costs little asks nobody.

    In each iteration of the loop there is costly work of `AT_ONCE`, or one piece that takes longer. After such a piece
    others have the loop to themselves for as long again. `clock` tells the time, `work_clock` that of the processor in
    which this thread has run, in seconds.
    """

    __slots__ = ("_spent", "_timer", "_waiting", "clock", "work_clock")

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, work_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.clock = clock
        self.work_clock = work_clock
        self._waiting: deque[Ticket] = deque()
        # Seconds of costly work in this iteration, or in the last one that others rest from.
        self._spent = 0.0
        # Begins the next turns.
        self._timer: asyncio.Handle | None = None

    @property
    def is_free(self) -> bool:
        """Whether costly work may begin at once."""
        return self._spent < AT_ONCE and not self._waiting

    def wait(self, callback: Callable[[], None]) -> Ticket:
        """Call `callback` when it is its turn, behind those who wait already. What it takes is counted."""
        ticket = Ticket(callback)
        self._waiting.append(ticket)
        self._begin_later()
        return ticket

    def run(self, callback: Callable[[], None]) -> Ticket | None:
        """Call `callback` at once if costly work may begin, else when it is its turn. What it takes is counted."""
        if not self.is_free:
            return self.wait(callback)
        with self.measure():
            callback()
        return None

    def spend(self, seconds: float) -> None:
        """Count costly work that was not waited for."""
        self._spent += seconds
        self._begin_later()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count what the block takes, which awaits nothing."""
        start = self.clock()
        try:
            yield
        finally:
            self.spend(self.clock() - start)

    async def turn(self) -> None:
        """Return when it is the caller's turn; what it does then is in a `measure` block, before it awaits anything."""
        if self.is_free:
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if not ready.done():
                ready.set_result(None)
                # The caller goes on behind this callback: nobody else does before it has.
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
        """Leave the loop to others for a while, if they have waited for long."""
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
