"""How long to wait before the next attempt to connect."""

import random
from collections.abc import Callable
from typing import Final

__all__ = ["Backoff"]

_FIRST: Final = 0.1
_LAST: Final = 10.0
_STEADY: Final = 10.0
"""A connection that has lasted for so many seconds is not what an outage looks like."""


class Backoff:
    """Growing delays, each of them a random half to whole of what it might be, so that clients do not come at once.

    They begin with the shortest again when a connection was of use, or lasted: one that is made and lost at once, each
    time, is as bad as none.
    """

    def __init__(self, clock: Callable[[], float], chance: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._chance = chance
        self._next = _FIRST
        self._opened_at: float | None = None

    def opened(self) -> None:
        """There is a connection."""
        self._opened_at = self._clock()

    def reset(self) -> None:
        """Begin with the shortest again: the connection is of use."""
        self._next = _FIRST

    def delay(self, *, is_leaving: bool = False) -> float:
        """Return how many seconds to wait this time, the connection having been lost.

        It is 0 instead of the shortest when it was lost because the server goes away.
        """
        if self._opened_at is not None and self._clock() - self._opened_at >= _STEADY:
            self.reset()
        self._opened_at = None
        delay = self._next
        self._next = min(self._next * 2, _LAST)
        return 0.0 if is_leaving and delay == _FIRST else delay * (0.5 + self._chance() / 2)
