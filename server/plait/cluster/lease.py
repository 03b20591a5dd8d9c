"""The time until which a node may serve; each beat extends it."""

import math
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LEASE", "NodeLease", "boot_time"]

LEASE: Final = 3.0
"""Seconds that a node may serve after its last successful beat began."""


def _find_clock() -> Callable[[], float]:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if clock is None else lambda: time.clock_gettime(clock)


boot_time: Final = _find_clock()
"""Returns the seconds since the machine has started, also those in which it slept, where its clock tells them."""


class NodeLease:
    """Whether this node may serve. Everything that leaves it, answers and writes, asks `holds` first."""

    __slots__ = ("_clock", "_until", "ends")

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._until = -math.inf
        # How often it was ended before its time.
        self.ends = 0

    @property
    def holds(self) -> bool:
        """Whether the node may serve now."""
        return self._clock() < self._until

    @property
    def rest(self) -> float:
        """Seconds until the lease ends; zero or less if it has ended."""
        return self._until - self._clock()

    def extend(self, began: float) -> None:
        """Serve until `LEASE` seconds after a beat that began at this time of the clock, and has succeeded."""
        self._until = max(self._until, began + LEASE)

    def end(self) -> None:
        """Stop serving: the node is dead for the others, or its store has lost what it has acknowledged."""
        self.ends += 1
        self._until = min(self._until, self._clock())
