"""The time until which a node may serve; each beat extends it."""

import math
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LEASE", "NodeLease", "boot_time"]

LEASE: Final = 3.0
"""Seconds for which a node may serve after the beginning of its last successful beat."""


def _find_clock() -> Callable[[], float]:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if clock is None else lambda: time.clock_gettime(clock)


boot_time: Final = _find_clock()
"""Returns the seconds since the machine started, including the time in which it slept, if its clock counts that."""


class NodeLease:
    """Whether this node may serve. All answers and writes ask `holds` before they leave the node."""

    __slots__ = ("_clock", "_until", "ends")

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._until = -math.inf
        # The number of times that the lease was ended early.
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
        """Serve until `LEASE` seconds after the beginning of a successful beat, by the lease's clock."""
        self._until = max(self._until, began + LEASE)

    def end(self) -> None:
        """Stop serving: the other nodes take this node for dead, or its store has lost acknowledged data."""
        self.ends += 1
        self._until = min(self._until, self._clock())
