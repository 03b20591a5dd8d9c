"""The task that carries a session's frames: it opens a socket as often as the session needs one."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import Any, Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from plait_client.backoff import Backoff
from plait_client.errors import ClientError
from plait_client.session import Session
from plait_schemas import codes
from plait_schemas.codec import NOT_JSON
from plait_schemas.messages import SUBPROTOCOL, Ack, Joined, Result, decode_server, encode

__all__ = ["Carrier", "Target", "Token", "no_token"]

logger = logging.getLogger(__name__)

Token = str | Callable[[], str | Awaitable[str]] | None

_ABNORMAL: Final = 1006
_PASSING: Final = frozenset({408, 425, 429})
"""Statuses from 400 to 499 that another attempt may not get."""

_FETCHING: Final = 10.0
"""How many seconds a token may take to be fetched, once the thread was joined."""

_REFUSALS: Final = {401: codes.UNAUTHENTICATED, 403: codes.FORBIDDEN, 404: codes.NOT_FOUND}


class Target(msgspec.Struct, frozen=True):
    """Where to connect, and with what."""

    url: str
    token: Token = None
    headers: dict[str, str] = {}
    ssl: SSLContext | None = None


class _Connect(connect):
    """Goes nowhere else: what is sent first shows the token, which is for the server at the URL."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Carrier:
    """Moves frames between a session and its sockets. `tell` is called whenever the session may have news."""

    def __init__(
        self, session: Session, target: Target, *, tell: Callable[[], None], receive: Callable[[bytes], None]
    ) -> None:
        # Why there is no connection, for people.
        self.trouble = ""
        self._session = session
        self._target = target
        self._tell = tell
        self._receive = receive
        self._backoff = Backoff(asyncio.get_running_loop().time)
        # Set when there may be something to send, and when something may be due earlier than it was.
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._has_joined = False
        # Whether it ends when what is waiting has been sent and answered.
        self.is_finishing = False

    def wake(self) -> None:
        """The session may have frames to send, or something to do earlier than it had."""
        self._wake.set()
        self._hurry.set()

    def finish(self) -> bool:
        """End when what is waiting has been sent and answered; return whether there is a socket for that."""
        self.is_finishing = True
        self._session.finish()
        self._wake.set()
        return self._socket is not None

    @property
    def has_fresh_tokens(self) -> bool:
        """Whether there may be another token than the one that was shown: a string stays as it is."""
        return callable(self._target.token)

    async def fetch_token(self) -> str | None:
        """Return the token to be shown at this time.

        Raises what the author's function raises, ClientError where that was cancelled by others, and TimeoutError.
        """
        token = self._target.token
        if token is None or isinstance(token, str):
            return token
        try:
            async with asyncio.timeout(_FETCHING if self._was_joined else None):
                fetched = token()
                return await fetched if inspect.isawaitable(fetched) else fetched
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ClientError("what the function waits for was cancelled") from error

    async def run(self) -> None:
        """Connect, and connect again, until the session has stopped or `finish` was called, which is not told."""
        while self._session.stopped is None and not self.is_finishing:
            self._has_joined = False
            code = await self._attempt()
            self._session.lost(code)
            if self.is_finishing:
                # What is lost then is lost to the end, which whoever has called `finish` tells.
                return
            self._tell()
            if self._session.stopped is None:
                is_leaving = self._has_joined and code == codes.GOING_AWAY
                await asyncio.sleep(self._backoff.delay(is_leaving=is_leaving))

    @property
    def _was_joined(self) -> bool:
        return self._session.connection is not None

    async def _attempt(self) -> int:
        """Fetch a token and carry frames with it. A failure to fetch one comes out before the first join only."""
        try:
            token = await self.fetch_token()
        except Exception as error:
            if not self._was_joined:
                raise
            self.trouble = no_token(error)
            logger.exception("no token could be fetched")
            return _ABNORMAL
        return await self._carry(token)

    async def _carry(self, token: str | None) -> int:
        """Carry frames on one socket; return the code that it was closed with."""
        try:
            socket = await self._open()
        except InvalidStatus as error:
            self.trouble = _refusal(error)
            return _code_of(error)
        except (OSError, WebSocketException) as error:
            self.trouble = str(error) or type(error).__name__
            return _ABNORMAL
        except (ImportError, ValueError) as error:
            # No other attempt would get further: what the proxy needs is not there, or a header cannot be sent.
            raise ClientError(f"no socket can be opened: {error}") from error
        async with socket:
            return await self._converse(socket, token)

    async def _open(self) -> ClientConnection:
        target = self._target
        # None would be an error at a `wss://` URL, for which the certificates of the system are taken then.
        tls: dict[str, Any] = {} if target.ssl is None else {"ssl": target.ssl}
        return await _Connect(
            target.url,
            additional_headers=target.headers,
            close_timeout=2,
            compression=None,
            max_size=None,
            ping_interval=None,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            **tls,
        )

    async def _converse(self, socket: ClientConnection, token: str | None) -> int:
        if socket.subprotocol != SUBPROTOCOL:
            raise ClientError(f"{self._target.url} does not speak {SUBPROTOCOL}")
        self._socket = socket
        self._session.opened(token)
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(self._write(socket)), tasks.create_task(self._watch(socket))]
                await self._read(socket)
                for other in others:
                    other.cancel()
        finally:
            self._socket = None
        code = socket.close_code or _ABNORMAL
        self.trouble = socket.close_reason or ("" if codes.is_final(code) else f"the connection was lost ({code})")
        return code

    async def _read(self, socket: ClientConnection) -> None:
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

    async def _write(self, socket: ClientConnection) -> None:
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

    async def _send(self, socket: ClientConnection) -> None:
        for frame in self._session.take_frames():
            if isinstance(frame, bytes):
                await socket.send(frame)
            else:
                await socket.send(encode(frame), text=True)

    async def _watch(self, socket: ClientConnection) -> None:
        """Do what becomes due, also while sending is blocked."""
        while not self._session.needs_socket:
            self._hurry.clear()
            try:
                async with asyncio.timeout_at(self._session.due):
                    await self._hurry.wait()
            except TimeoutError:
                self._session.tick()
                self._tell()
                self._wake.set()
        # Nothing is to be waited for on a socket that is silent or out of step.
        socket.transport.abort()


def no_token(error: Exception) -> str:
    """Return what is wrong when the function that fetches the token has raised, for people."""
    return f"no token could be fetched: {error!r}"


def _refusal(error: InvalidStatus) -> str:
    """Return what the request was answered with, for people."""
    locations = ", ".join(error.response.headers.get_all("Location"))
    return f"{error}, which leads to {locations} and is not followed" if locations else str(error)


def _code_of(error: InvalidStatus) -> int:
    """Return the close code that an answer to the request is like. Raises ClientError for one that stays as it is."""
    status = error.response.status_code
    if status in _REFUSALS:
        return _REFUSALS[status]
    if 400 <= status <= 499 and status not in _PASSING:
        raise ClientError(str(error)) from error
    return _ABNORMAL
