"""What the peer of a WebSocket has sent: parsed a little at a time, and put together to messages. No I/O."""

from collections.abc import Callable
from typing import Final

from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

__all__ = ["Incoming"]

# Bytes that are parsed in one go: some hundred of the smallest frames.
_SLICE: Final = 2048


class Incoming:
    """Bytes that have come, and the message in fragments of which they are part."""

    __slots__ = ("_begun", "_opcode", "_protocol", "_unread")

    def __init__(self, protocol: ServerProtocol) -> None:
        self._protocol = protocol
        self._unread = bytearray()
        # What has come of a message in fragments, and what it is; None while none is under way.
        self._begun: bytearray | None = None
        self._opcode = Opcode.TEXT

    @property
    def is_waiting(self) -> bool:
        """Whether there are bytes that have not been parsed."""
        return len(self._unread) > 0

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._unread += data

    def drop(self) -> None:
        """Forget what has not been parsed."""
        self._unread.clear()

    def parse(self, handle: Callable[[Opcode, bytes], None]) -> int:
        """Parse a slice, hand over each message and control frame in it, and return how many frames there were."""
        data = bytes(self._unread[:_SLICE])
        del self._unread[:_SLICE]
        self._protocol.receive_data(data)
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        for frame in frames:
            if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._join(frame, handle)
            else:
                handle(frame.opcode, bytes(frame.data))
        return len(frames)

    def _join(self, frame: Frame, handle: Callable[[Opcode, bytes], None]) -> None:
        """Hand over the message that a frame ends, if it ends one."""
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
