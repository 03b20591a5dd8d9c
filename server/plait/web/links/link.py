"""A link between two nodes: one stream socket, over which many streams send messages in both directions.

The node that dialled opens the streams: one for each socket, request or call whose thread the other node owns. A
message is a header (the bytes after it, a kind, the number of a stream) and data. Messages of one stream keep their
order. All messages of one iteration of the loop are written at once, and a frame for many sockets once, with their
numbers.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, cast

from plait.actor.logs import log_internal
from plait.actor.transport import Frame
from plait.cluster.gate import OPEN, Gate
from plait.cluster.owners import NodeId

__all__ = ["AWAY", "LOST", "Answer", "Link", "LinkStream", "Opener"]

LOST: Final = 0
"""Sent by either node: the stream has ended without its last message."""

AWAY: Final = 1
"""Sent by the node that was dialled: it is shutting down, and takes no further streams."""

_CAST_TEXT: Final = 2
_CAST_BINARY: Final = 3
_CAST_PINGED: Final = 4
_CASTS: Final = frozenset({_CAST_TEXT, _CAST_BINARY, _CAST_PINGED})

_LAST_OWN_KIND: Final = 9
# A frame for several streams: its kind, their numbers, the frame, and the payload of its ping.
_Cast = tuple[int, list[int], Frame, bytes | None]
_CAST_LENGTH: Final = 4

_HEADER: Final = struct.Struct("<IBI")
_SINGLE: Final = struct.Struct("<IBII")
_NUMBER: Final = struct.Struct("<I")
_HIGH_WATER: Final = 4 * 1024 * 1024
_STREAMS: Final = 1 << 32
# Seconds that the other node gets to read the last messages.
_CLOSE_TIMEOUT: Final = 2.0


class LinkStream(Protocol):
    """One socket, request or call on a link."""

    def take(self, kind: int, data: bytes) -> None:
        """Handle a message from the other node."""
        ...

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        """Handle a frame, which may be for many streams; with `payload`, it is sent with a ping."""
        ...

    def set_full(self, *, is_full: bool) -> None:
        """Pause or resume sending: while the link is full, add as little as possible."""
        ...

    def lose(self) -> None:
        """End, as the link or the other end is lost. The link has already removed the stream."""
        ...


Opener = Callable[["Link", int, bytes], LinkStream | None]
"""Makes the other end of a stream from the link, the number of the stream, and its first message."""

Answer = Callable[[NodeId | None], "Link"]
"""Makes the link to a node that has dialled."""


class Link(asyncio.Protocol):
    """One end of a link. `openers` makes streams from the first messages of the other node, by kind."""

    def __init__(
        self,
        openers: Mapping[int, Opener],
        ended: Callable[["Link"], None],
        *,
        high_water: int = _HIGH_WATER,
        gate: Gate = OPEN,
        node: NodeId | None = None,
    ) -> None:
        # The other node, if it is known.
        self.node = node
        self._gate = gate
        self._openers = openers
        self._ended = ended
        self._high_water = high_water
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        # Done when the connection is lost.
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._streams: dict[int, LinkStream] = {}
        self._last_number = 0
        self._input = bytearray()
        # The messages and casts of this iteration of the loop, written at its end. `_casts` has the place of each frame
        # in `_out`, and `_last_places` the place of the last message of each stream.
        self._out: list[tuple[int, int, bytes] | _Cast] = []
        self._casts: dict[int, int] = {}
        self._last_places: dict[int, int] = {}
        # Whether the other node takes no further streams.
        self.is_away = False
        # Whether more than `high_water` bytes wait, and whether messages wait for the gate.
        self._is_backed_up = False
        self._is_gated = False
        # Messages sent, which tests count, and bytes.
        self.sent = self.bytes_sent = self.bytes_received = 0

    @property
    def is_closed(self) -> bool:
        """Whether the link is lost."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_full(self) -> bool:
        """Whether senders should wait before they put more on the link."""
        return self._is_backed_up or self._is_gated

    @property
    def descriptor(self) -> int:
        """The number of the socket's file descriptor; -1 if it is closed."""
        number: int = -1 if self._transport is None else self._transport.get_extra_info("socket").fileno()
        return number

    def open(self, kind: int, data: bytes, stream: LinkStream) -> int:
        """Begin a stream with its first message, and return its number."""
        number = self._last_number
        while number in self._streams or number == self._last_number:
            number = (number + 1) % _STREAMS
        self._last_number = number
        if self._lost.done():  # The link was lost after the caller had found it.
            self._loop.call_soon(self._lose, stream)
            return number
        self._streams[number] = stream
        self.put(kind, number, data)
        if self.is_full:
            stream.set_full(is_full=True)
        return number

    def forget(self, number: int) -> None:
        """Remove a stream; later messages of the other node for it are dropped."""
        self._streams.pop(number, None)

    def put(self, kind: int, number: int, data: bytes = b"") -> None:
        """Send a message."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._last_places[number] = len(self._out)
        self._out.append((kind, number, data))

    def cast(self, frame: Frame, number: int, payload: bytes | None = None) -> None:
        """Send a frame to a socket. Sockets share it with others that get it, unless that would reorder messages."""
        out, last = self._out, self._last_places
        if not out:
            self._loop.call_soon(self._flush)
        # The same frame may be sent with the payload and without it: these are two casts.
        key = id(frame) if payload is None else -id(frame)
        place = self._casts.get(key)
        if place is not None and last.get(number, -1) < place:
            cast = out[place]
            assert len(cast) == _CAST_LENGTH
            cast[1].append(number)
            last[number] = place
            return
        self._casts[key] = last[number] = len(out)
        # `_out` keeps the frame alive, as Python may otherwise use its id again.
        out.append((_CAST_TEXT if frame.is_text else _CAST_BINARY, [number], frame, payload))

    def cast_all(self, frame: Frame, numbers: Sequence[int]) -> None:
        """Send a frame to the sockets with these numbers."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._casts.clear()  # A later frame must not share a place before this one.
        count = len(numbers)
        data = struct.pack(f"<{count}I", *numbers) + frame.data
        self._out.append((_CAST_TEXT if frame.is_text else _CAST_BINARY, count, data))

    async def close(self) -> None:
        """Send the waiting messages, and close the link; its streams are lost."""
        if (transport := self._transport) is None:
            return
        self._flush()
        transport.close()
        await asyncio.wait([self._lost], timeout=_CLOSE_TIMEOUT)
        if not self._lost.done():
            transport.abort()
            await self._lost

    def abort(self) -> None:
        """Close the link, and drop its unsent messages."""
        self._out = []
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have no base class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(self._high_water)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._lose(stream)
        self._ended(self)
        self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._set_full(is_backed_up=True)

    def resume_writing(self) -> None:
        self._set_full(is_backed_up=False)

    def data_received(self, data: bytes) -> None:
        self.bytes_received += len(data)
        # A write of the other node usually arrives as a whole.
        source: bytes | bytearray = data
        if self._input:
            self._input += data
            source = self._input
        at, end = 0, len(source)
        while end - at >= _HEADER.size:
            size, kind, number = _HEADER.unpack_from(source, at)
            begin = at + _HEADER.size
            if end - begin < size:
                break
            at = begin + size
            message = bytes(source[begin:at])
            if kind > _LAST_OWN_KIND and (stream := self._streams.get(number)) is not None:
                try:
                    stream.take(kind, message)
                except Exception as error:
                    self._fail(number, stream, error)
            else:
                self._take(kind, number, message)
        if source is self._input:
            del self._input[:at]
        else:
            self._input += source[at:]

    # Inside

    def _set_full(self, *, is_backed_up: bool | None = None, is_gated: bool | None = None) -> None:
        was_full = self.is_full
        if is_backed_up is not None:
            self._is_backed_up = is_backed_up
        if is_gated is not None:
            self._is_gated = is_gated
        if self.is_full != was_full:
            for stream in tuple(self._streams.values()):
                stream.set_full(is_full=not was_full)

    def _take(self, kind: int, number: int, data: bytes) -> None:
        if kind in _CASTS:
            self._take_cast(kind, number, data)
        elif kind == AWAY:
            self.is_away = True
        elif kind == LOST:
            if (stream := self._streams.pop(number, None)) is not None:
                self._lose(stream)
        elif (opener := self._openers.get(kind)) is not None:
            try:
                opened = opener(self, number, data)
            except Exception as error:
                log_internal(error)
                self.put(LOST, number)
                return
            if opened is not None:
                self._streams[number] = opened
                if self.is_full:
                    opened.set_full(is_full=True)

    def _take_cast(self, kind: int, count: int, data: bytes) -> None:
        at = 4 * count
        payload = None
        if kind == _CAST_PINGED:
            payload = data[at + 1 : at + 1 + data[at]]
            at += 1 + len(payload)
        frame = Frame(data[at:], is_text=kind != _CAST_BINARY)
        # Most frames are for one stream, such as answers.
        for number in _NUMBER.unpack_from(data) if count == 1 else struct.unpack_from(f"<{count}I", data):
            if (stream := self._streams.get(number)) is not None:
                try:
                    stream.deliver(frame, payload)
                except Exception as error:
                    self._fail(number, stream, error)

    def _fail(self, number: int, stream: LinkStream, error: Exception) -> None:
        """End a stream after its end on this node has raised an exception: a fault of plait."""
        log_internal(error)
        self.forget(number)
        self.put(LOST, number)
        self._lose(stream)

    def _lose(self, stream: LinkStream) -> None:
        try:
            stream.lose()
        except Exception as error:  # The other streams must still learn of the loss.
            log_internal(error)

    def _flush(self) -> None:
        if self._out and not self._gate.is_open:
            self._set_full(is_gated=True)
            self._gate.call_when_open(self._flush)
            return
        if self._is_gated:
            self._set_full(is_gated=False)
        out, self._out = self._out, []
        self._casts.clear()
        self._last_places.clear()
        if not out or self._transport is None or self._transport.is_closing():
            return
        self.sent += len(out)
        parts: list[bytes] = []
        for entry in out:
            if len(entry) == _CAST_LENGTH:
                parts += _pack_cast(*entry)
            else:
                kind, number, data = entry
                parts += (_HEADER.pack(len(data), kind, number), data)
        written = b"".join(parts)
        self.bytes_sent += len(written)
        self._transport.write(written)


def _pack_cast(kind: int, numbers: list[int], frame: Frame, payload: bytes | None) -> tuple[bytes, ...]:
    data, count = frame.data, len(numbers)
    if payload is not None:
        kind, data = _CAST_PINGED, b"%c%b%b" % (len(payload), payload, data)
    if count == 1:
        return _SINGLE.pack(len(data) + 4, kind, 1, numbers[0]), data
    return _HEADER.pack(len(data) + 4 * count, kind, count), struct.pack(f"<{count}I", *numbers), data
