"""The clock of this process as a test sets it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from plait.clock import CLOCK

__all__ = ["Clock", "stopped_clock"]


class Clock:
    """The clock of this process, which stands still until it is moved."""

    def __init__(self) -> None:
        # Even in microseconds, as the stored times of work are.
        self._wall = time.time_ns() // 2_000 * 2_000
        self._steady = time.monotonic_ns()
        self._use()

    @property
    def now(self) -> int:
        """The time of day in microseconds since the epoch."""
        return self._wall // 1000

    def move(self, seconds: float) -> None:
        """Advance both clocks: time passes."""
        self._steady += int(seconds * 1e9)
        self._wall += int(seconds * 1e9)

    def jump(self, seconds: float) -> None:
        """Set the wall clock, while no time passes."""
        self._wall += int(seconds * 1e9)

    def set(self, at: int) -> None:
        """Begin at a time, as if it had always been that."""
        self._wall = at * 1000
        self._use()

    def _use(self) -> None:
        CLOCK.use(lambda: self._wall, lambda: self._steady)


@contextmanager
def stopped_clock() -> Iterator[Clock]:
    """Stop the clock of this process."""
    try:
        yield Clock()
    finally:
        CLOCK.use()
