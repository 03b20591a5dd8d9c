"""The transport of a connection whose socket is at a gateway."""

import asyncio
from functools import partial
from typing import Final

from websockets.frames import Opcode

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
from plait.web.sockets.marked import MarkedTransport
from plait.web.sockets.pending_join import SocketResources
from plait_schemas.codes import GOING_AWAY

__all__ = ["RemoteSocket"]

_LEAVING: Final = "the server is shutting down"
_OPCODES: Final = {TEXT: Opcode.TEXT, BINARY: Opcode.BINARY, PONG: Opcode.PONG, CLOSED: Opcode.CLOSE}


class RemoteSocket(MarkedTransport, LinkedTransport):
    """A socket at a gateway, which is the other end of the stream `number` of a link."""

    __slots__ = (
        "_is_backed",
        "_is_held_up",
        "_is_paused",
        "_link",
        "_number",
        "can_ping",
        "resources",
    )

    def __init__(self, link: Link, number: int, scheduler: FairScheduler, *, can_ping: bool) -> None:
        super().__init__(scheduler)
        self._link = link
        self._number = number
        self.can_ping = can_ping
        self.resources = SocketResources(self._finish)
        # Whether the gateway was told to pause reading from the peer.
        self._is_paused = False
        # Whether the peer reads too slowly, and whether the link is full.
        self._is_backed = False
        self._is_held_up = False

    # The Transport of a connection

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer reads too slowly, or too many bytes are on the way to its gateway."""
        return self._is_backed or self.has_all_marks or self._is_held_up

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

    def mark(self) -> None:
        self._link.put(MARK, self._number)
        self._leave_group()

    def close(self, code: int, reason: str) -> None:
        if not self._is_closing:
            self._link.put(CLOSE, self._number, pack_close(code, reason))
            self.end(code, reason)

    # The Peer of the reader

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
            self.add(opcode, data)
        elif kind in (BACKED, FREE):
            self.set_slow(is_backed=kind == BACKED)
        elif kind == MARKED:
            self.answer_mark()
        elif kind == GONE:
            self.lose()
        elif kind == LEAVE:
            self._leave()

    def read_close(self, data: bytes) -> tuple[int, str]:
        return unpack_close(data)

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
        self.go_on()

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

    def _leave_group(self) -> None:
        """Leave the group of connections that share frames while the peer reads too slowly."""
        if self.is_backed_up and (connection := self.resources.connection) is not None:
            connection.leave_group()
