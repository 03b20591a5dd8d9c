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
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from tests.cases import each_case
from tests.integration.socket_client import TIMEOUT, CallError, connected, http, websocket
from tests.running import begin, running
from tests.server.fakes import TroubledStore
from tests.server.parts.workshop import until
from websockets.exceptions import ConnectionClosed

from plait import Context, Limits, MemoryStore, Plait, Principal, Thread, ThreadKey, rpc
from plait.adapters.ag_ui import AgUi
from plait.agents.active_runs import _QUEUE
from plait.store.protocol import Write

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

    @rpc(clients=False)
    def grant(self) -> str:
        return "granted"

    @rpc(name="lend", clients=False)
    async def grant_slowly(self) -> AsyncIterator[str]:
        yield "lent"

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


class Entrance:
    """Where authentications wait, while it is closed; `waiting` is how many do."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.waiting = 0
        self.came = asyncio.Event()
        # Set at the end of the test: runs that pour end then, and the server waits for none.
        self.ended = asyncio.Event()

    async def enter(self) -> None:
        self.waiting += 1
        self.came.set()
        await self.opened.wait()
        self.waiting -= 1

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT):
            while self.waiting < count:
                self.came.clear()
                await self.came.wait()


class Served(NamedTuple):
    app: Plait
    address: str
    web: httpx.AsyncClient
    entrance: Entrance


def make_app(entrance: Entrance) -> Plait:
    tokens = {"ada": None, "bob": None, "late": -1.0, "soon": SOON}

    async def authenticate(request: Request) -> Principal | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ") or request.query_params.get(
            "token", ""
        )
        if token not in tokens:
            return None
        left = tokens[token]
        await entrance.enter()
        return Principal("bob" if token == "bob" else "ada", expires_at=None if left is None else time.time() + left)

    limits = Limits(connections_per_address=500)
    app = Plait(
        Room, store=MemoryStore(), authenticate=authenticate, secret="x" * 32, shutdown_timeout=0.1, limits=limits
    )

    @app.agent("say", thread=Room)
    async def say(ctx: Context[Room]) -> str:
        return "said"

    @app.agent("pour", thread=Room)
    async def pour(ctx: Context[Room]) -> AsyncIterator[str]:
        yield "1"
        await entrance.ended.wait()

    app.mount("/ag-ui", AgUi(app))
    return app


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    app = make_app(entrance := Entrance())
    async with running(app) as address, http(address) as web:
        await begin(app, Room)
        yield Served(app, address, web, entrance)
        entrance.ended.set()


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


@each_case("token", ["", "late"])
@each_case("name", REQUESTS)
async def test_no_request_is_answered_without_rights(served: Served, name: str, token: str) -> None:
    method, path, body = REQUESTS[name]
    answer = await served.web.request(method, path, json=body, headers=make_headers("ada"))
    assert answer.status_code == 200
    answer = await served.web.request(method, path, json=body, headers=make_headers(token))
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
    if token:
        assert answer.json()["error"]["message"] == "the token has expired"


@each_case("token", ["", "late"])
@each_case("name", STREAMS)
async def test_no_stream_begins_without_rights(served: Served, name: str, token: str) -> None:
    stream = STREAMS[name]
    headers = make_headers(token, name)
    answer = await served.web.request(stream.method, stream.path, json=stream.body, headers=headers)
    assert answer.status_code == 401


@each_case("token", ["", "late"])
@each_case("name", SOCKETS)
async def test_no_socket_joins_without_rights(served: Served, name: str, token: str) -> None:
    assert await read_code(await SOCKETS[name](served.address, token)) == 4401


@each_case("method", ["grant", "lend", "missing"])
async def test_an_rpc_for_handles_only_is_missing_at_every_door(served: Served, method: str) -> None:
    error = {"code": "method_not_found", "message": f"Method {method} does not exist"}
    answer = await served.web.post(f"{ROOM}/rpc/{method}", headers=make_headers("ada"))
    assert (answer.status_code, answer.json()["error"]) == (404, error)
    async with connected(served.address, ROOM, query={"token": "ada"}) as cloudflare:
        with pytest.raises(CallError, match=error["message"]):
            await cloudflare.call(method)
    native = await join(served, "native", "ada")
    await native.send(json.dumps({"type": "call", "ref": 1, "method": method}))
    async with asyncio.timeout(TIMEOUT):
        while '"ref":1' not in (text := await native.recv()):
            pass
    assert {"type": "error", "ref": 1, **error}.items() <= json.loads(text).items()
    await native.close()
    room = served.app.thread(Room, "one")
    if method != "missing":
        assert await room.call(method) == ("granted" if method == "grant" else ["lent"])
        assert [each async for each in room.stream(Room.grant_slowly)] == ["lent"]
        assert await room.call(Room.grant) == "granted"


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


# Disconnecting


async def join(served: Served, name: str, token: str) -> Any:
    """Return a socket that has joined."""
    socket = await SOCKETS[name](served.address, token)
    async with asyncio.timeout(TIMEOUT):
        while "joined" not in (text := await socket.recv()) and "cf_agent_mcp_servers" not in text:
            pass
    return socket


async def test_all_sockets_of_a_user_are_disconnected_and_no_other(served: Served) -> None:
    sockets = [await join(served, name, "ada") for name in SOCKETS for _ in range(1 if name == "native" else 20)]
    other = await join(served, "cloudflare", "bob")
    assert await served.app.disconnect("ada") == len(sockets)
    assert [await read_code(each) for each in sockets] == [4401] * len(sockets)
    await other.send(json.dumps({"type": "rpc", "id": "1", "method": "touch", "args": []}))
    async with asyncio.timeout(TIMEOUT):
        while '"success":true' not in await other.recv():
            pass
    assert await served.app.disconnect("ada") == 0
    assert served.app._context.leases._disconnected == {}
    # It is no ban.
    await (await join(served, "native", "ada")).close()
    await other.close()


@pytest.mark.parametrize("name", STREAMS)
async def test_the_streams_of_a_user_are_disconnected(served: Served, name: str) -> None:
    async with streaming(served, name, "ada") as read:
        assert await served.app.disconnect("ada") == (2 if name == "ag-ui viewer" else 1)
        assert await read() == STREAMS[name].end


async def test_what_runs_in_the_background_of_an_answer_outlives_rights_and_its_connection_serves_on() -> None:
    came, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        came.set()
        await release.wait()

    async def work() -> None:
        await wait()
        ended.set()

    async def pour() -> AsyncIterator[bytes]:
        yield b"1"

    class Page(Thread[Any]):
        async def on_request(self, request: Request) -> Response:
            if "stream" in request.query_params:
                return StreamingResponse(pour(), background=BackgroundTask(work))
            await wait()
            return PlainTextResponse("answered")

    app = Plait(Page, store=MemoryStore(), authenticate=lambda request: Principal("ada"))
    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        assert (await web.get("/threads/page/one/own?stream")).text == "1"
        await came.wait()
        came.clear()
        asked = asyncio.create_task(web.get("/threads/page/one/own"))
        await came.wait()
        await app.disconnect("ada")
        release.set()
        assert (await asked).text == "answered"
        await ended.wait()


@pytest.mark.parametrize(("method", "wanted"), [("GET", (401, "unauthenticated")), ("POST", (500, "indeterminate"))])
async def test_a_stream_that_has_not_begun_when_rights_end_is_refused(method: str, wanted: tuple[int, str]) -> None:
    came, release = asyncio.Event(), asyncio.Event()

    async def pour() -> AsyncIterator[bytes]:
        yield b"1"

    class Page(Thread[Any]):
        async def on_request(self, request: Request) -> Response:
            came.set()
            await release.wait()
            return StreamingResponse(pour())

    app = Plait(Page, store=MemoryStore(), authenticate=lambda request: Principal("ada"))
    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        asked = asyncio.create_task(web.request(method, "/threads/page/one/own"))
        await came.wait()
        await app.disconnect("ada")
        release.set()
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == wanted


async def test_an_event_stream_of_a_user_who_is_disconnected_during_on_connect_is_refused() -> None:
    came, release = asyncio.Event(), asyncio.Event()

    class Hall(Thread[dict[str, Any]]):
        initial_state: Any = dict

        async def on_connect(self, connection: Any, request: Request) -> None:
            came.set()
            await release.wait()

    app = Plait(Hall, store=MemoryStore(), authenticate=lambda request: Principal("ada"))
    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        assert (await web.put("/threads/hall/one", json={})).status_code == 200
        asked = asyncio.create_task(web.get("/threads/hall/one/changes", headers={"accept": "text/event-stream"}))
        await came.wait()
        await app.disconnect("ada")
        release.set()
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize("during", ["on_connect", "storing"])
async def test_a_run_of_ag_ui_does_not_begin_if_rights_end_before(during: str) -> None:
    came, release, runs = asyncio.Event(), asyncio.Event(), list[str]()

    async def wait() -> None:
        came.set()
        await release.wait()

    class SlowStore(TroubledStore):
        async def store(self, write: Write) -> int:
            if during == "storing":
                await wait()
            return await super().store(write)

    class Hall(Thread[dict[str, Any]]):
        initial_state: Any = dict

        async def on_connect(self, connection: Any, request: Request) -> None:
            if during == "on_connect":
                await wait()

    app = Plait(Hall, store=SlowStore(), authenticate=lambda request: Principal("ada"), secret="x" * 32)

    @app.agent("say", thread=Hall)
    async def say(ctx: Context[Hall]) -> None:
        runs.append("said")

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        asked = asyncio.create_task(web.post("/ag-ui/say/one", json=RUN))
        await came.wait()
        assert await app.disconnect("ada") == (1 if during == "storing" else 0)
        release.set()
        answer = await asked
        assert answer.status_code == (200 if during == "storing" else 401)
        assert (await web.post("/ag-ui/say/one", json={**RUN, "runId": "second"})).status_code == 200
    assert runs == ["said"]


class Desk(NamedTuple):
    app: Plait
    address: str
    web: httpx.AsyncClient
    # Where the rpc and the agent `wait` do.
    gate: Entrance
    # What was begun.
    begun: list[str]


@asynccontextmanager
async def serving_desk(*, asks: bool = False, expires_in: float | None = None) -> AsyncIterator[Desk]:
    """Serve threads whose one user may expire; with `asks`, their `should_be_readonly` waits at the gate."""
    gate, begun = Entrance(), list[str]()

    class Table(Thread[dict[str, Any]]):
        initial_state: Any = dict

        async def should_be_readonly(self, connection: Any, request: Request) -> bool:
            if asks:
                await gate.enter()
            return False

        @rpc
        async def wait(self) -> None:
            await gate.enter()

        @rpc
        def touch(self) -> None:
            begun.append("rpc")

        @rpc(concurrent=True)
        def touch_beside(self) -> None:
            begun.append("concurrent rpc")

        def on_message(self, connection: Any, data: str | bytes) -> None:
            begun.append("message")

        def on_request(self, request: Request) -> Response:
            begun.append("on_request")
            return PlainTextResponse("answered")

        def on_error(self, error: BaseException, connection: Any) -> None:
            begun.append("on_error")

    def authenticate(request: Request) -> Principal:
        return Principal("ada", expires_at=None if expires_in is None else time.time() + expires_in)

    app = Plait(Table, store=MemoryStore(), authenticate=authenticate, secret="x" * 32)

    @app.agent("say", thread=Table)
    async def say(ctx: Context[Table]) -> None:
        begun.append("run")

    @app.agent("wait", thread=Table)
    async def wait(ctx: Context[Table]) -> None:
        await gate.enter()

    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        await begin(app, Table)
        yield Desk(app, address, web, gate, begun)


TABLE = "/threads/table/one"
LATE: dict[str, tuple[str, str, Any]] = {
    "put": ("PUT", TABLE, {"n": 1}),
    "rpc": ("POST", f"{TABLE}/rpc/touch", {}),
    "concurrent rpc": ("POST", f"{TABLE}/rpc/touch_beside", {}),
    "on_request": ("GET", f"{TABLE}/page", None),
    "run": ("POST", f"{TABLE}/run/say", None),
}


def check_refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")


@each_case("expires_in", [None, SOON])
@each_case("name", ["put", "rpc", "concurrent rpc", "run"])
async def test_no_request_is_carried_out_whose_rights_end_while_a_hook_is_asked(
    name: str, expires_in: float | None
) -> None:
    async with serving_desk(asks=True, expires_in=expires_in) as desk:
        method, path, body = LATE[name]
        desk.gate.opened.clear()
        asked = asyncio.create_task(desk.web.request(method, path, json=body))
        await desk.gate.until_waiting(1)
        if expires_in is None:
            await desk.app.disconnect("ada")
        else:  # It expires later than the first.
            await read_code(await websocket(f"ws://{desk.address}{TABLE}?_pk=a"))
        desk.gate.opened.set()
        check_refused(await asked)
        assert (await desk.web.get(TABLE)).json() == {}
        assert desk.begun == []


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", TABLE), ("POST", f"{TABLE}/interrupt")], ids=["destroy", "interrupt"]
)
async def test_no_thread_is_destroyed_or_interrupted_by_a_client_whose_rights_end_while_authorize_is_asked(
    method: str, path: str
) -> None:
    gate, began, ended = Entrance(), asyncio.Event(), asyncio.Event()

    class Table(Thread[dict[str, Any]]):
        initial_state: Any = dict

    async def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        await gate.enter()
        return True

    authenticate = lambda request: Principal("ada")  # noqa: E731
    app = Plait(Table, store=MemoryStore(), authenticate=authenticate, authorize=authorize, secret="x" * 32)

    @app.agent("wait", thread=Table)
    async def wait(ctx: Context[Table]) -> str:
        began.set()
        await ended.wait()
        return "said"

    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        await web.put(TABLE, json={"n": 1})
        run = asyncio.create_task(web.post(f"{TABLE}/run/wait"))
        await began.wait()
        gate.opened.clear()
        asked = asyncio.create_task(web.request(method, path))
        await gate.until_waiting(1)
        await app.disconnect("ada")
        gate.opened.set()
        check_refused(await asked)
        ended.set()
        assert "said" in (await run).text
        assert (await web.get(TABLE)).json() == {"n": 1}


@each_case("name", ["rpc", "on_request", "run"])
async def test_no_request_is_carried_out_whose_rights_end_while_it_waits_for_its_turn(name: str) -> None:
    async with serving_desk() as desk:
        method, path, body = LATE[name]
        first = await begin_waiting(desk, "run" if name == "run" else "rpc")
        asked = asyncio.create_task(desk.web.request(method, path, json=body))
        await until_queued(desk)
        await desk.app.disconnect("ada")
        desk.gate.opened.set()
        assert (await first).status_code == 200
        check_refused(await asked)
        assert desk.begun == []


@pytest.mark.parametrize("leaves", [False, True], ids=["stays", "leaves"])
async def test_no_message_is_carried_out_that_waits_for_its_turn_when_rights_end(leaves: bool) -> None:
    async with serving_desk() as desk:
        socket = await websocket(f"ws://{desk.address}{TABLE}?_pk=a")
        while "cf_agent_mcp_servers" not in str(await socket.recv()):
            pass
        first = await begin_waiting(desk, "rpc")
        await socket.send("hello")
        await until_queued(desk)
        if leaves:
            await socket.close()
        await desk.app.disconnect("ada")
        desk.gate.opened.set()
        assert await read_code(socket) == (1000 if leaves else 4401)
        assert (await first).status_code == 200
        assert (await desk.web.post(f"{TABLE}/rpc/touch")).status_code == 200
        assert desk.begun == ["rpc"]


async def begin_waiting(desk: Desk, what: str) -> asyncio.Task[httpx.Response]:
    """Begin an rpc or a run that ends when the gate is opened, and for which others wait."""
    desk.gate.opened.clear()
    first = asyncio.create_task(desk.web.post(f"{TABLE}/{what}/wait"))
    await desk.gate.until_waiting(1)
    return first


async def until_queued(desk: Desk) -> None:
    """Wait until a turn or a run waits for another one."""
    actor = await desk.app._node.actor(ThreadKey("table", "one"))
    await until(lambda: bool(actor.turns.mailbox.length or _QUEUE.of(actor)._waiting))


async def test_a_client_is_disconnected_by_the_id_of_its_connection(served: Served) -> None:
    one, other = await join(served, "cloudflare", "ada"), await join(served, "native", "ada")
    (id, _) = (each.id for each in (await served.app._node.actor(ThreadKey("room", "one"))).thread.connections())
    assert await served.app.disconnect(connection_id=id) == 1
    assert await read_code(one) == 4401
    await other.close()


async def test_joins_that_are_authenticated_during_a_disconnection_are_closed(served: Served) -> None:
    served.entrance.opened.clear()
    joining = [asyncio.create_task(SOCKETS[name](served.address, "ada")) for name in SOCKETS for _ in range(50)]
    streams = [
        asyncio.create_task(
            served.web.request(each.method, each.path, json=each.body, headers=make_headers("ada", name))
        )
        for name, each in STREAMS.items()
        if name != "ag-ui viewer"
    ]
    written = asyncio.create_task(served.web.put(ROOM, json={"n": 1}, headers=make_headers("ada")))
    await served.entrance.until_waiting(len(joining) + len(streams) + 1)
    assert await served.app.disconnect("ada") == 0
    served.entrance.opened.set()
    codes = [await read_code(await each) for each in joining]
    assert codes.count(4401) == 100
    async with asyncio.timeout(TIMEOUT):
        assert {each.status_code for each in await asyncio.gather(*streams)} == {401}
        assert (await written).status_code == 401
    assert served.app._context.leases._disconnected == {}
    assert not served.app._context.leases._open


@pytest.mark.local
async def test_disconnect_takes_the_id_of_a_user_or_of_a_connection(served: Served) -> None:
    for user, connection_id in ((None, None), ("ada", "a"), (Principal("ada"), None)):
        with pytest.raises(TypeError, match="the id of a user or a connection_id"):
            await served.app.disconnect(user, connection_id=connection_id)  # type: ignore[arg-type]
