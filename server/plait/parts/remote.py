"""A part of a thread that another process owns, as its methods that run at the caller see it."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Any, Final, Protocol

from plait.backoff import Backoff
from plait.errors import Conflict
from plait.store.thread_rows import ThreadKey

__all__ = ["RemotePart", "Retries"]

# Seconds for which a function is called again and again for a value that others change, and the longest pauses.
_PATIENCE: Final = 8.0
_BACKOFF: Final = Backoff(0.001, 0.05)


class RemotePart(Protocol):
    """Calls the methods of a part where its thread is owned."""

    key: ThreadKey
    # The objects that the parts of this process share, by class.
    services: Mapping[type, Any]

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method, with arguments and a result that travel as JSON."""
        ...

    async def upload(self, body: AsyncIterable[bytes], method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method whose last argument is sent piece by piece."""
        ...

    def stream(self, method: str, *args: Any, **kwargs: Any) -> AsyncGenerator[bytes]:
        """Iterate over the bytes that a method yields."""
        ...


class Retries:
    """Waits before a function is called again for a value that has changed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + _PATIENCE
        self._failures = 0

    async def wait(self) -> None:
        """Wait a random time, which grows. Raises Conflict after 8 seconds in all."""
        if self._clock() > self._until:
            raise Conflict(f"{self._what}, in another process, changes too often for a function of it: use an rpc")
        self._failures += 1
        await asyncio.sleep(random.uniform(0, _BACKOFF.delay(self._failures)))
