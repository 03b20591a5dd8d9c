"""Writes the frames of each socket once in an iteration of the loop, with one system call."""

import asyncio
from typing import Protocol

__all__ = ["WriteBatcher"]


class Writer(Protocol):
    """A socket with frames to write."""

    def flush(self) -> None:
        """Write the waiting frames."""
        ...


class WriteBatcher:
    """Calls sockets to write at the end of an iteration of the loop."""

    def __init__(self) -> None:
        self._waiting: list[Writer] = []

    def add(self, socket: Writer) -> None:
        """Call `flush` of a socket at the end of this iteration of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(socket)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for socket in waiting:
            socket.flush()
