"""The two clocks of a process. Only this module reads the time of day.

Due times are compared with `read_due_clock`. It follows a clock forward, but never back, so a clock that is set back
delays nothing. It follows the wall clock, or the clock of the server of a store that several machines share, so that
the clocks of the machines need not agree. Everything else uses the wall clock: tokens, entries that expire, pruning,
and times that are stored or shown. The time at which a thread expires is a due time.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["CLOCK", "MOST_SECONDS", "Clock", "ClockWatch", "read_due_clock", "read_wall_clock"]

log = logging.getLogger("plait.clock")

MOST_SECONDS: Final = 1e11
"""The longest time between now and a time that is stored: more than 3,000 years."""

# Nanoseconds by which the wall clock must jump to be noticed.
_JUMP: Final = 1_000_000_000


class Clock:
    """The time in microseconds since the epoch, from a wall clock and a steady one, both in nanoseconds."""

    def __init__(self) -> None:
        self.use()

    def use(self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = time.monotonic_ns) -> None:
        """Read these clocks from now on, and forget the offset of earlier clocks."""
        self._wall = wall
        self._steady = steady
        # The greatest offset that the followed clock has had from the steady clock; and whether it is a server's.
        self._base = wall() - steady()
        self.follows_server = False

    def read_wall(self) -> int:
        """Return the time of day."""
        return self._wall() // 1000

    def read_due(self) -> int:
        """Return the time for due times: the time of day, or a later one after the clock was set back."""
        if self.follows_server:
            return (self._steady() + self._base) // 1000
        # The order matters: time that passes between the two reads must not make the base grow.
        ahead = self._wall() - (steady := self._steady())
        self._base = max(self._base, ahead)
        return (steady + self._base) // 1000

    def read_steady(self) -> int:
        """Return the nanoseconds of the steady clock."""
        return self._steady()

    def follow(self, at: int, asked: int) -> None:
        """Follow the clock of a server, which has answered `at` to a request that was `asked` then by the steady clock.

        The server has answered at some time since then; the middle is assumed. The clock moves only if it is behind
        the earliest time that the server may have now, and it never moves back.
        """
        steady, at = self._steady(), at * 1000
        if not self.follows_server or at - steady > self._base:
            self._base, self.follows_server = at - (asked + steady) // 2, True

    def find_offset(self) -> int:
        """Return the nanoseconds by which the clock that due times follow is ahead of the steady one.

        They are constant until the followed clock is set.
        """
        return self._base if self.follows_server else self._wall() - self._steady()


CLOCK: Final = Clock()
"""The clock of this process; tests replace its clocks with `use`."""

read_wall_clock: Final = CLOCK.read_wall
read_due_clock: Final = CLOCK.read_due


class ClockWatch:
    """Notices if the clock that due times follow was set, or if the machine has slept."""

    def __init__(self) -> None:
        self._offset = CLOCK.find_offset()

    def look(self) -> bool:
        """Return whether the clock has jumped since the last look, and log it."""
        before, self._offset = self._offset, CLOCK.find_offset()
        jump = self._offset - before
        if abs(jump) < _JUMP:
            return False
        ahead = (read_due_clock() - read_wall_clock()) / 1e6
        if jump > 0:
            log.warning("the clock was set forward by %.3f s, or the machine has slept", jump / 1e9)
        else:
            log.warning("the clock was set back by %.3f s; due times are not affected", -jump / 1e9)
        if ahead * 1e9 >= _JUMP and not CLOCK.follows_server:
            text = "if the clock was wrong before, cron and at run %.0f s early until the server is restarted"
            log.error(text, ahead)
        return True
