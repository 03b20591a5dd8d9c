"""A socket that has been accepted: the wait for its join, and its resources."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from starlette.types import Receive

from plait.actor.connection import Connection
from plait.actor.transport import Frame, Receiver, Transport
from plait.session.leases import PrincipalLease
from plait_schemas.codec import NOT_JSON
from plait_schemas.codes import BAD_FRAME, GOING_AWAY
from plait_schemas.frames import decode_client, encode
from plait_schemas.messages import Error, Join

__all__ = ["PendingJoin", "SocketResources", "run_unless_disconnected"]

T = TypeVar("T")

# Seconds before watching for a disconnect; most openings finish earlier.
_MOMENT: Final = 0.1


async def run_unless_disconnected(work: Awaitable[T], receive: Receive) -> T | None:
    """Return the result of `work`, or None if the peer disconnects first. Nothing else may use `receive` until then."""
    opening = asyncio.current_task()
    assert opening is not None
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        await receive()
        opening.cancel()

    def begin() -> None:
        nonlocal watching
        watching = asyncio.create_task(watch(), name="plait opening")

    timer = asyncio.get_running_loop().call_later(_MOMENT, begin)
    try:
        return await work
    except asyncio.CancelledError:
        is_disconnected = watching is not None and watching.done() and not watching.cancelled()
        if not is_disconnected or opening.uncancel():
            raise
        return None
    finally:
        timer.cancel()
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])


# Seconds within which a client must join.
_PATIENCE: Final = 10.0


class PendingJoin:
    """Receives the join of one socket, and keeps later messages for the session."""

    def __init__(self, transport: Transport, *, patience: float = _PATIENCE) -> None:
        self._transport = transport
        self._patience = patience
        self._joined: asyncio.Future[Join | None] = asyncio.get_running_loop().create_future()
        self._kept: list[tuple[bytes, bool]] = []
        self.is_closed = False

    async def join(self) -> Join | None:
        """Return the client's join, or None if the socket is closed. Closes the socket if no join comes in time."""
        try:
            async with asyncio.timeout(self._patience):
                return await self._joined
        except TimeoutError:
            self._transport.close(BAD_FRAME, f"no join was received within {self._patience:g} s")
            return None

    def hand_over(self, session: Receiver) -> None:
        """Pass later messages to a session."""
        for data, is_text in self._kept:
            session.receive(data, is_text=is_text)
        self._transport.resume()

    def leave(self) -> None:
        """Close the socket, as the server is shutting down."""
        self._transport.close(GOING_AWAY, "the server is shutting down")

    # The Receiver of its transport

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Handle the join, or keep a later message."""
        if self._joined.done():
            self._transport.pause()
            self._kept.append((data, is_text))
            return
        try:
            message = decode_client(data) if is_text else None
        except NOT_JSON as error:
            self._refuse(str(error))
            return
        if not isinstance(message, Join):
            self._refuse("the first frame must be a join")
        elif not 0 < len(message.client) <= 128:
            self._refuse("the id of a client must have 1 to 128 characters")
        else:
            # Keep reading, so that a disconnect is noticed while the client waits to join.
            self._joined.set_result(message)

    def close(self, code: int, reason: str) -> None:
        """End the wait for a join, as the socket is closed."""
        self.is_closed = True
        if not self._joined.done():
            self._joined.set_result(None)

    def pong(self, payload: bytes) -> None:
        """Ignore the answer to a ping."""

    def drained(self) -> None:
        """Do nothing, as nothing is sent before the join."""

    def _refuse(self, message: str) -> None:
        self._transport.send(Frame(encode(Error("bad_frame", message))))
        self._transport.close(BAD_FRAME, message)


class SocketResources:
    """The resources of a socket until its turns end; then `left` is called. Keeps no reference to the opening."""

    __slots__ = ("_left", "connection", "joining", "lease")

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        # The connection, after the socket has begun to join.
        self.connection: Connection | None = None
        # Closes the socket when the rights of its client end; set before it is checked.
        self.lease: PrincipalLease | None = None
        # The task that joins it, which is cancelled if the peer disconnects.
        self.joining: asyncio.Task[Any] | None = None

    def leave(self) -> None:
        """Cancel the join; end the lease and call `left` when the socket's turns have ended."""
        joining, self.joining = self.joining, None
        if joining is not None:
            joining.cancel()
        if self.connection is None:
            self._end()
        else:
            self.connection.call_when_turns_end(self._end)

    def _end(self) -> None:
        if self.lease is not None:
            self.lease.end()
        self._left()
