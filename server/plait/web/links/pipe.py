"""One end of a request or a call on a link, whose sender waits until its receiver has room."""

import asyncio
import struct
from typing import Final

from plait.actor.transport import Frame
from plait.web.links.link import Link

__all__ = ["PIECE", "WINDOW", "Pipe"]

# Of both ends: there is room for so many bytes more; a part of the next message, which is longer.
_ROOM: Final = 28
_PART: Final = 29

WINDOW: Final = 64 * 1024
"""The bytes that may be on their way."""

PIECE: Final = WINDOW // 2
"""The most bytes that a sender sends at once, and after which a receiver makes room for more."""

_SIZE: Final = struct.Struct("<I")


class Pipe:
    """A Stream without frames, which has room for `room` bytes at the other end.

    That which opens it has none: the first that it is given says that the other end has taken the request.
    """

    def __init__(self, link: Link, number: int = 0, *, room: int = 0) -> None:
        self._link = link
        self._number = number
        self._room = room
        # What was received and used up, and is not told yet.
        self._used = 0
        self._parts = bytearray()
        self._is_link_full = False
        # Whether the other end reads no more.
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, kind: int, data: bytes = b"") -> None:
        """Send a message at once, which may be long."""
        start = 0
        while len(data) - start > WINDOW:
            self._link.put(_PART, self._number, data[start : start + WINDOW])
            start += WINDOW
        self._link.put(kind, self._number, data[start:])

    async def send(self, kind: int, data: bytes, *, last: int) -> None:
        """Send data in pieces as there is room for them; the last one is of the kind `last`."""
        for at in range(0, max(len(data), 1), PIECE):
            piece = data[at : at + PIECE]
            await self.wait_for_room(len(piece))
            self._room -= len(piece)
            self._link.put(last if at + PIECE >= len(data) else kind, self._number, piece)

    async def wait_for_room(self, size: int = 0) -> None:
        """Wait until there is room, on the link as well; return at once if the other end reads no more."""
        while (self._room < size or self._is_link_full) and not self._is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def give_room(self, size: int = WINDOW) -> None:
        """Tell the other end that it may send so many bytes more."""
        self._link.put(_ROOM, self._number, _SIZE.pack(size))

    def use(self, size: int) -> None:
        """Count bytes that were received and used up, and make room now and then."""
        self._used += size
        if self._used >= PIECE:
            self.give_room(self._used)
            self._used = 0

    def end(self) -> None:
        """Wait for room no more."""
        self._is_over = True
        self._wake()

    def take(self, kind: int, data: bytes) -> None:
        """Handle a whole message."""
        raise NotImplementedError

    # Stream

    def receive(self, kind: int, data: bytes) -> None:
        """Handle a message of the other end."""
        if kind == _ROOM:
            self._room += _SIZE.unpack(data)[0]
            self._wake()
        elif kind == _PART:
            self._parts += data
        elif self._parts:
            whole, self._parts = bytes(self._parts) + data, bytearray()
            self.take(kind, whole)
        else:
            self.take(kind, data)

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        """Fail, as there are no frames."""
        raise AssertionError("requests and calls have no frames")

    def pause(self) -> None:
        """Send nothing, as the link is full."""
        self._is_link_full = True

    def resume(self) -> None:
        """Send, as the link has room."""
        self._is_link_full = False
        self._wake()

    def lose(self) -> None:
        """End, as the link or the other end is lost."""
        self.end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
