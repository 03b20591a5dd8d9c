"""When to ask whether the server is still there, and how long to wait before the next attempt to connect."""

import random
from collections.abc import Callable
from typing import Final

__all__ = ["QUIET", "Backoff", "Heartbeat"]

QUIET: Final = 20.0
"""The seconds of silence after which to ask for a sign of life; after twice as many, a new socket is opened."""


class Heartbeat:
    """Notices that a server is silent."""

    def __init__(self, clock: Callable[[], float], quiet: float) -> None:
        self._clock = clock
        self._quiet = quiet
        self._heard_at = 0.0
        self._has_asked = False

    def heard(self) -> None:
        """Something has come, whatever it was."""
        self._heard_at, self._has_asked = self._clock(), False

    def due(self, *, may_ask: bool) -> float:
        """Return when there will be something to do, should nothing come."""
        return self._heard_at + self._quiet * (1 if may_ask and not self._has_asked else 2)

    @property
    def is_dead(self) -> bool:
        """Whether nothing has come for so long that nothing will."""
        return self._clock() >= self._heard_at + self._quiet * 2

    def ask(self) -> bool:
        """Return whether a sign of life is to be asked for, which is so once in a silence."""
        if self._has_asked or self._clock() < self._heard_at + self._quiet:
            return False
        self._has_asked = True
        return True


# Connecting again


_FIRST: Final = 0.1
_LAST: Final = 10.0
_STEADY: Final = 10.0
"""The seconds after which a connection counts as steady, and the delays begin with the shortest again."""


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
