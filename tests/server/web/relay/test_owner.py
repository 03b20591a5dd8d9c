"""Requests that a gateway relays to a node that shuts down."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message
from tests.server.nodes import open_nodes

from plait import Plait, Thread

PATIENCE = 20.0
PIECE = b"x" * 30_000
COUNT = 20


class Page(Thread[dict[str, Any]]):
    """Answers with more than a link carries ahead."""

    initial_state = {"n": 0}  # noqa: RUF012

    async def on_request(self, request: Request) -> Response:
        return StreamingResponse(self._pour())

    async def _pour(self) -> AsyncIterator[bytes]:
        for _ in range(COUNT):
            yield PIECE


class Reader:
    """A client that reads the answer when it may."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.has_begun = asyncio.Event()
        self.gate = asyncio.Event()

    async def get(self, app: Plait, path: str) -> None:
        """Send a request, and read the whole answer."""
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "headers": [(b"host", b"localhost")],
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self.has_begun.is_set():
            return {"type": "http.request"}
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message["body"]
            self.has_begun.set()
            await self.gate.wait()


async def test_a_relayed_answer_that_has_begun_is_sent_whole_when_its_node_shuts_down() -> None:
    async with asyncio.timeout(PATIENCE), open_nodes(lambda: Plait(Page, store="memory://")) as nodes:
        gateway, owner = nodes.apps
        await nodes.handle(Page, 1).set_state({"n": 1})
        reader = Reader()
        reading = asyncio.create_task(reader.get(gateway, f"/threads/page/{nodes.name(Page, 1)}/pour"))
        await reader.has_begun.wait()
        await owner.drain()
        stopping = asyncio.create_task(owner.__aexit__(None, None, None))
        while owner._node._loop is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reader.gate.set()
        await reading
        await stopping
        await owner.__aenter__()
        assert (reader.status, len(reader.body)) == (200, COUNT * len(PIECE))
