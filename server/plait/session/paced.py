"""Work for the readers of one thread that is done a few readers at a time, so that other work gets its turn."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

from plait.actor.per_actor import PerActor

__all__ = ["Paced", "paced_of"]

# Seconds for which readers are served before other work gets its turn, and the number of readers.
_LONGEST: Final = 0.005
_AT_ONCE: Final = 16


class Paced:
    """Calls functions in the order in which they were added, a few in each cycle of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_scheduled = False

    def add(self, serve: Callable[[], object]) -> None:
        """Call a function soon."""
        self._waiting.append(serve)
        self._schedule()

    def _serve_some(self) -> None:
        self._is_scheduled, until = False, perf_counter() + _LONGEST
        try:
            for _ in range(min(len(self._waiting), _AT_ONCE)):
                self._waiting.popleft()()
                if perf_counter() > until:
                    break
        finally:
            self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve_some)


paced_of: Final = PerActor[Paced](lambda _: Paced()).of
"""Returns the paced work of an awake thread."""
