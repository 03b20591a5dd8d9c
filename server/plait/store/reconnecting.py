"""Replaces a connection of a store when it is lost, and limits how many callers use some at once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, TypeVar

from plait.backoff import Backoff
from plait.errors import StoreError
from plait.store.outcomes import Unreachable

__all__ = ["Reconnector", "Turns"]

# Seconds for which callers wait for a lost connection. After that they fail at once, until there is another one.
_PATIENCE: Final = 5.0
# Seconds for which a caller waits for one of a few connections while none of them gets an answer.
_TURN: Final = 10.0
# Between attempts to connect.
_BACKOFF: Final = Backoff(0.05, 1.0)

C = TypeVar("C")


class Reconnector(Generic[C]):
    """Has a connection to a server. A task replaces it when it is lost, as often as `connect` raises StoreError."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        close: Callable[[C], Awaitable[None]],
        is_lost: Callable[[C], bool],
        *,
        server: str,
        patience: float | None = None,
    ) -> None:
        self._connect = connect
        self._close = close
        self._is_lost = is_lost
        self._server = server
        self._patience = _PATIENCE if patience is None else patience
        # The last connection, which may be lost.
        self.current: C | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._lost_at = 0.0
        self._trouble = ""
        self._is_open = False

    def open(self, connection: C) -> None:
        """Begin with a connection, which this closes in the end."""
        self._is_open, self.current = True, connection

    async def close(self) -> None:
        """Close the connection."""
        self._is_open = False
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self.current is not None:
            await self._close(self.current)

    async def wait(self) -> C:
        """Return the connection, after waiting until there is one. Raises StoreError if it is lost for too long."""
        loop = asyncio.get_running_loop()
        while (found := self.current) is None or self._is_lost(found):
            if found is None or not self._is_open:
                raise StoreError("the store is closed")
            self.replace(found)
            assert self._connecting is not None
            left = self._lost_at + self._patience - loop.time()
            if left <= 0 or not (await asyncio.wait([self._connecting], timeout=left))[0]:
                raise Unreachable(f"{self._server} cannot be reached: {self._trouble or 'the connection is lost'}")
        return found

    def replace(self, lost: object) -> None:
        """Begin to replace the connection if it is this one."""
        current = self.current
        if current is not None and current is lost and self._is_open and self._connecting is None:
            loop = asyncio.get_running_loop()
            self._lost_at = loop.time()
            self._connecting = loop.create_task(self._reconnect(current), name="plait reconnects a store")

    # Inside

    async def _reconnect(self, lost: C) -> None:
        failures = 0
        try:
            await self._close(lost)
            while True:
                try:
                    found = await self._connect()
                except StoreError as error:
                    self._trouble = str(error)
                else:
                    break
                failures += 1
                await asyncio.sleep(_BACKOFF.delay(failures))
        finally:
            self._connecting = None
        self.current, self._trouble = found, ""
        if self._is_lost(found):
            self.replace(found)


class Turns:
    """Gives turns to `most` callers at once. The others wait as long as some of these get answers."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._answers = 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a turn. Raises Unreachable if no caller has got an answer for some seconds."""
        before = -1
        while before != self._answers:
            before = self._answers
            with suppress(TimeoutError):
                async with asyncio.timeout(_TURN):
                    await self._free.acquire()
                break
        else:
            raise Unreachable("the server does not answer in time")
        try:
            yield
            self._answers += 1
        finally:
            self._free.release()
