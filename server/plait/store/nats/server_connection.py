"""A connection to the servers of a URL, which is replaced when it is lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from plait.backoff import Backoff
from plait.errors import StoreError
from plait.store.nats.api import ANSWER_TIMEOUT, Answer, Disconnected
from plait.store.nats.line import Line, connect
from plait.store.nats.url import NatsUrl
from plait.store.outcomes import Unreachable

__all__ = ["ServerConnection"]

# Seconds for which callers wait for a lost connection. After that they fail at once, until there is another one.
_PATIENCE: Final = 5.0
# Between attempts to connect.
_BACKOFF: Final = Backoff(0.05, 1.0)


class ServerConnection:
    """Leads to one of the servers of a URL. A task replaces it when it is lost.

    `on_connected` is called with each new connection before anything else uses it; if it raises StoreError, the
    connection is not used, and the next one is tried.
    """

    def __init__(
        self,
        url: NatsUrl,
        on_connected: Callable[[Line], Awaitable[None]] | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        self.url = url
        self._on_connected = on_connected
        self._patience = _PATIENCE if patience is None else patience
        self._line: Line | None = None
        # The server to which the last connection has led.
        self._server = ""
        # Connections that were lost, and are to be closed.
        self._lost: list[Line] = []
        self._connecting: asyncio.Task[None] | None = None
        self._lost_at = 0.0
        self._trouble = ""
        self._is_open = False

    async def open(self) -> None:
        """Connect to any of the servers. Raises StoreError."""
        self._is_open = True
        try:
            self._line = await self._connect()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection."""
        self._is_open = False
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._line is not None:
            await self._line.close()
            self._line = None
        await self._close_lost()

    def drop(self) -> None:
        """Replace the connection, as it does not answer: by one to another server, if there is one."""
        if self._line is not None:
            self._line.drop()

    async def line(self) -> Line:
        """Return the connection, after waiting until there is one. Raises Disconnected."""
        loop = asyncio.get_running_loop()
        while (line := self._line) is None or line.is_lost:
            if not self._is_open:
                raise Disconnected("the store is closed")
            if self._connecting is None:
                self._lose(line)
            assert self._connecting is not None
            left = self._lost_at + self._patience - loop.time()
            if left <= 0 or not (await asyncio.wait([self._connecting], timeout=left))[0]:
                raise Disconnected(f"NATS cannot be reached: {self._trouble or 'the connection is lost'}")
        return line

    async def request(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, *, timeout: float = ANSWER_TIMEOUT
    ) -> Answer:
        """Send a message, and return the answer. Raises Unreachable and Lost."""
        return await (await self.line()).request(subject, data, headers, timeout=timeout)

    async def collect(
        self, subject: str, data: bytes, is_last: Callable[[Answer], bool], *, timeout: float = ANSWER_TIMEOUT
    ) -> list[Answer]:
        """Send a message, and return its answers up to the last one. Raises Unreachable and Lost."""
        return await (await self.line()).collect(subject, data, is_last, timeout=timeout)

    # Inside

    def _lose(self, line: Line | None) -> None:
        """Begin to replace the connection."""
        if line is not self._line or not self._is_open or self._connecting is not None:
            return
        if line is not None:
            self._line = None
            self._lost.append(line)
        loop = asyncio.get_running_loop()
        self._lost_at = loop.time()
        self._connecting = loop.create_task(self._reconnect(), name="plait connects to NATS")

    async def _reconnect(self) -> None:
        failures = 0
        try:
            while True:
                await self._close_lost()
                try:
                    line = await self._connect()
                except StoreError as error:
                    self._trouble = str(error)
                else:
                    break
                failures += 1
                await asyncio.sleep(_BACKOFF.delay(failures))
        finally:
            self._connecting = None
        self._line, self._trouble = line, ""
        if line.is_lost:
            self._lose(line)

    async def _connect(self) -> Line:
        """Return a connection to any of the servers. Raises StoreError, about all of them."""
        troubles = dict[str, None]()
        # Of one that is paused, nothing says so until it does not answer: it is tried last.
        servers = random.sample(self.url.servers, len(self.url.servers))
        for server in sorted(servers, key=self._server.__eq__):
            where = f"{server.removeprefix('nats://')}: " if len(self.url.servers) > 1 else ""
            try:
                line = await connect(self.url, server, self._lose)
            except Unreachable as error:
                troubles[f"{where}{error}"] = None
                continue
            try:
                if self._on_connected is not None:
                    await self._on_connected(line)
            except Unreachable as error:
                await line.close()
                troubles[f"{where}{error}"] = None
            except BaseException:
                await line.close()
                raise
            else:
                self._server = server
                return line
        raise Unreachable("; ".join(troubles))

    async def _close_lost(self) -> None:
        while self._lost:
            await self._lost.pop().close()
