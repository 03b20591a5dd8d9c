"""A connection to the servers of a URL, which is replaced when it is lost."""

import random
from collections.abc import Awaitable, Callable

from plait.errors import StoreError
from plait.store.nats.api import ANSWER_TIMEOUT, Answer, Disconnected
from plait.store.nats.line import Line, connect
from plait.store.nats.url import NatsUrl
from plait.store.outcomes import Unreachable
from plait.store.reconnecting import Reconnector

__all__ = ["ServerConnection"]


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
        # The server to which the last connection has led.
        self._server = ""
        self._lines = Reconnector(
            self._connect, Line.close, lambda line: line.is_lost, server="NATS", patience=patience
        )

    async def open(self) -> None:
        """Connect to any of the servers. Raises StoreError."""
        self._lines.open(await self._connect())

    async def close(self) -> None:
        """Close the connection."""
        await self._lines.close()

    def drop(self) -> None:
        """Replace the connection, as it does not answer: by one to another server, if there is one."""
        if (line := self._lines.current) is not None:
            line.drop()

    async def line(self) -> Line:
        """Return the connection, after waiting until there is one. Raises Disconnected."""
        try:
            return await self._lines.wait()
        except StoreError as error:
            raise Disconnected(str(error)) from None

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

    async def _connect(self) -> Line:
        """Return a connection to any of the servers. Raises StoreError, about all of them."""
        troubles = dict[str, None]()
        # Of one that is paused, nothing says so until it does not answer: it is tried last.
        servers = random.sample(self.url.servers, len(self.url.servers))
        for server in sorted(servers, key=self._server.__eq__):
            where = f"{server.removeprefix('nats://')}: " if len(self.url.servers) > 1 else ""
            try:
                line = await connect(self.url, server, self._lines.replace)
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
