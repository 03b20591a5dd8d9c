"""The two clocks of a process, which alone read the time of day.

Due times are compared with `read_due_clock`: it follows a clock forward, and never back, so a clock that is set back
delays nothing. That is the wall clock or, with a store that several machines share, the clock of its server, so that
theirs need not agree. All else reads the wall clock: tokens, entries that expire, what is pruned, and times that are
stored or shown. The time at which a thread expires is a due time.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

__all__ = ["CLOCK", "Clock", "ClockWatch", "read_due_clock", "read_wall_clock"]

log = logging.getLogger("plait.clock")

# Nanoseconds by which the wall clock must jump to be noticed.
_JUMP: Final = 1_000_000_000


class Clock:
    """The time in microseconds since the epoch, from a wall clock and a steady one, both in nanoseconds."""

    def __init__(self) -> None:
        self.use()

    def use(self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = time.monotonic_ns) -> None:
        """Read these clocks from now on, and forget by how much an earlier wall clock was ahead."""
        self._wall = wall
        self._steady = steady
        # The most by which the clock that is followed was ever ahead of the steady one; and whether it is a server's.
        self._base = wall() - steady()
        self.follows_server = False

    def read_wall(self) -> int:
        """Return the time of day."""
        return self._wall() // 1000

    def read_due(self) -> int:
        """Return the time for due times: the time of day, or a later one after the clock was set back."""
        if self.follows_server:
            return (self._steady() + self._base) // 1000
        # In this order: whatever time passes between the two, the base does not grow by it.
        ahead = self._wall() - (steady := self._steady())
        self._base = max(self._base, ahead)
        return (steady + self._base) // 1000

    def read_steady(self) -> int:
        """Return the nanoseconds of the steady clock."""
        return self._steady()

    def follow(self, at: int, asked: int) -> None:
        """Follow the clock of a server, which has said, since it was `asked` by the steady clock, that it is `at`.

        The answer is from the middle of that time, but only what is certain moves the clock: it is never set back.
        """
        steady, at = self._steady(), at * 1000
        if not self.follows_server or at - steady > self._base:
            self._base, self.follows_server = at - (asked + steady) // 2, True

    def find_offset(self) -> int:
        """Return the nanoseconds by which the clock of due times, when it is not set back, is ahead of the steady one.

        They are constant until that clock is set.
        """
        return self._base if self.follows_server else self._wall() - self._steady()


CLOCK: Final = Clock()
"""The clock of this process; a test gives it other clocks by `use`."""

read_wall_clock: Final = CLOCK.read_wall
read_due_clock: Final = CLOCK.read_due


class ClockWatch:
    """Notices that the clock which due times follow was set, or that the machine has slept."""

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
            log.warning("the clock was set back by %.3f s; what is due goes on by the time before", -jump / 1e9)
        if ahead * 1e9 >= _JUMP and not CLOCK.follows_server:
            text = "if the clock was wrong before, cron and at run %.0f s early until the server is restarted"
            log.error(text, ahead)
        return True
