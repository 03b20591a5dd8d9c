"""Encodes and parses WebSocket frames."""

from typing import Final

from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode
from websockets.server import ServerProtocol

from plait.actor.transport import Frame

__all__ = ["Incoming", "is_utf8", "serialize", "shorten"]


def serialize(frame: Frame) -> bytes:
    """Encode a frame from server to client: unfragmented and unmasked (RFC 6455, section 5.2)."""
    first = 0x81 if frame.is_text else 0x82
    size = len(frame.data)
    if size < 126:
        return b"%c%c%b" % (first, size, frame.data)
    if size < 65536:
        return b"%c\x7e%b%b" % (first, size.to_bytes(2), frame.data)
    return b"%c\x7f%b%b" % (first, size.to_bytes(8), frame.data)


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def shorten(reason: str) -> str:
    """Shorten a close reason to the 123 bytes that a frame can hold."""
    return reason.encode(errors="backslashreplace")[:123].decode(errors="ignore")


# Bytes that are parsed at once: about a hundred of the smallest frames, and more if the frames are large.
_SLICE: Final = 2048
_LARGEST_SLICE: Final = 8192
_FEW: Final = 8
_CONTROL: Final = frozenset({Opcode.CLOSE, Opcode.PING, Opcode.PONG})


class Incoming:
    """Parses received bytes into frames, and joins the fragments of a message.

    A frame is a message, a control frame, or an empty CONT for a fragment that is not the last.
    """

    __slots__ = ("_at", "_begun", "_opcode", "_protocol", "_slice", "_unread", "frames")

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        # The received bytes, and how many of them have been parsed.
        self._unread = b""
        self._at = 0
        self._slice = _SLICE
        # Parsed frames, the last first, until they are taken. A list, since an empty deque is large.
        self.frames: list[tuple[Opcode, bytes]] = []
        # The fragments of an incomplete message, and its opcode; None if there is none.
        self._begun: bytearray | None = None
        self._opcode = Opcode.TEXT

    @property
    def is_waiting(self) -> bool:
        """Whether there are frames or bytes that have not been taken."""
        return bool(self.frames) or self._at < len(self._unread)

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._unread = self._unread[self._at :] + data
        self._at = 0

    def drop(self) -> None:
        """Drop everything that has not been taken."""
        self.frames.clear()
        self._unread = b""
        self._at = 0

    def parse(self) -> bool:
        """Parse some of the bytes; the frames parsed before must have been taken."""
        start, end = self._at, self._at + self._slice
        data = self._unread[start:end]
        if not data:
            return False
        if end < len(self._unread):
            self._at = end
        else:
            self._unread = b""
            self._at = 0
        self._protocol.receive_data(data)
        frames = [event for event in self._protocol.events_received() if isinstance(event, WebSocketFrame)]
        for frame in frames:
            if frame.opcode in _CONTROL or (frame.fin and self._begun is None):
                self.frames.append((frame.opcode, bytes(frame.data)))
            else:
                self._join(frame)
        if len(frames) >= _FEW:
            self._slice = _SLICE
        elif len(data) == self._slice < _LARGEST_SLICE:
            self._slice *= 2
        if len(frames) > 1:
            self.frames.reverse()
        return True

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
