"""Encodes and parses WebSocket frames, and makes each socket write once in an iteration of the loop."""

import asyncio
import logging
from time import perf_counter
from typing import Final, Protocol

from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from plait.actor.transport import Frame
from plait.cluster.gate import OPEN, Gate
from plait.web.fairness import AT_ONCE

try:
    from websockets.speedups import apply_mask
except ImportError:  # The extension is not built for all platforms.
    from websockets.utils import apply_mask

__all__ = ["FrameParser", "WriteBatcher", "is_utf8", "serialize", "serialize_pinged", "shorten"]


# By default, websockets would log each socket that opens or closes.
_protocol_log = logging.getLogger("plait.sockets.protocol")
_protocol_log.setLevel(logging.WARNING)


def serialize(data: bytes, first: int) -> bytes:
    """Encode an unmasked frame of the server with its first byte (RFC 6455, section 5.2)."""
    size = len(data)
    if size < 126:
        return b"%c%c%b" % (first, size, data)
    if size < 65536:
        return b"%c\x7e%b%b" % (first, size.to_bytes(2), data)
    return b"%c\x7f%b%b" % (first, size.to_bytes(8), data)


def serialize_pinged(frame: Frame, payload: bytes) -> bytes:
    """Encode a frame with a ping directly before its last fragment, one byte (RFC 6455, section 5.4).

    A ping before the whole frame might be answered while the frame is still arriving.
    """
    data, last = frame.data[:-1], frame.data[-1:]
    start = serialize(data, 0x01 if frame.is_text else 0x02)
    return b"%b\x89%c%b\x80%c%b" % (start, len(payload), payload, len(last), last)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def shorten(reason: str) -> str:
    """Shorten a close reason to the 123 bytes that a frame can hold."""
    return reason.encode(errors="backslashreplace")[:123].decode(errors="ignore")


# Bytes that the protocol parses at once: about a hundred of the smallest frames, or more if frames are large.
_SLICE: Final = 2048
_LARGEST_SLICE: Final = 8192
_FEW: Final = 8
# Maximum messages and pongs, and maximum bytes, that are taken at once; and the largest message that is taken directly.
_MESSAGES: Final = 64
_BYTES: Final = 128 * 1024
_LARGEST_MESSAGE: Final = 256 * 1024
_CONTROL: Final = frozenset({Opcode.CLOSE, Opcode.PING, Opcode.PONG})
# The first byte of a message in one frame and of a pong, and a bit of the second (RFC 6455, section 5.2).
_WHOLE: Final = {0x81: Opcode.TEXT, 0x82: Opcode.BINARY, 0x8A: Opcode.PONG}
_MASKED: Final = 0x80


class _Protocol(ServerProtocol):
    """Accepts a close frame between the fragments of a message, which websockets takes for a violation."""

    def recv_frame(self, frame: WebSocketFrame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self.current_size = None
        super().recv_frame(frame)


class FrameParser:
    """Parses received bytes into frames, and joins the fragments of a message.

    A frame is a message, a control frame, or an empty CONT for a fragment that is not the last. Pongs, and messages in
    one frame of at most `max_size` bytes and 256 KiB, are taken directly; websockets' protocol, which is slower, parses
    others.
    """

    __slots__ = (
        "_at",
        "_begun",
        "_largest",
        "_max_size",
        "_missing",
        "_opcode",
        "_pending",
        "_protocol",
        "_slice",
        "_unread",
        "frames",
        "has_replies",
    )

    def __init__(self, max_size: int) -> None:
        # None until it is needed.
        self._protocol: ServerProtocol | None = None
        self._max_size = max_size
        self._largest = min(max_size, _LARGEST_MESSAGE)
        # The received bytes, and the number of them that have been parsed.
        self._unread: bytes | bytearray = b""
        self._at = 0
        # If they begin a message or a pong: the number of bytes that are missing before it can be parsed.
        self._missing = 0
        # Bytes that the protocol has received since its last frame; 0 only between frames.
        self._pending = 0
        self._slice = _SLICE
        # Parsed frames, the last first, until they are taken. A list, since an empty deque is large.
        self.frames: list[tuple[Opcode, bytes]] = []
        # Whether the protocol may have answers to the parsed frames, or has ended the connection.
        self.has_replies = False
        # The fragments of an incomplete message, and its opcode; None if there is none.
        self._begun: bytearray | None = None
        self._opcode = Opcode.TEXT

    @property
    def protocol(self) -> ServerProtocol:
        """The protocol, which also closes the connection."""
        if self._protocol is None:
            self._protocol = _Protocol(state=State.OPEN, max_size=self._max_size, logger=_protocol_log)
        return self._protocol

    @property
    def is_waiting(self) -> bool:
        """Whether there are frames that have not been taken, or bytes that can be parsed."""
        return bool(self.frames) or bool(self._unread and not self._missing)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if not self._unread:
            self._unread = data
        else:
            if self._at or not isinstance(self._unread, bytearray):
                self._unread = bytearray(self._unread[self._at :])
                self._at = 0
            self._unread += data  # This does not copy the earlier bytes.
            self._missing = max(0, self._missing - len(data))

    def drop(self) -> None:
        """Drop everything that has not been taken."""
        self.frames.clear()
        self._unread = b""
        self._at = self._missing = 0

    def parse(self) -> bool:
        """Parse some of the bytes; the frames parsed before must have been taken."""
        if not self._unread or self._missing:
            return False
        is_open = self._protocol is None or self._protocol.state is State.OPEN
        if is_open and not self._pending and self._begun is None:
            self._take_frames()
        if not self.frames:
            if self._missing:
                return False
            self._parse_slice()
        if len(self.frames) > 1:
            self.frames.reverse()
        return True

    def _take_frames(self) -> None:
        """Take messages and pongs up to the first frame that is of another kind, too large, or incomplete."""
        data, at, frames = self._unread, self._at, self.frames
        end = len(data)
        last, largest = min(end, at + _BYTES), self._largest
        while at < last and len(frames) < _MESSAGES:
            opcode = _WHOLE.get(data[at])
            if opcode is None:
                break
            if at + 1 == end:
                self._missing = 1
                break
            size, mask = data[at + 1] - _MASKED, at + 2
            if size >= 126:  # The length is in the next two bytes, or in eight if it is larger.
                if opcode is Opcode.PONG:
                    break
                wide = 2 if size == 126 else 8
                mask += wide
                if mask > end:
                    self._missing = mask - end
                    break
                size = int.from_bytes(data[mask - wide : mask])
            if not 0 <= size <= largest:
                break
            start = mask + 4
            after = start + size
            if after > end:
                self._missing = after - end
                break
            frames.append((opcode, apply_mask(data[start:after], data[mask:start])))
            at = after
        # An idle socket keeps no bytes.
        self._unread, self._at = (data, at) if at < end else (b"", 0)

    def _parse_slice(self) -> None:
        """Parse some of the bytes with the protocol."""
        start, end = self._at, self._at + self._slice
        data = self._unread[start:end]
        self._unread, self._at = (self._unread, end) if end < len(self._unread) else (b"", 0)
        self._pending += len(data)
        self.has_replies = True
        self.protocol.receive_data(data)
        frames = [event for event in self.protocol.events_received() if isinstance(event, WebSocketFrame)]
        for frame in frames:
            self._pending -= _measure(len(frame.data))
            if frame.opcode in _CONTROL or (frame.fin and self._begun is None):
                self.frames.append((frame.opcode, bytes(frame.data)))
            else:
                self._join(frame)
        if len(frames) >= _FEW:
            self._slice = _SLICE
        elif len(data) == self._slice < _LARGEST_SLICE:
            self._slice *= 2

    def _join(self, frame: WebSocketFrame) -> None:
        """Add a fragment, and keep the message if it is the last one."""
        if self._begun is None:
            self._opcode = frame.opcode
            self._begun = bytearray()
        self._begun += frame.data
        if frame.fin:
            data, self._begun = bytes(self._begun), None
            self.frames.append((self._opcode, data))
        else:
            self.frames.append((Opcode.CONT, b""))


def _measure(size: int) -> int:
    """Return the minimum length of a client's frame with a payload of `size` bytes."""
    return 6 + size + (0 if size < 126 else 2 if size < 65536 else 8)


class BatchedSocket(Protocol):
    """A socket with frames to write."""

    def flush(self) -> None:
        """Write the waiting frames."""
        ...

    def drop_output(self) -> None:
        """Forget the waiting frames."""
        ...


class WriteBatcher:
    """Calls sockets to write at the end of an iteration of the loop, or later, when the gate is open.

    The batcher pauses after 10 ms, and continues in the next iteration: a large frame for many sockets takes longer, as
    the kernel copies it to the buffer of each socket.
    """

    def __init__(self, gate: Gate = OPEN) -> None:
        self.gate = gate
        self._waiting: list[BatchedSocket] = []
        # The sockets that had frames while the gate was closed.
        self._held: dict[BatchedSocket, None] = {}

    def add(self, socket: BatchedSocket) -> None:
        """Call `flush` of a socket at the end of this iteration of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(socket)

    def hold(self, socket: BatchedSocket) -> None:
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
        if len(waiting) == 1:
            waiting[0].flush()
            return
        end = perf_counter() + AT_ONCE
        for number, socket in enumerate(waiting, 1):
            socket.flush()
            if perf_counter() > end and (rest := waiting[number:]):
                if not self._waiting:
                    asyncio.get_running_loop().call_soon(self._flush)
                self._waiting = rest + self._waiting
                break

    def _release(self) -> None:
        held, self._held = self._held, {}
        for socket in held:
            self.add(socket)
