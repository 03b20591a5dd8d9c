"""A socket that has been accepted, and what it holds."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from plait.actor.connection import Connection
from plait.actor.transport import Receiver, Transport

__all__ = ["OpenSocket", "Place"]


class OpenSocket(Transport, Protocol):
    """A socket that has been accepted, here or at a gateway."""

    def attach(self, receiver: Receiver) -> None:
        """Pass the peer's messages to `receiver` from now on; nothing is read before the first call."""
        ...


class Place:
    """What a socket holds until its turns have ended; then `left` is called. It keeps no reference to the opening."""

    __slots__ = ("_left", "connection", "joining")

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        # The connection, after the socket has begun to join.
        self.connection: Connection | None = None
        # The task that joins it, which is cancelled if the peer disconnects.
        self.joining: asyncio.Task[Any] | None = None

    def leave(self) -> None:
        """Cancel the join, and call `left` when the socket's turns have ended."""
        joining, self.joining = self.joining, None
        if joining is not None:
            joining.cancel()
        if self.connection is None:
            self._left()
        else:
            self.connection.call_when_turns_end(self._left)
