"""A raw client of the native protocol for tests: keeps every frame, and applies confirmed changes."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from tests.integration.socket_client import TIMEOUT, Closed, websocket
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from plait_schemas.messages import SUBPROTOCOL
from plait_schemas.patch import Op, apply

__all__ = ["NativeClient", "Push", "add", "joined", "put"]


def put(path: str, value: Any) -> dict[str, Any]:
    """Return an operation that replaces the value at a path."""
    return {"op": "replace", "path": path, "value": value}


def add(path: str, value: Any) -> dict[str, Any]:
    """Return an operation that adds something at a path."""
    return {"op": "add", "path": path, "value": value}


class Push:
    """Operations under a number."""

    def __init__(self, ref: int, ops: Sequence[dict[str, Any]]) -> None:
        self.ref = ref
        self.ops = ops


class NativeClient:
    """One client over any number of sockets; its pushes are pending until they are answered, and are sent again."""

    def __init__(
        self,
        address: str,
        path: str,
        client: str,
        *,
        token: str | None = None,
        origin: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.address = address
        self.epoch = ""
        self.version = 0
        self.state: Any = None
        # Everything that came on the last socket, and every answer to a push.
        self.frames: list[Any] = []
        self.answers: list[tuple[Push, dict[str, Any]]] = []
        self.pending: list[Push] = []
        # Those that were sent on this socket, in order, as long as they are not answered.
        self._sent: deque[Push] = deque()
        self._path, self._client, self._token = path, client, token
        self._origin, self._headers = origin, headers
        self._ref = 0
        self._call = 0
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def socket(self) -> ClientConnection:
        assert self._socket is not None
        return self._socket

    # Doing

    async def open(self, *, joins: bool = True) -> None:
        """Open a socket, and say who this is."""
        self.frames = []
        self._sent.clear()
        self._socket = await websocket(
            f"ws://{self.address}{self._path}",
            subprotocols=[SUBPROTOCOL],
            origin=self._origin,
            additional_headers=self._headers,
        )
        self._reader = asyncio.create_task(self._read(self._socket), name="native client")
        if joins:
            have = [self.epoch, self.version] if self.epoch else None
            fields = {"have": have, "token": self._token}
            given = {name: value for name, value in fields.items() if value is not None}
            await self.send("join", client=self._client, **given)

    async def join(self) -> dict[str, Any]:
        """Open a socket, join, and resend pending pushes; return the `joined` frame. Raises Closed."""
        await self.open()
        await self.until(lambda client: client.frames)
        frame: dict[str, Any] = self.frames[0]
        assert frame["type"] == "joined", frame
        for push in self.pending:
            await self._send_push(push)
        return frame

    async def push(self, *ops: dict[str, Any]) -> int:
        """Push operations on the known state; return the ref."""
        while self._tasks:
            # What has been given new numbers goes first.
            await asyncio.gather(*self._tasks)
        self._ref += 1
        push = Push(self._ref, ops)
        self.pending.append(push)
        await self._send_push(push)
        return push.ref

    async def call(self, method: str, *args: Any) -> Any:
        """Call an rpc and return its result."""
        self._call += 1
        ref = self._call
        await self.send("call", ref=ref, method=method, args=args)
        await self.until(lambda client: client.of(("result", "error"), ref=ref))
        frame = self.of(("result", "error"), ref=ref)[0]
        assert frame["type"] == "result", frame
        return frame.get("value")

    async def send(self, type: str, /, **fields: Any) -> None:
        """Send a frame. Raises Closed."""
        await self.send_text(json.dumps({"type": type, **fields}))

    async def send_text(self, text: str) -> None:
        """Send data that need not be a frame. Raises Closed."""
        try:
            await self.socket.send(text)
        except ConnectionClosed:
            raise Closed from None

    async def close(self) -> None:
        """Close the socket."""
        if self._socket is not None and self._reader is not None:
            await self._socket.close()
            await asyncio.gather(self._reader, *self._tasks)

    # Waiting

    def of(self, types: str | tuple[str, ...], **fields: Any) -> list[Any]:
        """Return the frames of some types that have some fields."""
        wanted = (types,) if isinstance(types, str) else types
        return [
            frame
            for frame in self.frames
            if isinstance(frame, dict)
            and frame["type"] in wanted
            and all(frame.get(name) == value for name, value in fields.items())
        ]

    async def until(self, is_so: Callable[["NativeClient"], Any], timeout: float = TIMEOUT) -> None:
        """Wait until the received frames make `is_so` true. Raises Closed, TimeoutError."""
        assert self._reader is not None
        async with asyncio.timeout(timeout):
            while not is_so(self):
                if self._reader.done():
                    self._reader.result()
                    raise Closed(self.socket.close_code, self.socket.close_reason)
                self._news.clear()
                await self._news.wait()

    async def until_state(self, state: Any) -> None:
        """Wait until the server has confirmed a state."""
        await self.until(lambda client: client.state == state)

    async def until_closed(self) -> int | None:
        """Wait until the server has closed the socket, and return the code."""
        assert self._reader is not None
        async with asyncio.timeout(TIMEOUT):
            await asyncio.shield(self._reader)
        return self.socket.close_code

    # Inside

    async def _send_push(self, push: Push) -> None:
        self._sent.append(push)
        await self.send("push", ref=push.ref, base=[self.epoch, self.version], ops=push.ops)

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for data in socket:
                frame = json.loads(data) if isinstance(data, str) else data
                self.frames.append(frame)
                if isinstance(frame, dict):
                    self._take(frame)
                self._news.set()
        except ConnectionClosed:
            pass
        finally:
            self._news.set()

    def _take(self, frame: dict[str, Any]) -> None:
        match frame["type"]:
            case "joined":
                self.epoch = frame["epoch"]
                self._advance(frame["version"], frame)
            case "snapshot":
                self._advance(frame["version"], frame)
            case "change":
                assert frame["version"] == self.version + 1, f"a gap after {self.version}: {frame}"
                self._advance(frame["version"], frame)
            case "changes":
                assert frame["from"] == self.version, f"a gap after {self.version}: {frame}"
                self._advance(frame["to"], frame)
            case "ack":
                ops = self._answered(frame).ops
                if frame["version"] > self.version:
                    assert frame["version"] == self.version + 1, f"a gap after {self.version}: {frame}"
                    self._advance(frame["version"], {"ops": ops, **frame})
            case "nack":
                self._answered(frame)
            case _:
                pass

    def _answered(self, frame: dict[str, Any]) -> Push:
        push = self._sent.popleft()
        assert push.ref == frame["ref"], f"push {push.ref} was to be answered: {frame}"
        if push in self.pending:
            self.pending.remove(push)
            if frame.get("code") == "gap":
                self._renumber(push, frame["expected"])
            else:
                self.answers.append((push, frame))
        return push

    def _renumber(self, first: Push, expected: int) -> None:
        """Give the pending pushes new numbers: the server has seen none of them, and forgotten some before."""
        assert all(push.ref != expected for push in self.pending), "a push before it is pending"
        self.pending = [Push(ref, push.ops) for ref, push in enumerate([first, *self.pending], expected)]
        self._ref = expected + len(self.pending) - 1
        for push in self.pending:
            task = asyncio.create_task(self._send_quietly(push))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_quietly(self, push: Push) -> None:
        with suppress(Closed):
            await self._send_push(push)

    def _advance(self, version: int, frame: dict[str, Any]) -> None:
        self.version = version
        if "state" in frame:
            self.state = frame["state"]
        elif "ops" in frame:
            self.state = apply(self.state, msgspec.convert(frame["ops"], list[Op]))


@asynccontextmanager
async def joined(address: str, path: str, client: str, **options: Any) -> AsyncIterator[NativeClient]:
    """Return a client that has joined a thread, and close it in the end."""
    opened = NativeClient(address, path, client, **options)
    try:
        await opened.join()
        yield opened
    finally:
        await opened.close()
