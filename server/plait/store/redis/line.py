"""One connection to a Redis server. All that is not an answer of the server is one error."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import ReadOnlyError, ResponseError

from plait.store.outcomes import describe

__all__ = ["Command", "Line"]

Command = Sequence[object]
"""A command and its arguments: bytes, text and numbers."""


class Line:
    """A connection, on which one caller at a time runs commands."""

    def __init__(self, connection: Any, timeout: float) -> None:
        self._connection = connection
        # Seconds for which an answer is awaited. The driver has a timeout, too, which may swallow a cancellation.
        self._timeout = timeout

    @classmethod
    async def open(cls, kind: Any, host: str, port: int, *, timeout: float, **options: Any) -> Self:
        """Connect, and log in. Raises LostError and ResponseError."""
        options |= {"retry": Retry(NoBackoff(), 0), "protocol": 2, "driver_info": None, "socket_timeout": None}
        line = cls(kind(host=host, port=port, **options), timeout)
        async with line._losing():
            await line._connection.connect()
        return line

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of the server."""
        return self._connection.host, self._connection.port

    @property
    def is_lost(self) -> bool:
        """Whether it leads to no server. One that ends closes its connections; what is sent then may have arrived."""
        return not self._connection.is_connected or self._connection._reader.at_eof()

    async def run(self, *commands: Command) -> list[Any]:
        """Return the answers of commands that are sent together. Raises the error of the first that has failed."""
        connection, packed, found = self._connection, self._connection.pack_commands(commands), list[Any]()
        async with self._losing():
            if self.is_lost:
                raise LostError("the connection is lost")
            await connection.send_packed_command(packed, check_health=False)
            for _ in commands:
                try:
                    found.append(await connection.read_response())
                except ResponseError as error:
                    found.append(error)
        if (failure := next((each for each in found if isinstance(each, ResponseError)), None)) is not None:
            if isinstance(failure, ReadOnlyError):  # The server is no longer the primary.
                self.terminate()
            raise failure
        return found

    async def close(self) -> None:
        """Close the connection."""
        self.terminate()

    def terminate(self) -> None:
        """Close the connection at once; a command that waits for its answer fails."""
        connection = self._connection
        if (writer := connection._writer) is not None:
            connection._parser.on_disconnect()
            connection._reader = connection._writer = None
            writer.transport.abort()

    # Inside

    @asynccontextmanager
    async def _losing(self) -> AsyncIterator[None]:
        """Close the connection after all but an answer, as answers may be left on it. Raises LostError then.

        The driver and uvloop have several errors for a lost connection, RuntimeError among them.
        """
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except BaseException as error:
            self.terminate()
            if isinstance(error, ResponseError | LostError) or not isinstance(error, Exception):
                raise
            why = "the server does not answer in time" if isinstance(error, TimeoutError) else describe(error)
            raise LostError(why) from error
