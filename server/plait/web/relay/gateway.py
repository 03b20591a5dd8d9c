"""Relays the sockets of this node whose threads other nodes own."""

import asyncio
from collections.abc import Callable
from typing import Final

from plait.actor.transport import Frame, Transport
from plait.errors import Unavailable
from plait.store.thread_rows import ThreadKey
from plait.web.links.link import Link
from plait.web.links.links import Attempts, Links
from plait.web.links.pipe import REFUSED, unpack_owner
from plait.web.links.relays import Relays
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
    TAKEN,
    TEXT,
    pack_close,
    unpack_close,
)
from plait_schemas.codes import GOING_AWAY

__all__ = ["RelayedSocket"]

_LOST: Final = "the process that owns this thread has stopped; connect again"


class RelayedSocket:
    """The receiver of a socket whose session is at the owner of its thread.

    Nothing is read from the peer before the owner has accepted the socket. Until then the socket is held, up to a
    deadline, and offered to another node if the thread moves. `left` is called after the socket and its turns have
    ended. `relays` are the open relays of this node.
    """

    __slots__ = (
        "_attempts",
        "_data",
        "_is_backed",
        "_is_full",
        "_is_lost",
        "_is_paused",
        "_is_taken",
        "_left",
        "_link",
        "_number",
        "_relays",
        "_retry",
        "_socket",
    )

    _socket: Transport
    _number: int

    def __init__(self, links: Links, link: Link, key: ThreadKey, left: Callable[[], None], relays: Relays) -> None:
        self._attempts = Attempts(links, key)
        self._link = link
        self._left = left
        self._relays = relays
        # The scope of the socket.
        self._data = b""
        self._retry: asyncio.Task[None] | None = None
        # Whether the owner has accepted the socket.
        self._is_taken = False
        # Whether the owner was told that the peer reads too slowly.
        self._is_backed = False
        # Whether the owner has paused reading from the peer, and whether the link is full.
        self._is_paused = False
        self._is_full = False
        # Whether the socket has no stream on a link: not yet, or no longer.
        self._is_lost = True

    def open(self, socket: Transport, data: bytes) -> None:
        """Open the stream of a socket that has been accepted, with its scope."""
        self._socket = socket
        self._data = data
        self._relays.add(self)
        if self._link.is_closed or self._link.is_away:
            self._try_again()
        else:
            self._open()

    def end(self) -> None:
        """Tell the owner that the socket has ended."""
        self._relays.discard(self)
        if self._retry is not None:
            self._retry.cancel()
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

    # The stream of the link

    def take(self, kind: int, data: bytes) -> None:
        if kind == TAKEN:
            self._is_taken = True
            self._data = b""
            self._socket.attach(self)
            self._set_paused()
        elif kind == REFUSED:
            self._link.forget(self._number)
            self._attempts.correct(unpack_owner(data))
            self._is_lost = True
            self._try_again()
        elif kind in (PAUSE, RESUME):
            self._set_paused(is_paused=kind == PAUSE)
        elif kind == MARK:
            self._tell_slow()
            self._link.put(MARKED, self._number)
        elif kind == CLOSE:
            self._socket.close(*unpack_close(data))
        elif kind == ENDED:
            self._link.forget(self._number)
            self._is_lost = True
            self._left()

    def deliver(self, frame: Frame, payload: bytes | None) -> None:
        if payload is None:
            self._socket.send(frame)
        else:
            self._socket.send_pinged(frame, payload)
        if self._socket.is_backed_up:
            self._tell_slow()

    def set_full(self, *, is_full: bool) -> None:
        self._set_paused(is_full=is_full)

    def lose(self) -> None:
        self._is_lost = True
        if not self._is_taken and self in self._relays:
            self._try_again()
        elif self in self._relays:
            self._socket.close(GOING_AWAY, _LOST)
        else:
            self._left()

    # Inside

    def _tell_slow(self) -> None:
        """Tell the owner that the peer reads too slowly, unless it was told."""
        if not self._is_backed and self._socket.is_backed_up:
            self._is_backed = True
            self._link.put(BACKED, self._number)

    def _set_paused(self, *, is_paused: bool | None = None, is_full: bool | None = None) -> None:
        """Read from the peer, unless the owner has paused it or the link is full."""
        if is_paused is not None:
            self._is_paused = is_paused
        if is_full is not None:
            self._is_full = is_full
        if not self._is_taken:
            return
        if self._is_paused or self._is_full:
            self._socket.pause()
        else:
            self._socket.resume()

    def _open(self) -> None:
        self._is_lost = self._is_full = False
        self._number = self._link.open(OPEN, self._data, self)

    def _try_again(self) -> None:
        if self not in self._relays:  # The peer has disconnected.
            self._left()
            return
        self._retry = asyncio.get_running_loop().create_task(self._find_owner(), name="plait held socket")

    async def _find_owner(self) -> None:
        try:
            await self._attempts.pause()
            self._link = await self._attempts.reach()
        except Unavailable as error:
            self._socket.close(error.close_code, str(error))
        else:
            self._retry = None
            self._open()
