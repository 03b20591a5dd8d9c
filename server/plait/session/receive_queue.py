"""What a client sends before it can be handled, kept in its order until then."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from plait.actor.connection import Connection
from plait.actor.transport import Cancellable, Transport
from plait_schemas.codes import INTERNAL_ERROR

__all__ = ["ReceiveQueue"]

# Messages that may wait, and their bytes, until nothing more is read.
_WAITING: Final = 64
_BYTES: Final = 1024 * 1024
# Of those that have waited, so many or so many bytes are handed over before others have their turns.
_AT_ONCE: Final = 16
_BYTES_AT_ONCE: Final = 16 * 1024


class ReceiveQueue:
    """Hands messages to `take`, from when `on_connect` has finished, while they are not held or the connection shut."""

    __slots__ = ("_connection", "_is_held", "_messages", "_next", "_size", "_take", "_transport")

    def __init__(self, connection: Connection, transport: Transport, take: Callable[[bytes, bool], None]) -> None:
        self._connection = connection
        self._transport = transport
        self._take = take
        self._is_held = True
        # None when nothing waits: an empty deque takes more than all else of an idle connection.
        self._messages: deque[tuple[bytes, bool]] | None = None
        self._size = 0
        # Hands over the next of those that have waited.
        self._next: Cancellable | None = None

    def receive(self, data: bytes, is_text: bool) -> None:
        """Take a message."""
        if self._connection.is_closed:
            return
        if not self._is_held and self._messages is None:
            self._take(data, is_text)
            return
        if self._messages is None:
            self._messages = deque()
        self._messages.append((data, is_text))
        self._size += len(data)
        if self._is_full:
            self._transport.pause()

    def opened(self, error: BaseException | None) -> None:
        """Take note that `on_connect` has finished, or of what it raised, which closes the connection."""
        if error is not None:
            self._connection.close(INTERNAL_ERROR, "the thread could not take the connection")
        else:
            self.release()

    def hold(self) -> None:
        """Hand nothing over until `release`: what came last has to be carried out first."""
        self._is_held = True

    def release(self) -> None:
        """Hand over what has come, a little at a time, and what comes, until something asks again to hold it."""
        self._is_held = False
        if self._next is None and self._messages:
            self._go_on()

    def close(self) -> None:
        """Forget what has come."""
        self._messages = None
        if self._next is not None:
            self._next.cancel()

    def _go_on(self) -> None:
        """Hand over some of what has waited when it is its turn: of many connections, too, each has waited at once."""
        self._next = None
        waiting = self._transport.take_turn(self._hand_over)
        if waiting is not None:
            self._next = waiting

    def _hand_over(self) -> None:
        self._next = None
        is_paused = self._is_full
        count = size = 0
        while self._messages and not self._is_held and count < _AT_ONCE and size < _BYTES_AT_ONCE:
            message = self._messages.popleft()
            count += 1
            size += len(message[0])
            self._size -= len(message[0])
            if not self._connection.is_closed:
                self._take(*message)
        if not self._messages:
            self._messages = None
        elif not self._is_held:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)
        if is_paused and not self._is_full:
            self._transport.resume()

    @property
    def _is_full(self) -> bool:
        return self._size >= _BYTES or (self._messages is not None and len(self._messages) >= _WAITING)
