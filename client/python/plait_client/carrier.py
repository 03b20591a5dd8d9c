"""The task that carries a session's frames: it opens a new socket whenever the session needs one."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from websockets.exceptions import ConnectionClosed

from plait_client.errors import ClientError
from plait_client.keepalive import Backoff
from plait_client.session import Session
from plait_client.target import ABNORMAL, ClientSocket, NotOpened, Target, no_token
from plait_schemas import codes
from plait_schemas.codec import NOT_JSON
from plait_schemas.frames import decode_server, encode
from plait_schemas.messages import SUBPROTOCOL, Ack, Joined, Result

__all__ = ["Carrier"]

logger = logging.getLogger(__name__)

_FETCHING: Final = 10.0
"""The seconds that fetching a token may take, after the thread was joined."""


class Carrier:
    """Moves frames between a session and its sockets. `tell` is called whenever the session may have news."""

    def __init__(
        self, session: Session, target: Target, *, tell: Callable[[], None], receive: Callable[[bytes], None]
    ) -> None:
        self.target: Final = target
        # Why there is no connection, for people.
        self.trouble = ""
        self._session = session
        self._tell = tell
        self._receive = receive
        self._backoff = Backoff(asyncio.get_running_loop().time)
        # Set when there may be frames to send, or something may be due earlier than before.
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._socket: ClientSocket | None = None
        self._has_joined = False
        # Whether the task ends when all waiting frames are sent and answered.
        self.is_finishing = False

    def wake(self) -> None:
        """Note that the session may have frames to send, or work that is due earlier than before."""
        self._wake.set()
        self._hurry.set()

    def finish(self) -> bool:
        """End when all waiting frames are sent and answered; return whether there is a socket for them."""
        self.is_finishing = True
        self._session.finish()
        self._wake.set()
        return self._socket is not None

    async def fetch_token(self) -> str | None:
        """Return the token to show now. Raises what `Target.fetch_token` raises."""
        return await self.target.fetch_token(_FETCHING if self._was_joined else None)

    async def run(self) -> None:
        """Connect, and reconnect, until the session has stopped or `finish` was called, which raises nothing."""
        while self._session.stopped is None and not self.is_finishing:
            self._has_joined = False
            code = await self._attempt()
            self._session.lost(code)
            if self.is_finishing:
                # Frames that are lost here stay lost; the caller of `finish` reports that.
                return
            self._tell()
            if self._session.stopped is None:
                is_leaving = self._has_joined and code in (codes.GOING_AWAY, codes.UNAUTHENTICATED)
                await asyncio.sleep(self._backoff.delay(is_leaving=is_leaving))

    @property
    def _was_joined(self) -> bool:
        return self._session.connection is not None

    async def _attempt(self) -> int:
        """Fetch a token and carry frames with it. A failure to fetch a token is raised only before the first join."""
        try:
            token = await self.fetch_token()
        except Exception as error:
            if not self._was_joined:
                raise
            self.trouble = no_token(error)
            logger.exception("no token could be fetched")
            return ABNORMAL
        return await self._carry(token)

    async def _carry(self, token: str | None) -> int:
        """Carry frames on one socket; return its close code."""
        try:
            socket = await self.target.open(was_joined=self._was_joined)
        except NotOpened as error:
            self.trouble = str(error)
            return error.code
        async with socket:
            return await self._converse(socket, token)

    async def _converse(self, socket: ClientSocket, token: str | None) -> int:
        if socket.subprotocol != SUBPROTOCOL:
            raise ClientError(f"{self.target.url} does not speak {SUBPROTOCOL}")
        self._socket = socket
        self._session.open(token)
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(self._write(socket)), tasks.create_task(self._watch(socket))]
                await self._read(socket)
                for other in others:
                    other.cancel()
        finally:
            self._socket = None
        code = socket.close_code or ABNORMAL
        self.trouble = socket.close_reason or ("" if codes.is_final(code) else f"the connection was lost ({code})")
        return code

    async def _read(self, socket: ClientSocket) -> None:
        try:
            async for data in socket:
                if isinstance(data, bytes):
                    self._session.heard()
                    self._receive(data)
                else:
                    self._take(data)
                if self._session.needs_socket:
                    return
        except ConnectionClosed:
            return

    def _take(self, data: str) -> None:
        try:
            frame = decode_server(data)
        except NOT_JSON as error:
            self._session.heard()
            logger.warning("a frame that is not of %s: %s", SUBPROTOCOL, error)
            return
        self._session.receive(frame)
        if isinstance(frame, Joined):
            self._has_joined, self.trouble = True, ""
            self._backoff.opened()
        elif isinstance(frame, Ack | Result):
            self._backoff.reset()
        self._tell()
        self.wake()

    async def _write(self, socket: ClientSocket) -> None:
        try:
            while True:
                self._wake.clear()
                await self._send(socket)
                if self.is_finishing and not self._session.is_busy:
                    await socket.close()
                    return
                await self._wake.wait()
        except ConnectionClosed:
            return

    async def _send(self, socket: ClientSocket) -> None:
        for frame in self._session.take_frames():
            if isinstance(frame, bytes):
                await socket.send(frame)
            else:
                await socket.send(encode(frame), text=True)

    async def _watch(self, socket: ClientSocket) -> None:
        """Do the work that becomes due, even while sending is blocked."""
        while not self._session.needs_socket:
            self._hurry.clear()
            try:
                async with asyncio.timeout_at(self._session.due):
                    await self._hurry.wait()
            except TimeoutError:
                self._session.tick()
                self._tell()
                self._wake.set()
        # On a socket that is silent or out of step, there is nothing to wait for.
        socket.transport.abort()
