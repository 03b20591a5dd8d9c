"""Rights end when they end: of every door, for principals that have expired, expire, or are disconnected."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from tests.integration.socket_client import TIMEOUT, connected, http, websocket
from tests.running import begin, running
from websockets.exceptions import ConnectionClosed

from plait import Context, MemoryStore, Plait, Principal, Thread, rpc
from plait.adapters.ag_ui import AgUi

pytestmark = pytest.mark.relayed

# Seconds for which the token `soon` is valid.
SOON = 1.0
RUN = {"threadId": "t", "runId": "r", "messages": []}


class Room(Thread[dict[str, Any]]):
    """Answers at once, or streams without an end."""

    initial_state: Any = dict

    @rpc
    def touch(self) -> None:
        self.set_state({"touched": True})

    @rpc
    async def pour(self) -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async def on_request(self, request: Request) -> Response:
        if "stream" not in request.query_params:
            return PlainTextResponse("answered")

        async def pour() -> AsyncIterator[bytes]:
            yield b"1"
            await asyncio.Event().wait()

        return StreamingResponse(pour())


class Served(NamedTuple):
    app: Plait
    address: str
    web: httpx.AsyncClient


def make_app() -> Plait:
    tokens = {"ada": None, "late": -1.0, "soon": SOON}

    async def authenticate(request: Request) -> Principal | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ") or request.query_params.get(
            "token", ""
        )
        if token not in tokens:
            return None
        left = tokens[token]
        return Principal("ada", expires_at=None if left is None else time.time() + left)

    app = Plait(Room, store=MemoryStore(), authenticate=authenticate, secret="x" * 32, shutdown_timeout=0.1)

    @app.agent("say", thread=Room)
    async def say(ctx: Context[Room]) -> str:
        return "said"

    @app.agent("pour", thread=Room)
    async def pour(ctx: Context[Room]) -> AsyncIterator[str]:
        yield "1"
        await asyncio.Event().wait()

    app.mount("/ag-ui", AgUi(app))
    return app


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    app = make_app()
    async with running(app) as address, http(address) as web:
        await begin(app, Room)
        yield Served(app, address, web)


# Doors

ROOM = "/threads/room/one"
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "state": ("GET", ROOM, None),
    "changes": ("GET", f"{ROOM}/changes", None),
    "put": ("PUT", ROOM, {"n": 1}),
    "rpc": ("POST", f"{ROOM}/rpc/touch", {}),
    "on_request": ("GET", f"{ROOM}/page", None),
    "run": ("POST", f"{ROOM}/run/say", None),
    "interrupt": ("POST", f"{ROOM}/interrupt", None),
    "signed run": ("POST", "/run/say", None),
    "session's run": ("POST", "/run/say?session_id=s", None),
    "ag-ui interrupt": ("POST", "/ag-ui/say/one/interrupt", None),
}


class Stream(NamedTuple):
    """What is streamed over HTTP, what comes first of it, and how it ends."""

    method: str
    path: str
    body: Any
    first: str
    end: str


STREAMS = {
    "events": Stream("GET", f"{ROOM}/changes", None, '"joined"', "closed"),
    "rpc": Stream("POST", f"{ROOM}/rpc/pour", {}, '{"chunk":1}', "told"),
    "run": Stream("POST", f"{ROOM}/run/pour", None, "1", "broken"),
    "run as events": Stream("POST", "/run/pour", None, "1", "told"),
    "on_request": Stream("GET", f"{ROOM}/page?stream", None, "1", "broken"),
    "ag-ui": Stream("POST", "/ag-ui/pour/one", RUN, "RUN_STARTED", "closed"),
    "ag-ui viewer": Stream("GET", "/ag-ui/pour/one/events", None, "RUN_STARTED", "closed"),
}


def make_headers(token: str, name: str = "") -> dict[str, str]:
    accept = {"accept": "text/event-stream"} if name in ("events", "run as events") else {}
    return ({"authorization": f"Bearer {token}"} if token else {}) | accept


@asynccontextmanager
async def streaming(served: Served, name: str, token: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Open a stream, and read it until its first part has come. Yields what reads it to the end, and tells that."""
    stream = STREAMS[name]
    async with contextlib.AsyncExitStack() as stack:
        if name == "ag-ui viewer":  # There must be a run to watch.
            begun = served.web.stream("POST", "/ag-ui/pour/one", json=RUN, headers=make_headers("ada", name))
            run = await stack.enter_async_context(begun)
            await read_until(run.aiter_text(), "RUN_STARTED")
        sent = served.web.stream(stream.method, stream.path, json=stream.body, headers=make_headers(token, name))
        answer = await stack.enter_async_context(sent)
        assert answer.status_code == 200, await answer.aread()
        parts = answer.aiter_text()
        await read_until(parts, stream.first)
        yield lambda: read_end(parts)


async def read_until(parts: AsyncIterator[str], first: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        async for part in parts:
            if first in part:
                return
    raise AssertionError(f"no {first} came")


async def read_end(parts: AsyncIterator[str]) -> str:
    """Return how a stream has ended: "closed", "told" with an error, or "broken" off."""
    text = ""
    try:
        async with asyncio.timeout(TIMEOUT):
            async for part in parts:
                text += part
    except httpx.RemoteProtocolError:
        return "broken"
    return "told" if "the token has expired" in text or "disconnected" in text else "closed"


async def join_native(address: str, token: str) -> Any:
    socket = await websocket(f"ws://{address}{ROOM}", subprotocols=["plait.v1"])
    frame: dict[str, Any] = {"type": "join", "client": "a"} | ({"token": token} if token else {})
    await socket.send(json.dumps(frame))
    return socket


async def join_cloudflare(address: str, token: str) -> Any:
    return await websocket(f"ws://{address}{ROOM}?_pk=a" + (f"&token={token}" if token else ""))


SOCKETS = {"native": join_native, "cloudflare": join_cloudflare}


async def read_code(socket: Any) -> int:
    """Read a socket until it is closed, and return the code."""
    async with asyncio.timeout(TIMEOUT):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv()
    code: int = socket.close_code
    return code


# Without rights


@pytest.mark.parametrize("token", ["", "late"], ids=["none", "expired"])
@pytest.mark.parametrize("name", REQUESTS)
async def test_no_request_is_answered_without_rights(served: Served, name: str, token: str) -> None:
    method, path, body = REQUESTS[name]
    answer = await served.web.request(method, path, json=body, headers=make_headers("ada"))
    assert answer.status_code == 200
    answer = await served.web.request(method, path, json=body, headers=make_headers(token))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
    if token:
        assert answer.json()["error"]["message"] == "the token has expired"


@pytest.mark.parametrize("token", ["", "late"], ids=["none", "expired"])
@pytest.mark.parametrize("name", STREAMS)
async def test_no_stream_begins_without_rights(served: Served, name: str, token: str) -> None:
    stream = STREAMS[name]
    headers = make_headers(token, name)
    answer = await served.web.request(stream.method, stream.path, json=stream.body, headers=headers)
    assert answer.status_code == 401


@pytest.mark.parametrize("token", ["", "late"], ids=["none", "expired"])
@pytest.mark.parametrize("name", SOCKETS)
async def test_no_socket_joins_without_rights(served: Served, name: str, token: str) -> None:
    assert await read_code(await SOCKETS[name](served.address, token)) == 4401


# Expiring while open


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_ends_when_its_principal_expires(served: Served, name: str) -> None:
    async with streaming(served, name, "soon") as read:
        assert await read() == STREAMS[name].end


@pytest.mark.parametrize("name", SOCKETS)
async def test_a_socket_is_closed_when_its_principal_expires(served: Served, name: str) -> None:
    async with connected(served.address, ROOM, query={"token": "ada"}) as other:
        assert await read_code(await SOCKETS[name](served.address, "soon")) == 4401
        await other.call("touch")


async def test_what_is_uploaded_until_its_principal_has_expired_is_not_written(served: Served) -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b'{"n":'
        # It expires later than the upload's principal.
        async with streaming(served, "rpc", "soon") as read:
            await read()
        yield b"1}"

    answer = await served.web.put(ROOM, content=upload(), headers=make_headers("soon"))
    assert (answer.status_code, answer.json()["error"]["message"]) == (401, "the token has expired")
    assert (await served.web.get(ROOM, headers=make_headers("ada"))).json() == {}
