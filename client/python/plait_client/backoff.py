"""How long to wait before the next attempt to connect."""

import random
from collections.abc import Callable
from typing import Final

__all__ = ["Backoff"]

_FIRST: Final = 0.1
_LAST: Final = 10.0


class Backoff:
    """Growing delays, each of them a random half to whole of what it might be, so that clients do not come at once."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._next = _FIRST

    def reset(self) -> None:
        """Begin with the shortest again."""
        self._next = _FIRST

    def delay(self) -> float:
        """Return how many seconds to wait this time."""
        delay = self._next * (0.5 + self._chance() / 2)
        self._next = min(self._next * 2, _LAST)
        return delay
