"""Threads over server-sent events: the events of a reader, its resume point, and the end of the stream."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from tests.cases import each_case
from tests.integration.native_client import joined, put
from tests.integration.socket_client import TIMEOUT, bare_socket, http
from tests.integration.test_http import error_of
from tests.running import Process, begin, running

from plait import Connection, Limits, MemoryStore, Plait, Principal, Reject, Retention, Thread, rpc

pytestmark = pytest.mark.relayed

PATH = "/threads/page/one"
STREAM = {"Accept": "text/event-stream"}


class Page(Thread[dict[str, Any]]):
    """Has any object for its state, keeps little of its log, and tells who is connected."""

    initial_state = {"n": 0}  # noqa: RUF012
    retention = Retention(changes=3)

    def __init__(self) -> None:
        self._codes: list[int] = []

    def on_connect(self, connection: Connection, request: Request) -> None:
        if "refused" in request.query_params:
            raise Reject("nobody comes in")

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._codes.append(code)

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(f"{request.method} {request.url.path}")

    @rpc
    def set(self, n: Any) -> int:
        self.set_state({"n": n})
        return self.version

    @rpc
    def connected(self) -> list[list[Any]]:
        return [[connection.id, connection.readonly] for connection in self.connections()]

    @rpc
    def closed(self) -> list[int]:
        return self._codes

    @rpc
    def tell(self) -> None:
        self.broadcast({"hello": "all"})
        self.emit("goal", {"by": "Ada"})
        self.broadcast(b"binary")


app = Plait(Page)


class Reader:
    """Reads one stream of events, as an EventSource does: `id` is that of the last event."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.id = ""
        self._lines = answer.aiter_lines()

    async def next(self) -> Any:
        """Return the next frame, None when the stream has ended."""
        data: list[str] = []
        async with asyncio.timeout(TIMEOUT):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "id":
                    self.id = value
                elif field == "data":
                    data.append(value)
                elif not line and data:
                    return json.loads("\n".join(data))
        assert not data
        return None

    async def rest(self) -> list[Any]:
        """Return the data up to the end."""
        found: list[Any] = []
        while (frame := await self.next()) is not None:
            found.append(frame)
        return found


@asynccontextmanager
async def reading(web: httpx.AsyncClient, path: str = PATH, *, after: str = "", **params: str) -> AsyncIterator[Reader]:
    """Open a stream of a thread that continues after an event."""
    headers = STREAM | ({"Last-Event-ID": after} if after else {})
    async with web.stream("GET", f"{path}/changes", params=params, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Reader(answer)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve pages that keep nothing, unless a store is given."""
    app = Plait(Page, **{"store": MemoryStore(), **settings})
    async with running(app) as address, http(address) as web:
        await begin(app, Page)
        yield web


@pytest.fixture
async def web() -> AsyncIterator[httpx.AsyncClient]:
    async with serving() as web:
        yield web


async def call(web: httpx.AsyncClient, method: str, *args: Any) -> Any:
    answer = await web.post(f"{PATH}/rpc/{method}", json={"args": args})
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


async def until_connected(web: httpx.AsyncClient, count: int) -> None:
    """Wait until this many clients are connected to the thread."""
    async with asyncio.timeout(TIMEOUT):
        while len(await call(web, "connected")) != count:
            pass


# Telling


async def test_the_stream_begins_with_the_state_and_goes_on_with_changes(web: httpx.AsyncClient) -> None:
    await call(web, "set", 1)
    async with reading(web) as reader:
        assert reader.answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert reader.answer.headers["cache-control"] == "no-store"
        first = await reader.next()
        epoch = first["epoch"]
        assert (first["type"], first["thread"], first["version"]) == ("joined", "page/one", 1)
        assert (first["state"], first["readonly"]) == ({"n": 1}, True)
        assert reader.id == f"{epoch}:1"
        await web.put(PATH, json={"n": 2})
        change = await reader.next()
        assert (change["type"], change["version"], change["ops"]) == ("change", 2, [put("/n", 2)])
        assert change["source"].startswith("http-")
        assert reader.id == f"{epoch}:2"
        async with joined(web.base_url.netloc.decode(), PATH, "a") as client:
            await client.push(put("/n", 3))
            assert (await reader.next())["ops"] == [put("/n", 3)]
            assert reader.id == f"{epoch}:3"


async def test_messages_and_events_come_too_and_keep_the_version(web: httpx.AsyncClient) -> None:
    async with reading(web) as reader:
        epoch = (await reader.next())["epoch"]
        await call(web, "set", 1)
        await call(web, "tell")
        await call(web, "set", 2)
        assert (await reader.next())["version"] == 1
        assert await reader.next() == {"type": "message", "data": {"hello": "all"}}
        assert await reader.next() == {"type": "event", "name": "goal", "data": {"by": "Ada"}}
        assert reader.id == f"{epoch}:1"
        assert (await reader.next())["version"] == 2


async def test_a_state_that_was_set_in_several_lines_is_one_event(web: httpx.AsyncClient) -> None:
    await web.put(PATH, content=b'{\r\n  "n": 1,\n  "text": "a\\nb"\r}')
    async with reading(web) as reader:
        assert (await reader.next())["state"] == {"n": 1, "text": "a\nb"}
        await web.put(PATH, content=b'{\n  "n":\n[\r\n1,\n2]}')
        assert (await reader.next())["version"] == 2


async def test_a_reader_is_a_readonly_connection_until_it_goes(web: httpx.AsyncClient) -> None:
    async with reading(web) as reader:
        assert await call(web, "connected") == [[(await reader.next())["connection"], True]]
        async with reading(web) as other:
            await other.next()
            assert len(await call(web, "connected")) == 2
        await until_connected(web, 1)
        await call(web, "set", 1)
        assert (await reader.next())["version"] == 1
    await until_connected(web, 0)
    assert len(await call(web, "closed")) == 2


async def test_a_reader_that_did_not_read_and_goes_is_gone_from_the_thread(web: httpx.AsyncClient) -> None:
    loop = asyncio.get_running_loop()
    with bare_socket(web.base_url.netloc.decode(), receive_buffer=4096) as bare:
        await loop.sock_sendall(
            bare, f"GET {PATH}/changes HTTP/1.1\r\nHost: localhost\r\nAccept: {STREAM['Accept']}\r\n\r\n".encode()
        )
        await until_connected(web, 1)
        for letter in "abcdefgh":
            await call(web, "set", letter * 900_000)
        assert len(await call(web, "connected")) == 1
    await until_connected(web, 0)


async def test_a_reader_that_a_hook_refuses_is_told_and_not_connected(web: httpx.AsyncClient) -> None:
    answer = await web.get(f"{PATH}/changes?refused", headers=STREAM)
    assert error_of(answer) == (409, "rejected")
    assert await call(web, "connected") == []


# Going on


@pytest.mark.parametrize("where", ["header", "parameter", "both"])
async def test_who_comes_back_after_a_restart_is_told_what_it_missed(tmp_path: Path, where: str) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    async with serving(store=store) as web:
        async with reading(web) as reader:
            await reader.next()
            epoch, id = reader.id.partition(":")[0], reader.id
        for n in (1, 2):
            await call(web, "set", n)
    async with serving(store=store) as web:
        # An EventSource reconnects to the same URL, and sends its current position in the header.
        options: Any = {
            "header": {"after": id},
            "parameter": {"since": id},
            "both": {"after": id, "since": f"{epoch}:2"},
        }
        async with reading(web, **options[where]) as reader:
            frame = await reader.next()
            assert (frame["ops"], "state" in frame) == ([put("/n", 1), put("/n", 2)], False)
            assert reader.id == f"{epoch}:2"
        async with reading(web, after=f"{epoch}:2") as reader:
            frame = await reader.next()
            assert (frame["version"], "state" in frame, "ops" in frame) == (2, False, False)
            await call(web, "set", 3)
            assert (await reader.next())["ops"] == [put("/n", 3)]


async def test_who_was_away_too_long_or_has_what_is_not_there_is_told_the_state(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    async with serving(store=store) as web:
        for letter in "abcdefg":
            await call(web, "set", letter * 5000)
        epoch = (await web.get(PATH)).headers["etag"].strip('"').partition(":")[0]
    async with serving(store=store) as web:
        assert error_of(await web.get(f"{PATH}/changes?since={epoch}:1")) == (404, "not_found")
        for after in (f"{epoch}:1", f"{epoch}:8", "other:7"):
            async with reading(web, after=after) as reader:
                frame = await reader.next()
                assert (frame["version"], frame.get("state")) == (7, {"n": "g" * 5000}), after
                assert reader.id == f"{epoch}:7"


@each_case("id", ["nonsense", "epoch:x", ":1", "epoch:-1"])
async def test_an_id_that_is_none_is_422(web: httpx.AsyncClient, id: str) -> None:
    for name, options in (
        ("Last-Event-ID", {"headers": {**STREAM, "Last-Event-ID": id}}),
        ("since", {"headers": STREAM, "params": {"since": id}}),
    ):
        answer = await web.get(f"{PATH}/changes", **options)  # type: ignore[arg-type]
        assert error_of(answer) == (422, "invalid_arguments")
        error = answer.json()["error"]
        assert (error["message"], error["path"]) == (
            f"{name}={id}: must be epoch:version, as sent by the server",
            f"/{name}",
        )
    assert await call(web, "connected") == []


async def test_what_was_forgotten_in_memory_is_read_from_the_store(tmp_path: Path) -> None:
    app = Plait(Page, store=f"sqlite:///{tmp_path}/plait.db")
    async with running(app) as address, http(address) as web:
        await begin(app, Page)
        async with reading(web) as reader:
            await reader.next()
            for n in (1, 2):
                await call(web, "set", n)
                await reader.next()
            (actor,) = app._node.actors
            history = actor.state.history
            assert history.since(0, 2) is not None
            id = reader.id.replace(":2", ":0")
        async with asyncio.timeout(TIMEOUT):
            while history.since(0, 2) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with reading(web, after=id) as reader:
            assert (await reader.next())["ops"] == [put("/n", 1), put("/n", 2)]
        async with joined(address, PATH, "a") as client:
            assert client.frames[0]["state"] == {"n": 2}
        assert app._node.actors == [actor]


# Ending


async def test_a_server_that_ends_ends_its_streams_as_it_does_sockets() -> None:
    async with AsyncExitStack() as stack:
        async with serving() as web:
            address = web.base_url.netloc.decode()
            outside = await stack.enter_async_context(http(address))
            client = await stack.enter_async_context(joined(address, PATH, "a"))
            reader = await stack.enter_async_context(reading(outside))
            await call(web, "set", 1)
        assert await client.until_closed() == 1001
        assert [frame["type"] for frame in await reader.rest()] == ["joined", "change"]


async def test_a_stream_that_is_opened_when_the_server_is_ending_is_refused() -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    async def authenticate(request: Request) -> Principal:
        if "slowly" in request.query_params:
            entered.set()
            await gate.wait()
        return Principal("ada")

    served = Plait(Page, store=MemoryStore(), authenticate=authenticate)
    async with running(served) as address, http(address) as web:
        await call(web, "set", 1)
        opening = asyncio.create_task(web.get(f"{PATH}/changes?slowly", headers=STREAM))
        await entered.wait()
        served.drain()
        await served._node.drain(0)
        gate.set()
        assert error_of(await opening) == (503, "unavailable")


@pytest.mark.local
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_has_nothing_but_streams_ends_at_once(tmp_path: Path, by: signal.Signals) -> None:
    with Process("tests.integration.test_event_stream:app", cwd=tmp_path) as server:
        async with http(server.address) as web:
            await call(web, "set", 1)
        async with http(server.address) as web, reading(web) as reader:
            await call(web, "set", 2)
            server.signal(by)
            async with asyncio.timeout(9):  # Less than the 10 s of shutdown_timeout.
                assert [frame["type"] for frame in await reader.rest()] == ["joined", "change"]
        assert await asyncio.to_thread(server.wait) == 0
        assert "Traceback" not in server.log.read_text()
        server.start()
        async with http(server.address) as web, reading(web, after=reader.id) as reader:
            assert "state" not in await reader.next()


async def test_a_stream_ends_when_the_token_of_its_reader_expires() -> None:
    def authenticate(request: Request) -> Principal | None:
        return Principal("ada", {}, time.time() + float(request.query_params.get("seconds", "600")))

    async with serving(authenticate=authenticate) as web:
        async with reading(web) as other, reading(web, seconds="0.2") as reader:
            assert (await reader.next())["type"] == "joined"
            assert await reader.rest() == []
            await until_connected(web, 1)
            await other.next()
            await call(web, "set", 1)
            assert (await other.next())["version"] == 1
        await until_connected(web, 0)
        assert (await call(web, "closed"))[0] == 4401


# Who may


async def test_more_readers_than_a_thread_may_have_connections_are_refused() -> None:
    async with serving(limits=Limits(connections_per_thread=2)) as web:
        async with reading(web), joined(web.base_url.netloc.decode(), PATH, "a"):
            await until_connected(web, 2)
            assert error_of(await web.get(f"{PATH}/changes", headers=STREAM)) == (429, "rate_limited")
            assert (await web.get(f"{PATH}/changes")).status_code == 200
        await until_connected(web, 0)
        async with reading(web) as reader:
            assert (await reader.next())["type"] == "joined"


async def test_a_stream_counts_among_the_sockets_of_its_address_while_it_is_read() -> None:
    async with serving(limits=Limits(connections_per_address=1)) as web:
        for _ in range(2):
            assert (await web.get(f"{PATH}/changes?refused", headers=STREAM)).status_code == 409
            async with reading(web):
                assert error_of(await web.get(f"{PATH}/changes", headers=STREAM)) == (429, "rate_limited")
            await until_connected(web, 0)


@pytest.mark.local
async def test_a_reader_that_is_gone_before_the_first_byte_does_not_stay_connected() -> None:
    async with Plait(Page, store=MemoryStore()) as served:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "GET",
            "path": f"{PATH}/changes",
            "raw_path": f"{PATH}/changes".encode(),
            "query_string": b"",
            "headers": [(b"accept", b"text/event-stream")],
        }
        begun = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal begun
            begun += message["type"] == "http.response.start"
            raise OSError("the reader has gone")

        with suppress(ClientDisconnect, OSError):
            await served(scope, receive, send)
        assert begun == 1
        assert await served.thread(Page, "one").call(Page.connected) == []


async def test_who_is_nobody_is_refused() -> None:
    async with serving(authenticate=lambda request: None) as web:
        assert error_of(await web.get(f"{PATH}/changes", headers=STREAM)) == (401, "unauthenticated")


# Other requests


async def test_who_does_not_ask_for_events_gets_json(web: httpx.AsyncClient) -> None:
    for accept in ("*/*", "application/json", "text/html"):
        answer = await web.get(f"{PATH}/changes", headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["changes"] == []
    many = {"Accept": "application/json;q=0.5, text/event-stream"}
    async with web.stream("GET", f"{PATH}/changes", headers=many) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")


async def test_head_is_get_without_the_body_and_opens_no_stream(web: httpx.AsyncClient) -> None:
    for headers in ({}, STREAM):
        answer = await web.head(f"{PATH}/changes", headers=headers)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == "application/json"
    assert await call(web, "connected") == []


async def test_the_log_is_found_with_empty_segments_in_its_path(web: httpx.AsyncClient) -> None:
    answer = await web.get(f"{PATH}/changes")
    for path in ("/changes/", "//changes"):
        assert (await web.get(f"{PATH}{path}")).json() == answer.json()


@each_case(("method", "path"), [("POST", "/changes"), ("PUT", "/changes"), ("GET", "/changes/more")])
async def test_other_requests_and_paths_reach_on_request(web: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await web.request(method, f"{PATH}{path}", headers=STREAM)
    assert (answer.status_code, answer.text) == (200, f"{method} {PATH}{path}")
