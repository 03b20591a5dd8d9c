"""Connecting to a thread, with asyncio."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from ssl import SSLContext
from types import TracebackType
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from plait_client.errors import Disconnected
from plait_client.keepalive import Backoff
from plait_client.live import Live
from plait_client.room import Room
from plait_client.session import Session
from plait_client.target import Target, Token, check_url

__all__ = ["Connecting", "Options", "connect"]

S = TypeVar("S")


class Options(TypedDict, total=False):
    """Keywords of `connect` and `connect_sync`."""

    # The id by which the server knows this client over all its sockets; a random one by default.
    client: str | None
    # Shown to the server; a function is called for each connection, and when a token is about to expire.
    token: Token
    # The hash of the state's schema for which the client was made.
    schema: str | None
    # Further headers of the request.
    headers: Mapping[str, str]
    ssl: SSLContext | None
    # The seconds that the first join may take with `async with`.
    open_timeout: float | None
    # Whether the server sends the state and its changes; without them, the state is None and cannot be changed here.
    state: bool


class Connecting(Generic[S]):
    """The result of `connect`: an async context manager, and an async iterator."""

    def __init__(self, target: Target, state_type: Any, options: Options) -> None:
        self._target = target
        self._client = options.get("client") or secrets.token_hex(16)
        self._schema = options.get("schema")
        self._has_state = options.get("state", True)
        self._open_timeout = options.get("open_timeout", 10.0)
        self._state_type = state_type
        self._is_entered = False
        self._live: Live | None = None

    async def __aenter__(self) -> Room[S]:
        if self._is_entered:
            raise RuntimeError("this is entered already: call connect for each block")
        self._is_entered = True
        try:
            self._live = await self._open(self._open_timeout)
        except BaseException:
            self._is_entered = False
            raise
        return Room(self._live, self._state_type)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                await live.close()
        finally:
            self._is_entered = False

    def __aiter__(self) -> "_Rooms[S]":
        return _Rooms(lambda: self._open(None), self._state_type)

    async def _open(self, timeout: float | None) -> Live:
        """Return a client that has joined; the caller must close it. Raises Closed, Disconnected."""
        session = Session(
            self._client,
            now=asyncio.get_running_loop().time,
            schema=self._schema,
            quiet=self._target.quiet,
            has_state=self._has_state,
        )
        live = Live(session, self._target)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                await live.until_joined()
        except BaseException as error:
            trouble = live.trouble or "no answer"
            await live.close()
            # The function that fetches the token may raise a TimeoutError of its own.
            if isinstance(error, TimeoutError) and limit.expired():
                raise Disconnected(f"not joined after {timeout} seconds: {trouble}") from None
            raise
        return live


class _Rooms(Generic[S]):
    """Gives a new room each time, after closing the one before.

    This is not a generator: a generator that is left open when the loop ends could not wait until its room is closed.
    """

    def __init__(self, open_live: Callable[[], Awaitable[Live]], state_type: Any) -> None:
        self._live: Live | None = None
        self._open_live = open_live
        self._state_type = state_type
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(self._loop.time)

    def __aiter__(self) -> "_Rooms[S]":
        return self

    async def __anext__(self) -> Room[S]:
        if self._live is not None:
            await self.aclose()
            await asyncio.sleep(self._backoff.delay())
        self._live = await self._open_live()
        self._backoff.opened()
        return Room(self._live, self._state_type)

    async def aclose(self) -> None:
        """Close the last room."""
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    def __del__(self) -> None:
        if self._live is not None:
            # The tasks of the loop have ended with it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._live.abandon)


@overload
def connect(url: str, *, state_type: type[S], **options: Unpack[Options]) -> Connecting[S]: ...
@overload
def connect(url: str, *, state_type: Any = Any, **options: Unpack[Options]) -> Connecting[Any]: ...
def connect(url: str, *, state_type: Any = Any, **options: Unpack[Options]) -> Connecting[Any]:
    """Connect to the thread at a URL like `ws://localhost:8000/threads/game-room/room-1`.

    `async with connect(url) as room:` waits until the thread is joined, and reconnects by itself. When the server
    closes the connection for good, awaited calls raise Closed. `async for room in connect(url):` gives a new room each
    time the body has ended; the body catches Closed and goes on with `continue`. It tries to connect without a time
    limit, and raises Closed when the server refuses the client for good.

    The state is converted to `state_type`, for example the Struct of the server. `token` may be a function, also an
    async one, that returns a fresh token. With `state=False`, the server sends neither the state nor its changes: for
    calls, queries, messages and events. Raises ValueError for an invalid URL.
    """
    check_url(url)
    target = Target(url, options.get("token"), dict(options.get("headers", {})), options.get("ssl"))
    return Connecting(target, state_type, options)
