"""Writes the head of an answer together with the beginning of its body, as each write costs a system call."""

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["HeadWriter"]

# Parts of a body with at least this many bytes are not copied to be written with the head.
_LARGE: Final = 64 * 1024


class HeadWriter:
    """The transport that uvicorn gets for one answer.

    The first data is held until the next data, `flush`, or the loop's next iteration. `close` closes the connection.
    """

    __slots__ = ("_close", "_held", "_is_new", "_loop", "_transport")

    def __init__(
        self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop, close: Callable[[], object]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._close = close
        self._is_new = True
        self._held = b""

    def write(self, data: bytes) -> None:
        """Write data after the earlier data."""
        if self._is_new:
            self._is_new = False
            self._held = data
            self._loop.call_soon(self.flush)
            return
        if self._held and len(data) < _LARGE:
            data, self._held = self._held + data, b""
        else:
            self.flush()
        self._transport.write(data)

    def flush(self) -> None:
        """Write the held data."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def close(self) -> None:
        """Close the connection after everything is written."""
        self.flush()
        self._close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closing."""
        return self._transport.is_closing()
