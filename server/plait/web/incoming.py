"""What the peer of a WebSocket has sent: parsed a little at a time, and put together to messages. No I/O."""

from collections import deque
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

    __slots__ = ("_at", "_begun", "_frames", "_opcode", "_protocol", "_slice", "_unread")

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        # What has come, and up to where it has been parsed.
        self._unread = b""
        self._at = 0
        self._slice = _SLICE
        # What has been parsed and not been taken.
        self._frames: deque[tuple[Opcode, bytes]] = deque()
        # What has come of a message in fragments, and what it is; None while none is under way.
        self._begun: bytearray | None = None
        self._opcode = Opcode.TEXT

    @property
    def is_waiting(self) -> bool:
        """Whether there is something that has not been taken or parsed."""
        return bool(self._frames) or self._at < len(self._unread)

    @property
    def has_frames(self) -> bool:
        """Whether there is something that has been parsed and not been taken."""
        return bool(self._frames)

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._unread = self._unread[self._at :] + data
        self._at = 0

    def drop(self) -> None:
        """Forget what has not been taken."""
        self._frames.clear()
        self._forget_bytes()

    def next_size(self) -> int | None:
        """Return how many bytes the next frame has, None when there is none before more is parsed."""
        return len(self._frames[0][1]) if self._frames else None

    def take(self) -> tuple[Opcode, bytes]:
        """Return the next frame; there must be one."""
        return self._frames.popleft()

    def parse(self) -> None:
        """Parse a slice."""
        start, end = self._at, self._at + self._slice
        data = self._unread[start:end]
        if end < len(self._unread):
            self._at = end
        else:
            self._forget_bytes()
        self._protocol.receive_data(data)
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        for frame in frames:
            if frame.opcode in _CONTROL:
                self._frames.append((frame.opcode, bytes(frame.data)))
            else:
                self._join(frame)
        if len(frames) >= _FEW:
            self._slice = _SLICE
        elif len(data) == self._slice < _LARGEST_SLICE:
            self._slice *= 2

    def _forget_bytes(self) -> None:
        self._unread = b""
        self._at = 0

    def _join(self, frame: Frame) -> None:
        """Keep the message that a frame ends, or that it ends none."""
        if frame.opcode is not Opcode.CONT:
            self._opcode = frame.opcode
        if self._begun is None:
            if frame.fin:
                self._frames.append((self._opcode, bytes(frame.data)))
                return
            self._begun = bytearray()
        self._begun += frame.data
        if frame.fin:
            data, self._begun = bytes(self._begun), None
            self._frames.append((self._opcode, data))
        else:
            self._frames.append((Opcode.CONT, b""))
