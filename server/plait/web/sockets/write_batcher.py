"""Writing what sockets have to send: once an iteration of the loop, one system call for many frames."""

import asyncio
from typing import Protocol

__all__ = ["WriteBatcher"]


class Writer(Protocol):
    """Has something to write."""

    def flush(self) -> None:
        """Write what waits."""
        ...


class WriteBatcher:
    """Has sockets write when the callbacks that are running have ended."""

    def __init__(self) -> None:
        self._waiting: list[Writer] = []

    def add(self, socket: Writer) -> None:
        """Have `socket` write at the end of this iteration of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(socket)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for socket in waiting:
            socket.flush()
