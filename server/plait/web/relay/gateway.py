"""Sockets of this node whose threads other nodes own."""

from collections.abc import Callable
from typing import Final

from plait.actor.transport import Frame
from plait.web.relay.link import Link
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
    OPEN,
    PAUSE,
    PONG,
    RESUME,
    TEXT,
    pack_close,
    unpack_close,
)
from plait.web.relay.relays import Relays
from plait.web.sockets.open_socket import OpenSocket
from plait_schemas.codes import GOING_AWAY, TRY_AGAIN_LATER

__all__ = ["RelayedSocket"]

_LOST: Final = "the worker that owns this thread has stopped; connect again"


class RelayedSocket:
    """The receiver of a socket whose session is at the owner of its thread.

    `left` is called when the socket has ended and its turns, too; `relays` are the sockets of this node that are open.
    """

    __slots__ = ("_is_backed", "_is_full", "_is_lost", "_is_paused", "_left", "_link", "_number", "_relays", "_socket")

    _socket: OpenSocket
    _number: int

    def __init__(self, link: Link, left: Callable[[], None], relays: Relays) -> None:
        self._link = link
        self._left = left
        self._relays = relays
        # Whether the owner was told that the peer reads too slowly.
        self._is_backed = False
        # Whether the owner wants to read nothing from the peer, and whether the link is full.
        self._is_paused = False
        self._is_full = False
        # Whether there is no stream, or no more.
        self._is_lost = True

    def open(self, socket: OpenSocket, data: bytes) -> None:
        """Open the stream of a socket that has been accepted, with its scope, and begin to read."""
        self._socket = socket
        self._relays.add(self)
        socket.attach(self)
        if self._link.is_closed or self._link.is_away:
            socket.close(TRY_AGAIN_LATER, _LOST)
            return
        self._is_lost = False
        self._number = self._link.open(OPEN, data, RelayedSocketStream(self, socket))

    def end(self) -> None:
        """Tell the owner that the socket has ended."""
        self._relays.discard(self)
        if self._is_lost:
            self._left()
        else:
            self._link.put(GONE, self._number)

    def leave(self) -> None:
        """Ask the owner to close the socket after its turns, as this node is shutting down."""
        if not self._is_lost:
            self._link.put(LEAVE, self._number)

    def cut_off(self) -> None:
        """Close the socket."""
        self._socket.close(GOING_AWAY, "the server is shutting down")

    # The Receiver of the socket

    def receive(self, data: bytes, *, is_text: bool) -> None:
        if not self._is_lost:
            self._link.put(TEXT if is_text else BINARY, self._number, data)

    def pong(self, payload: bytes) -> None:
        # The heartbeat's pings have no payload.
        if payload and not self._is_lost:
            self._link.put(PONG, self._number, payload)

    def drained(self) -> None:
        if self._is_backed and not self._is_lost:
            self._is_backed = False
            self._link.put(FREE, self._number)

    def close(self, code: int, reason: str) -> None:
        if not self._is_lost:
            self._link.put(CLOSED, self._number, pack_close(code, reason))

    # Called by the stream

    def take(self, kind: int, data: bytes) -> None:
        """Carry out what the owner says."""
        if kind in (PAUSE, RESUME):
            self.set_paused(is_paused=kind == PAUSE)
        elif kind == MARK:
            self.tell_slow()
            self._link.put(MARKED, self._number)
        elif kind == CLOSE:
            self._socket.close(*unpack_close(data))
        elif kind == ENDED:
            self._link.forget(self._number)
            self._is_lost = True
            self._left()

    def tell_slow(self) -> None:
        """Tell the owner that the peer reads too slowly, unless it knows."""
        if not self._is_backed and self._socket.is_backed_up:
            self._is_backed = True
            self._link.put(BACKED, self._number)

    def set_paused(self, *, is_paused: bool | None = None, is_full: bool | None = None) -> None:
        """Read from the peer unless the owner wants nothing or the link is full."""
        if is_paused is not None:
            self._is_paused = is_paused
        if is_full is not None:
            self._is_full = is_full
        if self._is_paused or self._is_full:
            self._socket.pause()
        else:
            self._socket.resume()

    def lose(self) -> None:
        """Close the socket, as its stream is lost."""
        self._is_lost = True
        if self in self._relays:
            self._socket.close(GOING_AWAY, _LOST)
        else:
            self._left()


class RelayedSocketStream:
    """The messages and frames of the owner for one socket."""

    __slots__ = ("_relayed", "_socket")

    def __init__(self, relayed: RelayedSocket, socket: OpenSocket) -> None:
        self._relayed = relayed
        self._socket = socket

    def receive(self, kind: int, data: bytes) -> None:
        """Handle a message."""
        self._relayed.take(kind, data)

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        """Send a frame to the peer."""
        if payload is None:
            self._socket.send(frame)
        else:
            self._socket.send_pinged(frame, payload)
        if self._socket.is_backed_up:
            self._relayed.tell_slow()

    def pause(self) -> None:
        """Read nothing from the peer, as the link is full."""
        self._relayed.set_paused(is_full=True)

    def resume(self) -> None:
        """Read from the peer, as the link has room."""
        self._relayed.set_paused(is_full=False)

    def lose(self) -> None:
        """Close the socket, as the link is lost."""
        self._relayed.lose()
