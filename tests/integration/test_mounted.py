"""Plait in another app, and under other servers than its own, serves the same threads in the same way."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from tests.integration.socket_client import TIMEOUT, CallError, bare_socket, connected, http, opened
from tests.running import running

from plait import Connection, Limits, Plait, Principal, Reject, Source, Thread, ThreadKey, rpc
from plait.web.sockets.handshake import Handshake
from plait_client import Closed, connect

REJECTED = "State update rejected"
SERVERS = ("websockets-sansio", "plait", "hypercorn")
# From Python 3.12 on, hypercorn 0.18 waits until its clients have gone, as asyncio's Server.wait_closed does.
ENDING = SERVERS if sys.version_info < (3, 12) else SERVERS[:-1]


class Room(Thread[Any]):
    """Has a state that may not be negative."""

    initial_state = {"n": 0}  # noqa: RUF012

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if next_state["n"] < 0:
            raise Reject("negative", path="/n")

    def on_connect(self, connection: Connection, request: Request) -> None:
        if "kick" in request.query_params:
            connection.send("goodbye")
            connection.close(4321, "kicked")

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        connection.send(data)

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.broadcast({"closed": code})

    def on_request(self, request: Request) -> Response:
        return JSONResponse({"path": request.url.path, "method": request.method})

    @rpc
    def add(self, n: int = 1) -> int:
        self.set_state(lambda state: {"n": state["n"] + n})
        after: int = self.state["n"]
        return after

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            yield n

    @rpc
    def everybody(self) -> int:
        return len(self.connections())


def build(folder: Path, *, with_lifespan: bool = True, **settings: Any) -> FastAPI:
    """Return an app with a route of its own, and plait below `/live`."""
    plait = Plait(Room, **{"store": f"sqlite:///{folder}/plait.db", "limits": Limits(frame=2000), **settings})
    app = FastAPI(lifespan=plait.lifespan if with_lifespan else None)
    app.mount("/live", plait)

    @app.get("/own")
    async def own() -> dict[str, str]:
        return {"own": "route"}

    return app


@asynccontextmanager
async def serving(server: str, app: Any) -> AsyncIterator[str]:
    """Serve an app under one of SERVERS."""
    if server == "hypercorn":
        async with under_hypercorn(app) as address:
            yield address
    else:
        async with running(app, ws=Handshake if server == "plait" else server) as address:
            yield address


@asynccontextmanager
async def under_hypercorn(app: Any) -> AsyncIterator[str]:
    """Serve an app under hypercorn in this process."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.errorlog = None
    config.accesslog = None
    config.graceful_timeout = 1
    sockets = config.create_sockets()
    (bound,) = sockets.insecure_sockets
    bound.listen()
    config.create_sockets = lambda: sockets  # type: ignore[method-assign]
    end = asyncio.Event()
    task = asyncio.create_task(serve(app, config, shutdown_trigger=end.wait))
    address = f"127.0.0.1:{bound.getsockname()[1]}"
    try:
        yield address
    finally:
        end.set()
        await task


@pytest.fixture(params=SERVERS)
async def address(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with serving(request.param, build(tmp_path)) as address:
        yield address


@pytest.mark.parametrize("base", ["/live/threads/room", "/live/agents/room"])
async def test_states_go_both_ways(address: str, base: str) -> None:
    async with connected(address, f"{base}/a%2Fb%20c") as first, connected(address, f"{base}/a%2Fb%20c") as second:
        await first.until(lambda first: len(first.frames) == 3)
        assert [frame["type"] for frame in first.frames] == [
            "cf_agent_identity",
            "cf_agent_state",
            "cf_agent_mcp_servers",
        ]
        assert first.frames[0]["name"] == "a/b c"
        await first.push({"n": 1})
        await second.until_state({"n": 1})
        assert await second.call("add") == 2
        for client in (first, second):
            await client.until_state({"n": 2})
    async with connected(address, f"{base}/a%2Fb%20c") as third:
        await third.until_state({"n": 2})


async def test_calls_streams_messages_and_refusals_work(address: str) -> None:
    async with connected(address, "/live/threads/room/one") as client:
        assert await client.call("count", 3) == [0, 1, 2, None]
        with pytest.raises(CallError, match="Expected `int`"):
            await client.call("add", "x")
        await client.push({"n": -1})
        await client.until(lambda client: len(client.states) == 2)
        assert (client.refusals, client.state) == ([REJECTED], {"n": 0})
        for data in ("text", "世界", b"\x00\xff", ""):
            await client.send(data)
        await client.until(lambda client: len(client.messages) == 4)
        assert client.messages == ["text", "世界", b"\x00\xff", ""]


async def test_close_codes_come_through(address: str, request: pytest.FixtureRequest) -> None:
    for path, code in (
        ("/live/threads/nothing/one", 4404),
        ("/live/threads/room", 4404),
        ("/live/threads/room/one?kick=1", 4321),
    ):
        async with connected(address, path) as client:
            assert await client.until_closed() == code
    assert client.messages == ["goodbye"]
    async with connected(address, "/live/threads/room/one", origin="https://foe.example") as client:
        assert await client.until_closed() == 4403
    async with connected(address, "/live/threads/room/one") as other:
        async with connected(address, "/live/threads/room/one") as client:
            await client.send("x" * 3000)
            assert await client.until_closed() == 1009
        async with connected(address, "/live/threads/room/one") as client:
            await client.socket.close(4001, "bye")
        # Hypercorn does not tell which code a client closed with.
        code = 1006 if "hypercorn" in request.node.name else 4001
        await other.until(lambda other: f'{{"closed":{code}}}' in other.messages)
        assert await other.call("everybody") == 1


async def test_a_peer_that_vanishes_is_taken_out(address: str) -> None:
    async with connected(address, "/live/threads/room/one") as other:
        async with connected(address, "/live/threads/room/one") as client:
            client.socket.transport.abort()
        await other.until(lambda other: any("closed" in str(each) for each in other.messages))
        assert await other.call("everybody") == 1


async def test_many_calls_at_once_are_answered_in_order(address: str) -> None:
    async with connected(address, "/live/threads/room/one") as client:
        answers = [await client.begin("add") for _ in range(200)]
        assert await asyncio.wait_for(asyncio.gather(*answers), TIMEOUT) == [*range(1, 201)]
        await client.until_state({"n": 200})
        # States are held while pings are not answered, and the last one comes then.
        numbers = [state["n"] for state in client.states]
        assert numbers == sorted(set(numbers))
        assert numbers[:40] == [*range(40)]


async def test_http_works_below_the_mount(address: str) -> None:
    async with http(address) as web:
        assert (await web.get("/own")).json() == {"own": "route"}
        for path in ("/live/healthz", "/live/readyz"):
            answer = await web.get(path)
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        assert (await web.get("/live/plait/client.js")).headers["content-type"].startswith("text/javascript")
        assert (await web.get("/healthz")).status_code == 404
        assert (await web.put("/live/threads/room/a%2Fb%20c", json={"n": 0})).json()["version"] == 0
        answer = await web.get("/live/threads/room/a%2Fb%20c")
        assert (answer.status_code, answer.json()) == (200, {"n": 0})
        answer = await web.put(
            "/live/threads/room/a%2Fb%20c", json={"n": 3}, headers={"If-Match": answer.headers["etag"]}
        )
        assert answer.json()["version"] == 1
        answer = await web.post("/live/threads/room/a%2Fb%20c/rpc/add", json={"args": [2]})
        assert answer.json() == {"result": 5}
        answer = await web.post("/live/threads/room/a%2Fb%20c/rpc/count", json={"args": [2]})
        assert answer.text == '{"chunk":0}\n{"chunk":1}\n{"end":null}\n'
        answer = await web.get("/live/threads/room/one/own/page")
        assert answer.json() == {"path": "/live/threads/room/one/own/page", "method": "GET"}
        answer = await web.get("/live/threads/nothing/one")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("server", SERVERS)
async def test_authenticate_may_answer_by_itself(server: str, tmp_path: Path) -> None:
    def authenticate(request: Request) -> Response | Principal:
        if request.headers.get("authorization") == "Bearer ada":
            return Principal("ada")
        return Response("who are you?", 401, headers={"WWW-Authenticate": "Bearer"})

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return principal is not None and thread.name == principal.id

    app = build(tmp_path, authenticate=authenticate, authorize=authorize)
    headers = {"Authorization": "Bearer ada"}
    async with serving(server, app) as address, http(address) as web:
        answer = await web.get("/live/threads/room/ada")
        assert (answer.status_code, answer.text) == (401, "who are you?")
        assert answer.headers["www-authenticate"] == "Bearer"
        async with connected(address, "/live/threads/room/ada") as client:
            assert await client.until_closed() == 4401
        async with connected(address, "/live/threads/room/ada", headers=headers) as client:
            assert await client.call("add") == 1
        async with connected(address, "/live/threads/room/bob", headers=headers) as client:
            assert await client.until_closed() == 4403


@pytest.mark.parametrize("server", ENDING)
async def test_the_end_of_the_server_closes_the_sockets_and_keeps_what_was_said(server: str, tmp_path: Path) -> None:
    async with serving(server, build(tmp_path)) as address:
        client = await opened(address, "/live/threads/room/one")
        assert await client.call("add") == 1
    # Other servers close the sockets themselves, before the app is told.
    assert await client.until_closed() == {"plait": 1001, "websockets-sansio": 1012, "hypercorn": 1011}[server]
    async with serving(server, build(tmp_path)) as address, connected(address, "/live/threads/room/one") as client:
        await client.until_state({"n": 1})


@pytest.mark.parametrize("server", SERVERS)
async def test_without_its_lifespan_it_says_what_to_do(server: str, tmp_path: Path) -> None:
    async with serving(server, build(tmp_path, with_lifespan=False)) as address, http(address) as web:
        answer = await web.get("/live/threads/room/one")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "unavailable")
        assert "lifespan" in error["message"]
        assert (await web.get("/live/readyz")).status_code == 503
        async with connected(address, "/live/threads/room/one") as client:
            assert await client.until_closed() == 1013
            assert "not running" in (client.socket.close_reason or "")


async def test_other_websockets_of_the_app_work_under_the_servers_own_implementation(tmp_path: Path) -> None:
    app = build(tmp_path)

    @app.websocket("/own")
    async def own(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("own")
        await socket.close()

    async with serving("websockets-sansio", app) as address, connected(address, "/own") as client:
        await client.until_closed()
        assert client.received == ["own"]


async def test_other_websockets_of_the_app_are_refused_where_plait_takes_them_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = build(tmp_path)

    @app.websocket("/own")
    async def own(socket: WebSocket) -> None:
        await socket.accept()

    async with serving("plait", app) as address:
        with bare_socket(address) as bare:
            loop = asyncio.get_running_loop()
            opening = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            await loop.sock_sendall(bare, f"GET /own HTTP/1.1\r\nHost: x\r\n{opening}{key}\r\n".encode())
            async with asyncio.timeout(TIMEOUT):
                assert (await loop.sock_recv(bare, 65536)).startswith(b"HTTP/1.1 500 ")
        async with connected(address, "/live/threads/room/one") as client:
            assert await client.call("add") == 1
    assert "run it under uvicorn's own WebSocket implementation" in caplog.text


async def test_the_answer_to_a_refused_opening_request_is_known_as_that_of_plait(tmp_path: Path) -> None:
    async with running(FastAPI(), ws=Handshake) as address:
        with pytest.raises(Closed) as caught:
            async with connect(f"ws://{address}/threads/room/a"):
                pass
    assert caught.value.code == 4403


async def test_mounted_twice_below_two_paths_it_is_two_apps(tmp_path: Path) -> None:
    left = Plait(Room, store=f"sqlite:///{tmp_path}/left.db")
    right = Plait(Room, store=f"sqlite:///{tmp_path}/right.db")

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        async with left, right:
            yield

    app = Starlette(routes=[Mount("/left", left), Mount("/right", right)], lifespan=lifespan)
    async with running(app) as address, connected(address, "/left/threads/room/one") as client:
        assert await client.call("add") == 1
        async with http(address) as web:
            assert (await web.get("/left/threads/room/one")).json() == {"n": 1}
            assert (await web.get("/right/threads/room/one")).status_code == 404


async def test_it_answers_without_a_server() -> None:
    async with (
        Plait(Room, store="memory://") as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as web,
    ):
        assert (await web.put("/threads/room/one", json={"n": 3})).json()["version"] == 1
        assert (await web.get("/threads/room/one")).json() == {"n": 3}


@pytest.mark.parametrize("path", ["/state", "/user", "/kv", "/live/threads/room/one"])
def test_a_second_test_client_with_a_loop_of_its_own_gets_an_error(path: str) -> None:
    app = Plait(Room, store="memory://")
    api = FastAPI(lifespan=app.lifespan)

    @api.get("/state")
    async def read_state() -> int:
        await app.thread(Room, "one").set_state({"n": 1})
        return 1

    @api.get("/user")
    async def read_user() -> int:
        return await app.user("ada").update("visits", lambda count: count + 1, 0)

    @api.get("/kv")
    async def read_kv() -> bool:
        return (await app.kv.get("names", "ada")).exists

    api.mount("/live", app)
    with TestClient(api, base_url="http://localhost") as first:
        assert first.get(path).status_code in (200, 404)
        with pytest.raises(RuntimeError, match=r"^this app runs in another event loop"):
            TestClient(api, base_url="http://localhost").get(path)
