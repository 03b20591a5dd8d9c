"""The transport of a connection whose socket is at a gateway."""

import asyncio
from functools import partial
from typing import Final

from websockets.frames import Opcode

from plait.actor.logs import log_internal
from plait.actor.transport import Frame, LinkedTransport
from plait.web.fairness import FairScheduler
from plait.web.links.link import Link
from plait.web.relay.messages import (
    BACKED,
    BINARY,
    CLOSE,
    CLOSED,
    ENDED,
    FREE,
    GONE,
    LEAVE,
    MARK,
    MARKED,
    PAUSE,
    PONG,
    RESUME,
    TEXT,
    pack_close,
    unpack_close,
)
from plait.web.sockets.frame_reader import FrameReader, FrameTransport
from plait.web.sockets.pending_join import SocketResources
from plait.web.sockets.socket import AT_ONCE
from plait_schemas.codes import GOING_AWAY, INTERNAL_ERROR

__all__ = ["RemoteSocket"]

# A mark is sent after each of this many bytes. With this many unanswered marks, the gateway counts as slow.
_MOST_MARKS: Final = 4
_MARKED: Final = AT_ONCE // _MOST_MARKS
_LEAVING: Final = "the server is shutting down"
_OPCODES: Final = {TEXT: Opcode.TEXT, BINARY: Opcode.BINARY, PONG: Opcode.PONG, CLOSED: Opcode.CLOSE}


class RemoteSocket(FrameTransport, LinkedTransport):
    """A socket at a gateway, which is the other end of the stream `number` of a link."""

    __slots__ = (
        "_is_backed",
        "_is_held_up",
        "_is_paused",
        "_link",
        "_marks",
        "_messages",
        "_number",
        "_unmarked",
        "can_ping",
        "resources",
    )

    def __init__(self, link: Link, number: int, scheduler: FairScheduler, *, can_ping: bool) -> None:
        super().__init__()
        self._link = link
        self._number = number
        self.can_ping = can_ping
        self.resources = SocketResources(self._finish)
        self._messages = _Messages()
        self._reader = FrameReader(self, self, self._messages, bucket=None, scheduler=scheduler)
        # Whether the gateway was told to pause reading from the peer.
        self._is_paused = False
        # Whether the peer reads too slowly, and whether the link is full.
        self._is_backed = False
        self._is_held_up = False
        # Bytes sent after the last mark, and the number of marks that the gateway has not answered.
        self._unmarked = 0
        self._marks = 0

    # The Transport of a connection

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer reads too slowly, or too many bytes are on the way to its gateway."""
        return self._is_backed or self._marks >= _MOST_MARKS or self._is_held_up

    def send(self, frame: Frame) -> None:
        if not self._is_closing:
            self._link.cast(frame, self._number)
            self.count_sent(len(frame.data))

    def send_pinged(self, frame: Frame, payload: bytes) -> None:
        if not self._is_closing:
            self._link.cast(frame, self._number, payload)
            self.count_sent(len(frame.data))

    @property
    def link(self) -> Link:
        return self._link

    @property
    def number(self) -> int:
        return self._number

    def count_sent(self, size: int) -> None:
        self._unmarked += size
        if self._unmarked > _MARKED and not self._is_closing:
            self._mark()

    def close(self, code: int, reason: str) -> None:
        if not self._is_closing:
            self._link.put(CLOSE, self._number, pack_close(code, reason))
            self.end(code, reason)

    # The Peer of the reader

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._link.put(PAUSE, self._number)

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._link.put(RESUME, self._number)

    # The stream of the link

    def take(self, kind: int, data: bytes) -> None:
        if (opcode := _OPCODES.get(kind)) is not None:
            received = self._messages.received
            received.append((opcode, data))
            if len(received) == 1:  # If messages were waiting already, a read is scheduled.
                self._reader.read_soon()
        elif kind in (BACKED, FREE):
            self.set_slow(is_backed=kind == BACKED)
        elif kind == MARKED:
            self._answer_mark()
        elif kind == GONE:
            self.lose()
        elif kind == LEAVE:
            self._leave()

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        raise AssertionError("a gateway sends no frames")

    def set_full(self, *, is_full: bool) -> None:
        self.set_slow(is_held_up=is_full)

    def lose(self) -> None:
        self._reader.end()
        self.resources.leave()

    # Inside

    def set_slow(self, *, is_backed: bool | None = None, is_held_up: bool | None = None) -> None:
        """Set whether the peer reads too slowly, or whether the link is full."""
        if is_backed is not None:
            self._is_backed = is_backed
        if is_held_up is not None:
            self._is_held_up = is_held_up
        self._leave_group()
        self._tell_drained()

    def _answer_mark(self) -> None:
        """Continue, as the gateway has received everything before a mark."""
        was_backed_up = self.is_backed_up
        self._marks -= 1
        if was_backed_up:
            self._tell_drained()

    def _leave(self) -> None:
        """Close the socket after its turns, as its gateway is shutting down."""
        self._reader.stop()
        connection = self.resources.connection
        if connection is None:
            self.close(GOING_AWAY, _LEAVING)
        else:
            # The answer of the last turn is sent directly after its end.
            close = partial(connection.close, GOING_AWAY, _LEAVING)
            connection.call_when_turns_end(partial(asyncio.get_running_loop().call_soon, close))

    def _finish(self) -> None:
        self._link.put(ENDED, self._number)
        self._link.forget(self._number)

    def _mark(self) -> None:
        """Send a mark, which the gateway answers."""
        self._unmarked = 0
        self._marks += 1
        self._link.put(MARK, self._number)
        self._leave_group()

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
                self.end(*unpack_close(data))
        except BaseException as error:
            self.close(INTERNAL_ERROR, log_internal(error))

    def _leave_group(self) -> None:
        """Leave the group of connections that share frames while the peer reads too slowly."""
        if self.is_backed_up and (connection := self.resources.connection) is not None:
            connection.leave_group()

    def _tell_drained(self) -> None:
        if self._is_closing or self.is_backed_up:
            return
        self._wake()
        if self._receiver is not None:
            self._receiver.drained()


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
