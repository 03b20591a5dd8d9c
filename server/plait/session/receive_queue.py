"""Keeps a client's messages in order: until they can be handled, and if some are refused and resent."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from plait.actor.connection import Connection
from plait.actor.transport import Cancellable, Transport
from plait.errors import PlaitError
from plait_schemas.codes import INTERNAL_ERROR

__all__ = ["MessageOrder", "ReceiveQueue"]

# The number and the bytes of waiting messages at which reading is paused.
_WAITING: Final = 64
_BYTES: Final = 1024 * 1024
# The maximum number and bytes of waiting messages that are handed over at once.
_AT_ONCE: Final = 16
_BYTES_AT_ONCE: Final = 16 * 1024


class ReceiveQueue:
    """Hands messages to `take` after `on_connect` has returned, unless held or the connection is closed."""

    __slots__ = ("_connection", "_is_held", "_messages", "_next", "_size", "_transport", "take")

    def __init__(self, connection: Connection, transport: Transport, take: Callable[[bytes, bool], None]) -> None:
        self._connection = connection
        self._transport = transport
        # Handles a message.
        self.take = take
        self._is_held = True
        # None when empty: an empty deque would use more memory than the rest of an idle connection.
        self._messages: deque[tuple[bytes, bool] | Callable[[], None]] | None = None
        self._size = 0
        # Hands over the next waiting messages.
        self._next: Cancellable | None = None

    def receive(self, data: bytes, is_text: bool) -> None:
        """Hand over a message, or keep it until it can be handled."""
        if self._connection.is_closed:
            return
        if not self._is_held and self._messages is None:
            self.take(data, is_text)
            return
        if self._messages is None:
            self._messages = deque()
        self._messages.append((data, is_text))
        self._size += len(data)
        if self._is_full:
            self._transport.pause()

    def call_in_order(self, action: Callable[[bytes], None], data: bytes) -> None:
        """Call `action` with `data` after the waiting messages, or at once if there are none."""
        if self._messages is None:
            action(data)
            return
        self._messages.append(partial(action, data))
        if self._is_full:
            self._transport.pause()

    def open(self, error: PlaitError | None) -> None:
        """Begin to hand over messages, as `on_connect` has returned; close the connection if it raised `error`."""
        if error is not None:
            self._connection.close(INTERNAL_ERROR, f"on_connect failed: {error}")
        else:
            self.release()

    def hold(self) -> None:
        """Hold back messages until `release`, as the last one is not handled yet."""
        self._is_held = True

    def release(self) -> None:
        """Hand over the waiting messages, a few at a time, and then new ones at once, until `hold`."""
        self._is_held = False
        if self._next is None and self._messages:
            self._go_on()

    def finish(self) -> None:
        """Hand over all waiting messages, which came before the socket was closed; none if the queue is held."""
        while self._messages and not self._is_held:
            if self._next is not None:
                self._next.cancel()
            self._hand_over()

    def close(self) -> None:
        """Drop the waiting messages."""
        self._messages = None
        if self._next is not None:
            self._next.cancel()

    def _go_on(self) -> None:
        """Schedule the next messages: many connections may have waiting messages at once."""
        self._next = None
        waiting = self._transport.schedule(self._hand_over)
        if waiting is not None:
            self._next = waiting

    def _hand_over(self) -> None:
        self._next = None
        is_paused = self._is_full
        count = size = 0
        while self._messages and not self._is_held and count < _AT_ONCE and size < _BYTES_AT_ONCE:
            message = self._messages.popleft()
            count += 1
            if callable(message):
                message()
                continue
            size += len(message[0])
            self._size -= len(message[0])
            if not self._connection.is_closed:
                self.take(*message)
        if not self._messages:
            self._messages = None
        elif not self._is_held:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)
        if is_paused and not self._is_full:
            self._transport.resume()

    @property
    def _is_full(self) -> bool:
        return self._size >= _BYTES or (self._messages is not None and len(self._messages) >= _WAITING)


class MessageOrder:
    """Accepts messages in order if the client counts them; other clients lose refused messages."""

    __slots__ = ("_is_counted", "_next", "taken")

    def __init__(self) -> None:
        # The number of accepted messages.
        self.taken = 0
        self._next = 1
        self._is_counted = False

    def expect(self, number: int) -> None:
        """Set the number of the next message, for a client that counts and resends its messages."""
        if not self._is_counted:
            self.taken = number - 1
        self._next = number
        self._is_counted = True

    def take(self) -> bool:
        """Accept a message; return False if it was accepted before or an earlier one is missing."""
        is_next = self._next == self.taken + 1
        self._next += 1
        self.taken += is_next
        return is_next

    def refuse(self) -> int | None:
        """Refuse a message; return the number of messages accepted before, or None if the client does not count."""
        if self._is_counted:
            self._next += 1
            return self.taken
        return None
