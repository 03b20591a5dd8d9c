"""Work for the readers of one thread that is done a few readers at a time, so that other work gets its turn."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from plait.actor.per_actor import PerActor

__all__ = ["Paced", "paced_of"]

# Readers that are served before other work gets its turn.
_AT_ONCE: Final = 16


class Paced:
    """Calls functions in the order in which they were added, a few in each cycle of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, serve: Callable[[], object]) -> None:
        """Call a function soon."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._serve_some)
        self._waiting.append(serve)

    def _serve_some(self) -> None:
        try:
            for _ in range(min(len(self._waiting), _AT_ONCE)):
                self._waiting.popleft()()
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._serve_some)


paced_of: Final = PerActor[Paced](lambda _: Paced()).of
"""Returns the paced work of an awake thread."""
