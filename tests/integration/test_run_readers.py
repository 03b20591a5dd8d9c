"""Readers of runs that read nothing: others do not wait for them, and the run goes on."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from tests.integration.socket_client import TIMEOUT, bare_socket, http, websocket
from tests.running import running

from plait import CallFailed, Context, Plait, Thread
from plait.adapters.ag_ui import AgUi
from plait_schemas.messages import SUBPROTOCOL

pytestmark = pytest.mark.relayed

POURED: Final = 300
SLOW: Final = "the client reads too slowly"


class Room(Thread[None]):
    pass


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Plait, str]]:
    """Serve an agent that pours out 300 chunks of 64 KiB, and one that tells how many it has."""
    app = Plait(Room, store="memory:", secret="s")
    poured = 0

    @app.agent("pour", thread=Room)
    async def pour(ctx: Context[Room]) -> AsyncIterator[Any]:
        nonlocal poured
        for _ in range(POURED):
            yield {"text": "x" * 65_536}
            poured += 1

    @app.agent("tell", thread=Room)
    async def tell(ctx: Context[Room]) -> int:
        return poured

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address:
        yield app, address


async def check_others_run(app: Plait) -> None:
    """Check that another run gets its turn, when the first one has ended by itself."""
    async with asyncio.timeout(TIMEOUT):
        assert await app.run("tell", thread="one") == POURED


async def read_rest(bare: socket.socket) -> bytes:
    received = b""
    async with asyncio.timeout(TIMEOUT):
        while not received.endswith((b"0\r\n\r\n",)):
            data = await asyncio.get_running_loop().sock_recv(bare, 1 << 20)
            if not data:
                break
            received = (received + data)[-10_000:]
    return received


async def post(bare: socket.socket, path: str, body: bytes = b"") -> None:
    request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    await asyncio.get_running_loop().sock_sendall(bare, request + body)
    assert await asyncio.get_running_loop().sock_recv(bare, 1)


async def test_over_http_the_stream_ends_with_an_error() -> None:
    async with served() as (app, address):
        with bare_socket(address, receive_buffer=4096) as bare:
            await post(bare, "/threads/room/one/run/pour")
            await check_others_run(app)
            assert SLOW.encode() in await read_rest(bare)


@pytest.mark.parametrize("protocol", [SUBPROTOCOL, None])
async def test_on_a_socket_the_stream_ends_with_an_error(protocol: str | None) -> None:
    async with served() as (app, address):
        subprotocols = None if protocol is None else [protocol]
        ws = await websocket(f"ws://{address}/threads/room/one", subprotocols=subprotocols)
        async with ws, asyncio.timeout(TIMEOUT):
            if protocol is None:
                await ws.send(json.dumps({"type": "rpc", "id": "1", "method": "run:pour", "args": []}))
            else:
                await ws.send(json.dumps({"type": "join", "client": "c"}))
                await ws.send(json.dumps({"type": "call", "ref": 1, "method": "run:pour", "args": []}))
            while "xxx" not in str(await ws.recv()):
                pass
            ws.transport.pause_reading()
            await check_others_run(app)
            ws.transport.resume_reading()
            while SLOW not in str(await ws.recv()):
                pass


@pytest.mark.local
async def test_by_a_handle_the_stream_ends_with_an_error() -> None:
    async with served() as (app, _), asyncio.timeout(TIMEOUT):
        chunks = app.stream("pour", thread="one")
        await anext(chunks)
        await check_others_run(app)
        with pytest.raises(CallFailed, match=SLOW):
            async for _ in chunks:
                pass


async def test_a_viewer_of_ag_ui_is_told_that_events_are_gone() -> None:
    async with served() as (app, address):
        with bare_socket(address, receive_buffer=4096) as bare:
            body = json.dumps({"threadId": "t", "runId": "r", "messages": []}).encode()
            await post(bare, "/ag-ui/pour/one", body)
            await check_others_run(app)
            assert b'"code":"gone"' in await read_rest(bare)


async def test_a_reader_that_reads_gets_all_however_much_it_is() -> None:
    async with served() as (app, address), http(address) as web, asyncio.timeout(TIMEOUT):
        answer = await web.post("/threads/room/one/run/pour")
        assert answer.text.count('"chunk"') == POURED
        assert SLOW not in answer.text
        assert len([chunk async for chunk in app.stream("pour", thread="two")]) == POURED
