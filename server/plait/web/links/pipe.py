"""A request to another node and its answer: a body goes up, chunks come down, and the reply is the last message.

A sender waits until its receiver has room.
"""

import asyncio
import struct
from collections import deque
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

# Of both ends: there is room for so many bytes more.
_ROOM: Final = 28

WINDOW: Final = 64 * 1024
"""The bytes that may be on their way."""

PIECE: Final = WINDOW // 2
"""The most bytes that a sender sends at once, and after which a receiver makes room for more."""

REFUSED: Final = 26
"""The only answer of a node that has done nothing: it is shutting down, or does not own the thread; with its owner."""

# Of the node that asks: a piece of the body, and the last one; that the reply is not needed any longer.
_BODY: Final = 31
_LAST_BODY: Final = 32
_CANCEL: Final = 33
# Of the node that answers.
_CHUNK: Final = 36
_REPLY: Final = 37

_SIZE: Final = struct.Struct("<I")
_decode_owner: Final = msgspec.json.Decoder(NodeId | None).decode


class Lost(Exception):
    """The link, or the work of the other node, has ended before the reply."""


class Refused(Exception):
    """The other node has done nothing; `owner` owns the thread, if the node knows that."""

    def __init__(self, owner: NodeId | None) -> None:
        super().__init__()
        self.owner = owner


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
        self._is_link_full = False
        # Whether the other end reads no more.
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, kind: int, data: bytes = b"") -> None:
        """Send a message at once, whether there is room or not."""
        self._link.put(kind, self._number, data)

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

    def handle(self, kind: int, data: bytes) -> None:
        """Handle a message of another kind than those of pipes."""
        raise NotImplementedError

    def add_room(self, size: int) -> None:
        """Send more, as the other end has used up so many bytes."""
        self._room += size
        self._wake()

    # The stream of the link

    def take(self, kind: int, data: bytes) -> None:
        if kind == _ROOM:
            self.add_room(_SIZE.unpack(data)[0])
        else:
            self.handle(kind, data)

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        raise AssertionError("requests and calls have no frames")

    def set_full(self, *, is_full: bool) -> None:
        self._is_link_full = is_full
        self._wake()

    def lose(self) -> None:
        self.end()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Outgoing(Pipe):
    """A request at the node that asks, which opens the stream with a first message of a `kind`."""

    def __init__(self, link: Link, kind: int, request: bytes, *, room: int = 0) -> None:
        super().__init__(link, room=room)
        # Chunks, and then the reply; each with whether it is the reply. Or the error that ends the request.
        self._found: asyncio.Queue[tuple[bytes, bool] | Lost | Refused] = asyncio.Queue()
        self._is_cancelled = False
        self._number = link.open(kind, request, self)

    async def next(self) -> tuple[bytes, bool]:
        """Return the next chunk, or the reply, and whether it is the reply. Raises Lost and Refused."""
        found = await self._found.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def send_body(self, pieces: AsyncIterable[bytes]) -> None:
        """Send the body, or the rest of it, when the other node reads it. Return early if the request has ended."""
        await self.wait_for_room(1)
        if self._is_over:
            return
        async for piece in pieces:
            await self.send(_BODY, piece, last=_BODY)
            if self._is_over:
                return
        self.put(_LAST_BODY)

    def cancel(self) -> bool:
        """Tell the other node that the reply is not needed; return whether it is still to come."""
        if not self._is_over and not self._is_cancelled:
            self._is_cancelled = True
            self.put(_CANCEL)
        return not self._is_over

    def finish(self, found: tuple[bytes, bool] | Lost | Refused) -> None:
        """End the request with its reply, or an error."""
        self._link.forget(self._number)
        self.end()
        self._found.put_nowait(found)

    # Pipe

    def handle(self, kind: int, data: bytes) -> None:
        if kind == _CHUNK:
            self._found.put_nowait((data, False))
        else:
            self.finish((data, True) if kind == _REPLY else Refused(unpack_owner(data)))

    def lose(self) -> None:
        self.finish(Lost())


class Incoming(Pipe):
    """A request at the node that answers it. The first piece of its body may have come with it."""

    def __init__(self, link: Link, number: int, *first: tuple[bytes, bool]) -> None:
        super().__init__(link, number, room=WINDOW)
        # Pieces of the body, and whether each is the last one.
        self._body = deque(first)
        self._arrived = asyncio.Event()
        # Whether the other node was given room for the rest of the body.
        self._has_given = False
        # Called when the other node has read a chunk, and when it is lost or has cancelled the request.
        self.on_read: Callable[[], object] = _ignore
        self.on_cancel: Callable[[], object] = _ignore

    async def read(self) -> tuple[bytes, bool] | None:
        """Return the next piece of the body, and whether it is the last one; None if the request has ended before."""
        while not self._body:
            if self._is_over:
                return None
            if not self._has_given:
                self._has_given = True
                self.give_room()
            self._arrived.clear()
            await self._arrived.wait()
        piece = self._body.popleft()
        self.use(len(piece[0]))
        return piece

    async def body(self) -> AsyncIterator[bytes]:
        """Iterate over the pieces of the body. Raises Unavailable if the request ends before its body."""
        is_last = False
        while not is_last:
            if (found := await self.read()) is None:
                raise Unavailable("the request has ended before its body")
            data, is_last = found
            yield data

    def put_chunk(self, data: bytes) -> None:
        """Send a chunk at once."""
        self.put(_CHUNK, data)

    async def send_chunk(self, data: bytes) -> None:
        """Send a chunk when the other node has read those before it, but for a window."""
        await self.wait_for_room(1)
        self._room -= len(data)
        self.put_chunk(data)

    async def send_part(self, data: bytes, *, is_reply: bool) -> None:
        """Send bytes of any length as chunks, or as chunks and the reply."""
        await self.send(_CHUNK, data, last=_REPLY if is_reply else _CHUNK)
        if is_reply:
            self._link.forget(self._number)

    def reply(self, data: bytes) -> None:
        """Send the reply at once."""
        self._link.forget(self._number)
        self.put(_REPLY, data)

    def refuse(self) -> None:
        """Tell the other node that nothing was done."""
        self._link.forget(self._number)
        self.put(REFUSED, pack_owner(None))

    # Pipe

    def handle(self, kind: int, data: bytes) -> None:
        if kind == _CANCEL:
            self.lose()
        else:
            self._body.append((data, kind == _LAST_BODY))
            self._arrived.set()

    def add_room(self, size: int) -> None:
        super().add_room(size)
        self.on_read()

    def end(self) -> None:
        super().end()
        self._arrived.set()

    def lose(self) -> None:
        self.end()
        self.on_cancel()


def _ignore() -> None:
    pass


def pack_owner(owner: NodeId | None) -> bytes:
    """Encode the owner of a thread."""
    return msgspec.json.encode(owner)


def unpack_owner(data: bytes) -> NodeId | None:
    """Decode what `pack_owner` has encoded."""
    owner: NodeId | None = _decode_owner(data)
    return owner
