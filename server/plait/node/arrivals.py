"""The order of those who want a thread that is waking."""

import asyncio
from collections import deque
from typing import TypeVar

from plait.node.ending import wait_for
from plait.store.protocol import ThreadKey

__all__ = ["Arrivals"]

T = TypeVar("T")


class _Crowd:
    """Those who want one thread."""

    __slots__ = ("count", "later")

    def __init__(self) -> None:
        # Those who have not gone on yet; among them those who came when the thread was awake already.
        self.count = 0
        self.later: deque[asyncio.Future[None]] = deque()


class Arrivals:
    """Lets those who wait for a thread go on in order of arrival, with those who come before the last of them has."""

    def __init__(self) -> None:
        self._crowds: dict[ThreadKey, _Crowd] = {}

    def has(self, key: ThreadKey) -> bool:
        """Whether somebody who wants a thread has not gone on yet."""
        return key in self._crowds

    async def wait(self, key: ThreadKey, waking: asyncio.Task[T]) -> T:
        """Wait for a thread that is waking. Raises what `wait_for` does."""
        self._crowds.setdefault(key, _Crowd()).count += 1
        try:
            return await wait_for(waking)
        finally:
            self._leave(key)

    async def follow(self, key: ThreadKey) -> None:
        """Wait until all who came before have gone on; there must be some."""
        crowd, future = self._crowds[key], asyncio.get_running_loop().create_future()
        crowd.count += 1
        crowd.later.append(future)
        try:
            await future
        finally:
            if future in crowd.later:  # The caller is cancelled.
                crowd.later.remove(future)
            self._leave(key)

    def _leave(self, key: ThreadKey) -> None:
        crowd = self._crowds[key]
        crowd.count -= 1
        if crowd.count == len(crowd.later):
            for future in crowd.later:
                if not future.done():
                    future.set_result(None)
            crowd.later.clear()
        if not crowd.count:
            del self._crowds[key]
