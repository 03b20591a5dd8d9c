"""Connecting to a thread, with asyncio."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from types import TracebackType
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from plait_client.backoff import Backoff
from plait_client.carrier import Target, Token
from plait_client.errors import Disconnected
from plait_client.live import Live
from plait_client.room import Room
from plait_client.session import Session

__all__ = ["Connecting", "Options", "connect"]

S = TypeVar("S")

_STEADY = 10.0
"""A client that has lived for so many seconds is not what an outage looks like."""


class Options(TypedDict, total=False):
    """Keywords of `connect` and `connect_sync`."""

    # The id by which the server knows this client over all its sockets; a random one by default.
    client: str | None
    # Shown to the server; a function is called for each connection, and when a token is about to expire.
    token: Token
    # The hash of the state's schema that the client was made for.
    schema: str | None
    # Further headers of the request.
    headers: Mapping[str, str]
    ssl: SSLContext | None
    # How many seconds the first join may take with `async with`.
    open_timeout: float | None


class Connecting(Generic[S]):
    """What `connect` returns: an async context manager, and an async iterator."""

    def __init__(self, url: str, state_type: Any, options: Options) -> None:
        self._target = Target(url, options.get("token"), dict(options.get("headers", {})), options.get("ssl"))
        self._client = options.get("client") or secrets.token_hex(16)
        self._schema = options.get("schema")
        self._open_timeout = options.get("open_timeout", 10.0)
        self._state_type = state_type
        self._lives: list[Live] = []

    async def __aenter__(self) -> Room[S]:
        live = await self._open(self._open_timeout)
        self._lives.append(live)
        return Room(live, self._state_type)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._lives.pop().close()

    async def __aiter__(self) -> AsyncGenerator[Room[S], None]:
        backoff = Backoff()
        clock = asyncio.get_running_loop().time
        while True:
            async with self._opened() as room:
                opened_at = clock()
                yield room
            if clock() - opened_at > _STEADY:
                backoff.reset()
            await asyncio.sleep(backoff.delay())

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Room[S]]:
        live = await self._open(None)
        try:
            yield Room(live, self._state_type)
        finally:
            await live.close()

    async def _open(self, timeout: float | None) -> Live:
        """Return a client that has joined, and is to be closed. Raises Closed, Disconnected."""
        session = Session(self._client, clock=asyncio.get_running_loop().time, schema=self._schema)
        live = Live(session, self._target)
        try:
            async with asyncio.timeout(timeout):
                await live.until_joined()
        except TimeoutError:
            trouble = live.carrier.trouble or "no answer"
            await live.close()
            raise Disconnected(f"not joined after {timeout} seconds: {trouble}") from None
        except BaseException:
            await live.close()
            raise
        return live


@overload
def connect(url: str, *, state_type: type[S], **options: Unpack[Options]) -> Connecting[S]: ...
@overload
def connect(url: str, *, state_type: Any = Any, **options: Unpack[Options]) -> Connecting[Any]: ...
def connect(url: str, *, state_type: Any = Any, **options: Unpack[Options]) -> Connecting[Any]:
    """Connect to the thread at a URL like `ws://localhost:8000/threads/game-room/room-1`.

    `async with connect(url) as room:` waits for the thread to be joined, and reconnects by itself. When the server
    closes it for good, what is awaited raises Closed. `async for room in connect(url):` gives a fresh one each time
    the body has ended, which catches Closed and goes on with `continue`; it tries to connect as long as it takes, and
    raises Closed when it is not let in for good.

    `state_type` is what the state is converted to, the Struct of the server for example. `token` may be a function,
    also an async one, that returns a fresh token.
    """
    return Connecting(url, state_type, options)
