"""What the peer of a WebSocket has sent: parsed a little at a time, and put together to messages. No I/O."""

from typing import Final

from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

__all__ = ["Incoming"]

# Bytes that are parsed in one go: some hundred of the smallest frames, and more while there are but few frames in them.
_SLICE: Final = 2048
_LARGEST_SLICE: Final = 8192
_FEW: Final = 8
_CONTROL: Final = frozenset({Opcode.CLOSE, Opcode.PING, Opcode.PONG})


class Incoming:
    """Bytes that have come, the frames that were in some of them, and the message in fragments of which they are part.

    A frame is a message, a control frame, or an empty CONT for a fragment that ends no message.
    """

    __slots__ = ("_at", "_begun", "_opcode", "_protocol", "_slice", "_unread", "frames")

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        # What has come, and up to where it has been parsed.
        self._unread = b""
        self._at = 0
        self._slice = _SLICE
        # What has been parsed, until it is taken, the last first. An empty deque would be large.
        self.frames: list[tuple[Opcode, bytes]] = []
        # What has come of a message in fragments, and what it is; None while none is under way.
        self._begun: bytearray | None = None
        self._opcode = Opcode.TEXT

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that has not been taken or parsed."""
        return bool(self.frames) or self._at < len(self._unread)

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._unread = self._unread[self._at :] + data
        self._at = 0

    def drop(self) -> None:
        """Forget what has not been taken."""
        self.frames.clear()
        self._unread = b""
        self._at = 0

    def parse(self) -> bool:
        """Parse a slice, unless there is none; what has been parsed before must have been taken."""
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
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
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

    def _join(self, frame: Frame) -> None:
        """Keep the message in fragments that a frame ends, or that it ends none."""
        if self._begun is None:
            self._opcode = frame.opcode
            self._begun = bytearray()
        self._begun += frame.data
        if frame.fin:
            data, self._begun = bytes(self._begun), None
            self.frames.append((self._opcode, data))
        else:
            self.frames.append((Opcode.CONT, b""))
