"""When to check whether the server is still there, and how long to wait before the next attempt to connect."""

import random
from collections.abc import Callable
from typing import Final

__all__ = ["QUIET", "Backoff", "Heartbeat"]

QUIET: Final = 20.0
"""The seconds of silence after which to ask the server for an answer; after twice as many, a new socket is opened."""


class Heartbeat:
    """Notices that a server is silent."""

    def __init__(self, clock: Callable[[], float], quiet: float) -> None:
        self._clock = clock
        self._quiet = quiet
        self._heard_at = 0.0
        self._has_asked = False

    def heard(self) -> None:
        """Note that something has come from the server."""
        self._heard_at, self._has_asked = self._clock(), False

    def due(self, *, may_ask: bool) -> float:
        """Return the next time to act, if nothing comes before."""
        return self._heard_at + self._quiet * (1 if may_ask and not self._has_asked else 2)

    @property
    def is_dead(self) -> bool:
        """Whether the silence has been so long that the server is gone."""
        return self._clock() >= self._heard_at + self._quiet * 2

    def ask(self) -> bool:
        """Return whether to ask the server for an answer, once in each silence."""
        if self._has_asked or self._clock() < self._heard_at + self._quiet:
            return False
        self._has_asked = True
        return True


# Connecting again


_FIRST: Final = 0.1
_LAST: Final = 10.0
_STEADY: Final = 10.0
"""The seconds after which a connection counts as steady, so that the delays start again."""


class Backoff:
    """Growing delays; each is a random half to whole of its length, so that clients do not come all at once.

    The delays start again after a connection that was useful or lasted; a connection that is lost at once, each time,
    is as bad as none.
    """

    def __init__(self, clock: Callable[[], float], chance: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._chance = chance
        self._next = _FIRST
        self._opened_at: float | None = None

    def opened(self) -> None:
        """Note that there is a connection."""
        self._opened_at = self._clock()

    def reset(self) -> None:
        """Start the delays again, because the connection is useful."""
        self._next = _FIRST

    def delay(self, *, is_leaving: bool = False) -> float:
        """Return the seconds to wait after the loss of a connection.

        The delay is 0 instead of the shortest when the server goes away.
        """
        if self._opened_at is not None and self._clock() - self._opened_at >= _STEADY:
            self.reset()
        self._opened_at = None
        delay = self._next
        self._next = min(self._next * 2, _LAST)
        return 0.0 if is_leaving and delay == _FIRST else delay * (0.5 + self._chance() / 2)
