"""Where a socket of the native protocol waits from its opening until its client has said who it is."""

import asyncio
from typing import Final

from plait.transport import Frame, Receiver, Transport
from plait_schemas.codec import NOT_JSON
from plait_schemas.codes import BAD_FRAME, GOING_AWAY
from plait_schemas.messages import Error, Join, decode_client, encode

__all__ = ["Lobby"]

# Seconds within which a client joins.
_PATIENCE: Final = 10.0


class Lobby:
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
