"""Writes the frames of each socket once in an iteration of the loop, with one system call."""

import asyncio
from typing import Protocol

from plait.cluster.gate import OPEN, Gate

__all__ = ["WriteBatcher"]


class Writer(Protocol):
    """A socket with frames to write."""

    def flush(self) -> None:
        """Write the waiting frames."""
        ...

    def drop_output(self) -> None:
        """Forget the waiting frames."""
        ...


class WriteBatcher:
    """Calls sockets to write at the end of an iteration of the loop, or later, when the gate is open."""

    def __init__(self, gate: Gate = OPEN) -> None:
        self.gate = gate
        self._waiting: list[Writer] = []
        # Those that had frames while the gate was closed.
        self._held: dict[Writer, None] = {}

    def add(self, socket: Writer) -> None:
        """Call `flush` of a socket at the end of this iteration of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(socket)

    def hold(self, socket: Writer) -> None:
        """Call `flush` of a socket when the gate is open."""
        if not self._held:
            self.gate.call_when_open(self._release)
        self._held[socket] = None

    def drop(self) -> None:
        """Forget all waiting frames."""
        for socket in (*self._waiting, *self._held):
            socket.drop_output()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for socket in waiting:
            socket.flush()

    def _release(self) -> None:
        held, self._held = self._held, {}
        for socket in held:
            socket.flush()
