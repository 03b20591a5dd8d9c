"""A request to another node and its answer: the body goes up, chunks come down, and the last chunk is the reply."""

import asyncio
import struct
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Final

import msgspec

from plait.actor.transport import Frame
from plait.cluster.owners import NodeId
from plait.errors import Unavailable
from plait.web.links.link import Link

__all__ = [
    "PIECE",
    "REFUSED",
    "WINDOW",
    "Incoming",
    "Lost",
    "Outgoing",
    "Pipe",
    "Refused",
    "pack_owner",
    "unpack_owner",
]

# Sent by both ends: there is room for this many more bytes.
_ROOM: Final = 28

WINDOW: Final = 64 * 1024
"""Maximum bytes that may be on their way."""

PIECE: Final = WINDOW // 2
"""Maximum bytes of a piece, and the used bytes after which a receiver makes room for more."""

REFUSED: Final = 26
"""The only answer of a node that did nothing, as it is shutting down or does not own the thread; names the owner."""

# Sent by both ends: a piece, and the last piece. Sent by the asking end: the reply is not needed any longer.
_PIECE: Final = 31
_LAST: Final = 32
_CANCEL: Final = 33

_SIZE: Final = struct.Struct("<I")

pack_owner: Final = msgspec.json.encode
unpack_owner: Final[Callable[[bytes], NodeId | None]] = msgspec.json.Decoder(NodeId | None).decode


class Lost(Exception):
    """The link, or the work of the other node, has ended before the reply."""


class Refused(Exception):
    """The other node did nothing; `owner` is the owner of the thread, if the node knows it."""

    def __init__(self, owner: NodeId | None) -> None:
        super().__init__()
        self.owner = owner


class Pipe:
    """One end of a request: sends and receives pieces, the last of them marked. It may send `room` bytes.

    The asking end begins without room: its first room means that the other end reads the body.
    """

    def __init__(self, link: Link, number: int = 0, *, room: int = 0) -> None:
        self._link = link
        self._number = number
        self._room = room
        # Received pieces, each with whether it is the last one, and the error that has ended the request.
        self._found: asyncio.Queue[tuple[bytes, bool] | Lost | Refused] = asyncio.Queue()
        # Whether the other end has got its first room, from a `next` that waits; and the bytes used up since the last
        # room.
        self._has_given = False
        self._used = 0
        self._is_link_full = False
        # Whether the other end reads no more.
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        # Called when the other end has made room.
        self.on_room: Callable[[], object] = _ignore

    def put(self, data: bytes, *, is_last: bool = False) -> None:
        """Send a piece at once, even without room."""
        self._link.put(_LAST if is_last else _PIECE, self._number, data)

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Send bytes of any length, cut into pieces; wait for room before each one."""
        for at in range(0, max(len(data), 1), PIECE):
            piece = data[at : at + PIECE]
            await self.wait_for_room(len(piece))
            self._room -= len(piece)
            self.put(piece, is_last=is_last and at + PIECE >= len(data))

    async def wait_for_room(self, size: int = 0) -> None:
        """Wait until there is room, on the link as well; return at once if the other end reads no more."""
        while (self._room < size or self._is_link_full) and not self._is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def next(self) -> tuple[bytes, bool]:
        """Return the next piece, and whether it is the last one. Raises Lost and Refused."""
        if not self._has_given and self._found.empty():
            self._has_given = True
            self.give_room()
        found = await self._found.get()
        if isinstance(found, Exception):
            self._found.put_nowait(Lost())  # For other readers, now and later.
            raise found
        return found

    def give_room(self, size: int = WINDOW) -> None:
        """Tell the other end that it may send this many more bytes."""
        self._link.put(_ROOM, self._number, _SIZE.pack(size))

    def use(self, size: int) -> None:
        """Count received bytes as used up; make room for each `PIECE` of them."""
        self._used += size
        if self._used >= PIECE:
            self.give_room(self._used)
            self._used = 0

    def end(self) -> None:
        """Stop waiting for room."""
        self._is_over = True
        self._wake()

    # Messages of the other end

    def accept(self, data: bytes, *, is_last: bool) -> None:
        """Take a piece."""
        self._found.put_nowait((data, is_last))

    def add_room(self, size: int) -> None:
        """Allow this many more bytes, as the other end has used them up."""
        self._room += size
        self._wake()
        self.on_room()

    # The stream of the link

    def take(self, kind: int, data: bytes) -> None:
        if kind == _ROOM:
            self.add_room(_SIZE.unpack(data)[0])
        elif kind == REFUSED:
            self.finish(Refused(unpack_owner(data)))
        elif kind == _CANCEL:
            self.lose()
        else:
            self.accept(data, is_last=kind == _LAST)

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        raise AssertionError("requests and calls have no frames")

    def set_full(self, *, is_full: bool) -> None:
        self._is_link_full = is_full
        self._wake()

    def lose(self) -> None:
        self.finish(Lost())

    def finish(self, found: tuple[bytes, bool] | Lost | Refused) -> None:
        """End the request with its reply, or an error."""
        self.end()
        self._found.put_nowait(found)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Outgoing(Pipe):
    """The asking end, which opens the stream with a first message of a `kind`. The last piece is the reply."""

    def __init__(self, link: Link, kind: int, request: bytes, *, room: int = 0) -> None:
        super().__init__(link, room=room)
        self._is_cancelled = False
        self._has_given = True  # The other end has a window from the beginning.
        self._number = link.open(kind, request, self)

    async def send_body(self, pieces: AsyncIterable[bytes]) -> None:
        """Send the body, or the rest of it, as the other end reads it. Returns early if the request ends."""
        await self.wait_for_room(1)
        if self._is_over:
            return
        async for piece in pieces:
            await self.send(piece)
            if self._is_over:
                return
        self.put(b"", is_last=True)

    def cancel(self) -> bool:
        """Tell the other end that the reply is not needed; return False if the request has already ended."""
        if not self._is_over and not self._is_cancelled:
            self._is_cancelled = True
            self._link.put(_CANCEL, self._number)
        return not self._is_over

    def accept(self, data: bytes, *, is_last: bool) -> None:
        if is_last:
            self.finish((data, True))
        else:
            super().accept(data, is_last=False)

    def finish(self, found: tuple[bytes, bool] | Lost | Refused) -> None:
        self._link.forget(self._number)
        super().finish(found)


class Incoming(Pipe):
    """The answering end. The first piece of the body may have come with the request."""

    def __init__(self, link: Link, number: int, *first: tuple[bytes, bool]) -> None:
        super().__init__(link, number, room=WINDOW)
        for piece in first:
            self._found.put_nowait(piece)
        # Called when the other end is lost or has cancelled the request.
        self.on_cancel: Callable[[], object] = _ignore

    async def body(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces of the body. Raises Unavailable if the request ends before its body."""
        is_last = False
        while not is_last:
            try:
                data, is_last = await self.next()
            except Lost:
                raise Unavailable("the request has ended before its body") from None
            yield data
            self.use(len(data))

    async def send_chunk(self, data: bytes) -> None:
        """Send a chunk in one piece, once the other end has read all but a window of the earlier chunks."""
        await self.wait_for_room(1)
        self._room -= len(data)
        self.put(data)

    def reply(self, data: bytes) -> None:
        """Send the reply at once."""
        self._link.forget(self._number)
        self.put(data, is_last=True)

    def refuse(self) -> None:
        """Tell the other end that nothing was done."""
        self._link.forget(self._number)
        self._link.put(REFUSED, self._number, pack_owner(None))

    def lose(self) -> None:
        super().lose()
        self.on_cancel()


def _ignore() -> None:
    pass
