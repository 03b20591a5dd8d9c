"""A client of channels for tests: several sockets in one, whose messages it keeps."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.integration.socket_client import TIMEOUT, websocket
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

__all__ = ["CarrierClient", "carried"]

OFFERED = (Subprotocol("plait.channels.v1"), Subprotocol("plait.v1"))


class CarrierClient:
    """A carrier. `frames` has what came on each channel, and `closed` how a channel was closed."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: dict[int, list[Any]] = {}
        self.closed: dict[int, tuple[int, str]] = {}
        self.marks = 0
        self._last = 0
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read(), name="carrier client")

    async def send(self, number: int, data: str | bytes) -> None:
        """Send a message on a channel."""
        head = f"{number} "
        await self.socket.send(head + data if isinstance(data, str) else head.encode() + data)

    async def open(self, path: str, client: str = "", **join: Any) -> int:
        """Open a channel and send a join; return its number."""
        self._last += 1
        number = self._last
        self.frames[number] = []
        await self.send(number, path)
        await self.tell(number, "join", client=client or f"c{number}", **join)
        return number

    async def join(self, path: str, client: str = "", **join: Any) -> int:
        """Open a channel, and wait until it is joined; return its number."""
        number = await self.open(path, client, **join)
        await self.until_answered(number)
        assert self.frames[number], self.closed
        assert self.frames[number][0]["type"] == "joined"
        return number

    async def tell(self, number: int, type: str, /, **fields: Any) -> None:
        """Send a frame on a channel."""
        await self.send(number, json.dumps({"type": type, **fields}))

    async def call(self, number: int, method: str, *args: Any) -> Any:
        """Call an rpc and return its result."""
        ref = len(self.frames[number]) + 1_000
        await self.tell(number, "call", ref=ref, method=method, args=args)

        def find() -> dict[str, Any] | None:
            return next((each for each in self.frames[number] if each.get("ref") == ref), None)

        await self.until(find)
        frame = find()
        assert frame is not None
        assert frame["type"] == "result", frame
        return frame.get("value")

    async def until_answered(self, number: int) -> None:
        """Wait until a channel has a frame, or is closed."""
        await self.until(lambda: self.frames[number] or number in self.closed)

    async def until_shown(self, number: int, text: str) -> None:
        """Wait until a frame of a channel has a text in it."""
        await self.until(lambda: text in str(self.frames[number]))

    async def until_closed(self, number: int) -> tuple[int, str]:
        """Wait until the server has closed a channel; return its code and reason."""
        await self.until(lambda: number in self.closed)
        return self.closed[number]

    async def until_lost(self) -> int | None:
        """Wait until the carrier is closed; return its code."""
        async with asyncio.timeout(TIMEOUT):
            await asyncio.shield(self._reader)
        return self.socket.close_code

    async def until(self, is_so: Callable[[], Any]) -> None:
        """Wait until what came makes `is_so` true."""
        async with asyncio.timeout(TIMEOUT):
            while not is_so():
                assert not self._reader.done(), (self.socket.close_code, self.socket.close_reason)
                self._news.clear()
                await self._news.wait()

    async def _read(self) -> None:
        try:
            async for data in self.socket:
                await self._take(data)
                self._news.set()
        except ConnectionClosed:
            pass
        finally:
            self._news.set()

    async def _take(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            head, _, rest = data.partition(b" ")
            self.frames[int(head)].append(rest)
            return
        first, _, text = data.partition(" ")
        number = int(first)
        if text == "?":
            self.marks += 1
            await self.socket.send(data)
        elif found := re.fullmatch(r"!(\d+) (.*)", text, re.DOTALL):
            assert number not in self.closed
            self.closed[number] = (int(found[1]), found[2])
        else:
            self.frames[number].append(json.loads(text))


@asynccontextmanager
async def carried(
    address: str,
    path: str = "/threads/page/first",
    *,
    origin: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[CarrierClient]:
    """Open a carrier with the URL of a thread, which it does not open."""
    url = f"ws://{address}{path}"
    socket = await websocket(url, subprotocols=OFFERED, origin=origin, additional_headers=headers)
    assert socket.subprotocol == OFFERED[0]
    client = CarrierClient(socket)
    try:
        yield client
    finally:
        await socket.close()
        await client.until_lost()
