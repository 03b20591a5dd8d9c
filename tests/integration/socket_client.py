"""Clients for tests: one that speaks the Cloudflare protocol and keeps all that it received, and bare sockets."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from ssl import SSLContext
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

__all__ = [
    "TIMEOUT",
    "CallError",
    "Client",
    "Closed",
    "bare_socket",
    "connected",
    "http",
    "open_socket",
    "opened",
    "websocket",
]

T = TypeVar("T")

# How long a loaded machine may take. Nothing waits for its end but a test that fails.
TIMEOUT: Final = 90.0

_WEBSOCKET_HEADERS: Final = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class CallError(Exception):
    """The server answered a call with an error, which is the message."""


class Closed(Exception):
    """The socket was closed before the awaited frame arrived."""


class Client:
    """A socket that is joined to a thread. `received` has each message, `state` the last state frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.received: list[str | bytes] = []
        self.frames: list[Any] = []
        self.states: list[Any] = []
        # The texts of the server's state errors.
        self.refusals: list[str] = []
        self._chunks: dict[str, list[Any]] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="test client")

    @property
    def state(self) -> Any:
        """The state of the last state frame; None before there is one."""
        return self.states[-1] if self.states else None

    @property
    def messages(self) -> list[str | bytes]:
        """The received messages that are not frames of the protocol."""
        return [data for data, frame in zip(self.received, self.frames, strict=True) if not _is_protocol(frame)]

    # Doing

    async def call(self, method: str, *args: Any) -> Any:
        """Call an rpc and return its result, or the list of its chunks and its last value. Raises CallError."""
        return await asyncio.wait_for(await self.begin(method, *args), TIMEOUT)

    async def begin(self, method: str, *args: Any) -> Awaitable[Any]:
        """Send a call, and return the future of its answer."""
        id = str(next(self._ids))
        future = self._calls[id] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._reader.done():
            future.set_exception(Closed())
        await self.send({"type": "rpc", "id": id, "method": method, "args": list(args)})
        return future

    async def push(self, state: Any) -> None:
        """Send a state."""
        await self.send({"type": "cf_agent_state", "state": state})

    async def send(self, data: Any) -> None:
        """Send a str as text, bytes as binary, anything else as JSON. Raises Closed."""
        try:
            await self.socket.send(data if isinstance(data, str | bytes) else json.dumps(data))
        except ConnectionClosed:
            raise Closed from None

    # Waiting

    async def until(self, is_so: Callable[["Client"], Any], timeout: float = TIMEOUT) -> None:
        """Wait until the received frames make `is_so` true. Raises Closed, TimeoutError."""
        async with asyncio.timeout(timeout):
            while not is_so(self):
                if self._reader.done():
                    raise Closed(self.socket.close_code, self.socket.close_reason)
                self._news.clear()
                await self._news.wait()

    async def until_state(self, state: Any) -> None:
        """Wait until the last state frame says `state`."""
        await self.until(lambda client: client.states and client.state == state)

    async def until_closed(self, timeout: float = TIMEOUT) -> int | None:
        """Wait until the server has closed the socket, and return the code."""
        async with asyncio.timeout(timeout):
            await asyncio.shield(self._reader)
        return self.socket.close_code

    async def close(self) -> None:
        """Close the socket, and read nothing more."""
        await self.socket.close()
        await self._reader

    # Inside

    async def _read(self) -> None:
        try:
            async for data in self.socket:
                self._take(data)
        except ConnectionClosed:
            pass
        finally:
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(Closed(self.socket.close_code, self.socket.close_reason))
            self._news.set()

    def _take(self, data: str | bytes) -> None:
        frame = _decode(data)
        self.received.append(data)
        self.frames.append(frame)
        match frame:
            case {"type": "cf_agent_state", "state": state}:
                self.states.append(state)
            case {"type": "cf_agent_state_error", "error": str(error)}:
                self.refusals.append(error)
            case {"type": "rpc", "id": str(id), "success": False, "error": str(error)}:
                self._calls[id].set_exception(CallError(error))
            case {"type": "rpc", "id": str(id), "done": False}:
                self._chunks.setdefault(id, []).append(frame.get("result"))
            case {"type": "rpc", "id": str(id)}:
                chunks = self._chunks.pop(id, None)
                result = frame.get("result")
                self._calls[id].set_result(result if chunks is None else [*chunks, result])
        self._news.set()


@asynccontextmanager
async def connected(
    address: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    origin: str | None = None,
    headers: Mapping[str, str] | None = None,
    ssl: SSLContext | None = None,
) -> AsyncIterator[Client]:
    """Open a socket at `path` of a server, such as `/threads/counter/one`."""
    client = await opened(address, path, query=query, origin=origin, headers=headers, ssl=ssl)
    try:
        yield client
    finally:
        await client.close()


async def opened(
    address: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    origin: str | None = None,
    headers: Mapping[str, str] | None = None,
    ssl: SSLContext | None = None,
) -> Client:
    """Return a socket that the caller closes."""
    scheme = "ws" if ssl is None else "wss"
    url = f"{scheme}://{address}{path}" + (f"?{urlencode(query)}" if query else "")
    return Client(await websocket(url, origin=origin, additional_headers=headers, ssl=ssl))


async def websocket(url: str, **options: Any) -> ClientConnection:
    """Open a WebSocket that takes all that comes and asks for nothing by itself."""
    limits = {"compression": None, "max_size": None, "max_queue": None, "ping_interval": None, "proxy": None}
    return await connect(url, open_timeout=TIMEOUT, close_timeout=TIMEOUT, **limits, **options)


def http(address: str, **options: Any) -> httpx.AsyncClient:
    """Return an HTTP client for a server, to be entered."""
    return httpx.AsyncClient(base_url=f"http://{address}", timeout=TIMEOUT, trust_env=False, verify=False, **options)


# Sockets without a client's manners


@contextmanager
def bare_socket(address: str, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """Connect to a server and speak nothing; nothing is read or answered but by the caller."""
    host, _, port = address.rpartition(":")
    with socket.socket() as bare:
        if receive_buffer is not None:
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        bare.settimeout(TIMEOUT)
        bare.connect((host, int(port)))
        bare.setblocking(False)
        yield bare


async def open_socket(bare: socket.socket, path: str) -> None:
    """Open a WebSocket by hand, and read no further than the end of the answer."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(bare, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{_WEBSOCKET_HEADERS}\r\n".encode())
    answer = b""
    async with asyncio.timeout(TIMEOUT):
        while not answer.endswith(b"\r\n\r\n"):
            byte = await loop.sock_recv(bare, 1)
            assert byte, answer
            answer += byte
    assert answer.startswith(b"HTTP/1.1 101 "), answer


def _decode(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _is_protocol(frame: Any) -> bool:
    return isinstance(frame, dict) and str(frame.get("type", "")).startswith(("cf_agent_", "rpc"))
