"""A base of the transports that share a connection: marks tell how much of what was sent has arrived."""

from typing import Final

from websockets.frames import Opcode

from plait.actor.logs import log_internal
from plait.web.fairness import FairScheduler
from plait.web.sockets.frame_reader import FrameReader, FrameTransport
from plait_schemas.codes import INTERNAL_ERROR

__all__ = ["MARKED", "MarkedTransport"]

# With this many unanswered marks, the peer counts as slow.
_MOST_MARKS: Final = 4

MARKED: Final = 64 * 1024
"""Bytes after which a mark is sent."""


class MarkedTransport(FrameTransport):
    """A transport whose messages arrive parsed, and whose peer answers each mark after what came before it."""

    __slots__ = ("_marks", "_messages", "_unmarked")

    def __init__(self, scheduler: FairScheduler) -> None:
        super().__init__()
        self._messages = _Messages()
        self._reader = FrameReader(self, self, self._messages, bucket=None, scheduler=scheduler)
        # Bytes sent after the last mark, and the number of marks that the peer has not answered.
        self._unmarked = 0
        self._marks = 0

    @property
    def has_all_marks(self) -> bool:
        """Whether too many bytes are on the way to the peer."""
        return self._marks >= _MOST_MARKS

    def count_sent(self, size: int) -> None:
        """Count bytes that were sent, and send a mark if it is due."""
        self._unmarked += size
        if self._unmarked > MARKED and not self._is_closing:
            self._unmarked = 0
            self._marks += 1
            self.mark()

    def mark(self) -> None:
        """Send a mark, which the peer answers."""
        raise NotImplementedError

    def answer_mark(self) -> None:
        """Continue, as the peer has received everything before a mark."""
        was_backed_up = self.is_backed_up
        self._marks = max(0, self._marks - 1)
        if was_backed_up:
            self.go_on()

    def go_on(self) -> None:
        """Tell the receiver that the peer has caught up, unless it is still slow."""
        if self._is_closing or self.is_backed_up:
            return
        self._wake()
        if self._receiver is not None:
            self._receiver.drained()

    # The messages of the peer

    def add(self, opcode: Opcode, data: bytes) -> None:
        """Add a message, which is handled soon."""
        received = self._messages.received
        received.append((opcode, data))
        if len(received) == 1:  # If messages were waiting already, a read is scheduled.
            self._reader.read_soon()

    def read_close(self, data: bytes) -> tuple[int, str]:
        """Return the code and the reason of a close."""
        raise NotImplementedError

    def handle(self, opcode: Opcode, data: bytes) -> None:
        receiver = self._receiver
        if self._is_closing or receiver is None:
            return
        try:
            if opcode is Opcode.TEXT or opcode is Opcode.BINARY:
                receiver.receive(data, is_text=opcode is Opcode.TEXT)
            elif opcode is Opcode.PONG:
                receiver.pong(data)
            else:
                self.end(*self.read_close(data))
        except BaseException as error:
            self.close(INTERNAL_ERROR, log_internal(error))

    def close(self, code: int, reason: str) -> None:
        """Begin to close the transport."""
        raise NotImplementedError

    # The Peer of the reader, which by default cannot be paused

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Messages:
    """The parser of a reader whose frames arrive parsed."""

    __slots__ = ("frames", "received")

    def __init__(self) -> None:
        self.frames: list[tuple[Opcode, bytes]] = []
        # Frames in order of arrival, which come after those in `frames`.
        self.received: list[tuple[Opcode, bytes]] = []

    @property
    def is_waiting(self) -> bool:
        return bool(self.frames) or bool(self.received)

    def parse(self) -> bool:
        if not self.received:
            return False
        # The reader keeps the list.
        self.frames += reversed(self.received)
        self.received.clear()
        return True
