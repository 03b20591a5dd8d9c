"""What the peer of a WebSocket has sent: parsed a little at a time, and put together to messages. No I/O."""

from collections.abc import Callable
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
    """Bytes that have come, and the message in fragments of which they are part."""

    __slots__ = ("_at", "_begun", "_opcode", "_protocol", "_slice", "_unread")

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        # What has come, and up to where it has been parsed.
        self._unread = b""
        self._at = 0
        self._slice = _SLICE
        # What has come of a message in fragments, and what it is; None while none is under way.
        self._begun: bytearray | None = None
        self._opcode = Opcode.TEXT

    @property
    def is_waiting(self) -> bool:
        """Whether there are bytes that have not been parsed."""
        return self._at < len(self._unread)

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._unread = self._unread[self._at :] + data
        self._at = 0

    def drop(self) -> None:
        """Forget what has not been parsed."""
        self._unread = b""
        self._at = 0

    def parse(self, handle: Callable[[Opcode, bytes], None]) -> int:
        """Parse a slice, hand over what is in it, and return how many frames there were.

        That is each message, each control frame, and an empty CONT for each fragment that ends no message.
        """
        start, end = self._at, self._at + self._slice
        data = self._unread[start:end]
        if end < len(self._unread):
            self._at = end
        else:
            self.drop()
        self._protocol.receive_data(data)
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        for frame in frames:
            if frame.opcode in _CONTROL:
                handle(frame.opcode, bytes(frame.data))
            else:
                self._join(frame, handle)
        if len(frames) >= _FEW:
            self._slice = _SLICE
        elif len(data) == self._slice < _LARGEST_SLICE:
            self._slice *= 2
        return len(frames)

    def _join(self, frame: Frame, handle: Callable[[Opcode, bytes], None]) -> None:
        """Hand over the message that a frame ends, or that it ends none."""
        if frame.opcode is not Opcode.CONT:
            self._opcode = frame.opcode
        if self._begun is None:
            if frame.fin:
                handle(self._opcode, bytes(frame.data))
                return
            self._begun = bytearray()
        self._begun += frame.data
        if frame.fin:
            data, self._begun = bytes(self._begun), None
            handle(self._opcode, data)
        else:
            handle(Opcode.CONT, b"")
