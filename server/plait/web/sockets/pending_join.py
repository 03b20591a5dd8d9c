"""A socket between its opening and its join."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from starlette.types import Receive

from plait.actor.transport import Frame, Receiver, Transport
from plait_schemas.codec import NOT_JSON
from plait_schemas.codes import BAD_FRAME, GOING_AWAY
from plait_schemas.messages import Error, Join, decode_client, encode

__all__ = ["PendingJoin", "unless_gone"]

T = TypeVar("T")

# Seconds after which it is minded that the peer may be gone; nearly everything is over by then.
_MOMENT: Final = 0.1


async def unless_gone(work: Awaitable[T], receive: Receive) -> T | None:
    """Return what comes of `work`, or None when the peer is gone before; nothing else is received meanwhile."""
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
        is_gone = watching is not None and watching.done() and not watching.cancelled()
        if not is_gone or opening.uncancel():
            raise
        return None
    finally:
        timer.cancel()
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])


# Seconds within which a client joins.
_PATIENCE: Final = 10.0


class PendingJoin:
    """Takes the join of one socket, and keeps what comes behind it for the session."""

    def __init__(self, transport: Transport, *, patience: float = _PATIENCE) -> None:
        self._transport = transport
        self._patience = patience
        self._joined: asyncio.Future[Join | None] = asyncio.get_running_loop().create_future()
        self._kept: list[tuple[bytes, bool]] = []
        self.is_closed = False

    async def join(self) -> Join | None:
        """Return the client's join, or None when the socket has been closed, as it is when none comes in time."""
        try:
            async with asyncio.timeout(self._patience):
                return await self._joined
        except TimeoutError:
            self._transport.close(BAD_FRAME, f"no join came within {self._patience:g} s")
            return None

    def hand_over(self, session: Receiver) -> None:
        """Give a session what has come since."""
        for data, is_text in self._kept:
            session.receive(data, is_text=is_text)
        self._transport.resume()

    def leave(self) -> None:
        """Send the client elsewhere: the server is going away."""
        self._transport.close(GOING_AWAY, "the server is shutting down")

    # The Receiver of its transport

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Take a message."""
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
            self._refuse("the first frame is a join")
        elif not 0 < len(message.client) <= 128:
            self._refuse("the id of a client has 1 to 128 characters")
        else:
            # Read on, so that the end of a peer that waits to be let in is noticed.
            self._joined.set_result(message)

    def close(self, code: int, reason: str) -> None:
        """Take note that the socket is closed."""
        self.is_closed = True
        if not self._joined.done():
            self._joined.set_result(None)

    def pong(self, payload: bytes) -> None:
        """Take the answer to a ping."""

    def drained(self) -> None:
        """Take note that the peer has caught up."""

    def _refuse(self, message: str) -> None:
        self._transport.send(Frame(encode(Error("bad_frame", message))))
        self._transport.close(BAD_FRAME, message)
