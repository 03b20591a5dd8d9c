"""Threads over HTTP: states, rpcs, answers of authors, and errors of one shape."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.cases import each_case
from tests.integration.socket_client import TIMEOUT, bare_socket, connected, http
from tests.running import begin, running
from tests.told import INTERNAL

from plait import (
    Connection,
    Limits,
    MemoryStore,
    Plait,
    Principal,
    Reject,
    Source,
    SqliteStore,
    Stream,
    Thread,
    ThreadKey,
    current,
    rpc,
)
from plait_client import Closed, connect

pytestmark = pytest.mark.relayed

FRIEND = "https://friend.example"
# Chunks of 10 kB that are more than the buffers on the way take.
POURED = 3_000


class Game(msgspec.Struct, frozen=True):
    """A state with a type."""

    players: tuple[str, ...] = ()
    score: int = 0


class GameRoom(Thread[Game]):
    """Has an rpc of each sort."""

    initial_state = Game()

    def validate_state_change(self, next_state: Game, source: Source) -> None:
        if next_state.score < 0:
            raise Reject("score cannot be negative", path="/score")

    def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        return "readonly" in request.query_params

    async def on_request(self, request: Request) -> Response:
        if request.url.path.endswith("/wrong"):
            return "not a response"  # type: ignore[return-value]
        if status := request.query_params.get("raise"):
            raise HTTPException(int(status), "no such book", headers={"X-Shelf": "7"})
        body = (await request.body()).decode()
        principal = request.state.principal
        who = None if principal is None else principal.id
        return JSONResponse({"method": request.method, "path": request.url.path, "body": body, "who": who}, 201)

    @rpc
    def add_player(self, name: str, *, score: int = 0) -> int:
        self.set_state(lambda game: Game((*game.players, name), game.score + score))
        return len(self.state.players)

    @rpc(name="whoAmI")
    def who_am_i(self) -> list[str | None]:
        found = current()
        assert found.connection is not None
        assert found.request is not None
        principal = found.connection.principal
        return [None if principal is None else principal.id, found.request.method]

    @rpc(name="große Namen/list")
    def list_names(self) -> int:
        return len(self.state.players)

    @rpc
    def nothing(self) -> None:
        pass

    @rpc
    def fail(self) -> None:
        raise ValueError("that went wrong")

    @rpc
    def give_up(self) -> None:
        class GaveUp(BaseException):
            pass

        raise GaveUp("that is no Exception")

    @rpc
    def refuse(self) -> None:
        raise Reject("not now", path="/when")

    @rpc
    def not_json(self) -> Any:
        return object()

    @rpc
    def deep(self) -> Any:
        return json.loads("[" * 500 + "]" * 500)

    @rpc
    async def pour(self) -> AsyncIterator[str]:
        self.poured = 0
        for _ in range(POURED):
            yield "x" * 10_000
            self.poured += 1

    @rpc
    def how_much(self) -> int:
        return self.poured

    @rpc
    async def pour_by_hand(self, stream: Stream) -> None:
        while True:
            stream.send("x" * 10_000)
            await asyncio.sleep(0)

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            self.set_state(Game(score=n))
            yield n
        if to == 3:
            raise ValueError("no more")


class Empty(Thread[Any]):
    """Has no state until one is set."""


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = Plait(GameRoom, Empty, store=f"sqlite:///{tmp_path}/plait.db", allowed_origins=[FRIEND])
    async with running(app) as address, http(address) as web:
        # Begin a thread, with its initial state.
        assert (await web.put("/threads/game-room/one", json={})).json()["version"] == 0
        yield web


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the code of an error, which must have the shape that all have."""
    body = answer.json()
    assert set(body) == {"error"}
    assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "path"}
    assert all(isinstance(value, str) for value in body["error"].values())
    assert body["error"]["message"]
    return answer.status_code, body["error"]["code"]


# State


async def test_get_returns_the_state_and_its_version_as_etag(web: httpx.AsyncClient) -> None:
    answer = await web.get("/threads/game-room/one")
    assert (answer.status_code, answer.json()) == (200, {"players": [], "score": 0})
    assert answer.headers["content-type"] == "application/json"
    epoch, _, version = answer.headers["etag"].strip('"').partition(":")
    assert epoch
    assert version == "0"
    assert answer.headers["etag"] == f'"{epoch}:0"'
    assert (await web.get("/agents/game-room/one")).headers["etag"] == answer.headers["etag"]


async def test_a_state_that_the_client_has_is_304(web: httpx.AsyncClient) -> None:
    tag = (await web.get("/threads/game-room/one")).headers["etag"]
    for header in (tag, f'"other:1", {tag}', f"W/{tag}", "*"):
        answer = await web.get("/threads/game-room/one", headers={"If-None-Match": header})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    await web.post("/threads/game-room/one/rpc/add_player", json={"args": ["Ada"]})
    answer = await web.get("/threads/game-room/one", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.json()["players"]) == (200, ["Ada"])


async def test_head_is_get_without_the_body(web: httpx.AsyncClient) -> None:
    answer = await web.get("/threads/game-room/one")
    head = await web.head("/threads/game-room/one")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-length", "content-type"):
        assert head.headers[name] == answer.headers[name]


async def test_put_sets_the_state_and_shows_it_to_the_sockets(web: httpx.AsyncClient) -> None:
    async with connected(web.base_url.netloc.decode(), "/threads/game-room/one") as client:
        answer = await web.put("/threads/game-room/one", json={"score": 3})
        assert answer.status_code == 200
        assert answer.headers["etag"] == f'"{answer.json()["epoch"]}:{answer.json()["version"]}"'
        await client.until_state({"players": [], "score": 3})
    assert (await web.get("/threads/game-room/one")).headers["etag"] == answer.headers["etag"]


async def test_put_of_what_is_there_makes_no_version(web: httpx.AsyncClient) -> None:
    answers = [await web.put("/threads/game-room/one", json={"score": 3}) for _ in range(2)]
    assert [answer.json()["version"] for answer in answers] == [1, 1]


async def test_if_match_lets_only_one_of_two_writers_through(web: httpx.AsyncClient) -> None:
    tag = (await web.get("/threads/game-room/one")).headers["etag"]
    first, second = await asyncio.gather(
        *(web.put("/threads/game-room/one", json={"score": n}, headers={"If-Match": tag}) for n in (1, 2))
    )
    lost, won = sorted((first, second), key=lambda answer: answer.is_success)
    assert won.json()["version"] == 1
    assert error_of(lost) == (412, "conflict")
    for header, status in (("*", 200), (won.headers["etag"], 412), ('"nonsense"', 412), (f"{tag}", 412)):
        answer = await web.put("/threads/game-room/one", json={"score": 9}, headers={"If-Match": header})
        assert answer.status_code == status


async def test_put_is_refused_where_a_client_would_be(web: httpx.AsyncClient) -> None:
    for body, expected, path in (
        ('{"score":-1}', (409, "rejected"), "/score"),
        ('{"score":"x"}', (422, "invalid_state"), "/score"),
        ('{"players":["a",1]}', (422, "invalid_state"), "/players/1"),
        ('{"score":', (422, "invalid_state"), None),
        ("", (422, "invalid_state"), None),
        ("\xff", (422, "invalid_state"), None),
        ('"' + "x" * 1_100_000 + '"', (413, "too_large"), None),
    ):
        answer = await web.put("/threads/game-room/one", content=body.encode("latin-1"))
        assert error_of(answer) == expected
        assert answer.json()["error"].get("path") in (path, "" if path is None else path)
    assert (await web.get("/threads/game-room/one")).json() == {"players": [], "score": 0}


async def test_put_of_a_misspelt_field_is_refused_with_the_nearest_name(web: httpx.AsyncClient) -> None:
    for body in ('{"scroe": 7}', '{"score": 3, "scroe": 7}'):
        answer = await web.put("/threads/game-room/one", content=body)
        assert (answer.status_code, answer.json()["error"]) == (
            422,
            {"code": "invalid_state", "message": "there is no field 'scroe'; did you mean /score?", "path": "/scroe"},
        )
    assert (await web.get("/threads/game-room/one")).json() == {"players": [], "score": 0}


async def test_a_thread_without_state_is_404_until_one_is_put(web: httpx.AsyncClient) -> None:
    assert error_of(await web.get("/threads/empty/one")) == (404, "not_found")
    assert (await web.put("/threads/empty/one", content="null")).json()["version"] == 1
    assert (await web.get("/threads/empty/one")).json() is None


@each_case(
    "name",
    ["a%2Fb", "with%20space", "%C3%A9", "%E4%B8%96%F0%9F%8E%89", "a+b", "50%25", "..%2f..", "rpc", "~.-_", "%3F%23"],
)
async def test_a_name_may_have_any_characters(web: httpx.AsyncClient, name: str) -> None:
    answer = await web.put(f"/threads/game-room/{name}", json={"score": 7})
    assert answer.status_code == 200
    assert (await web.get(f"/threads/game-room/{name}")).json()["score"] == 7
    assert (await web.post(f"/threads/game-room/{name}/rpc/add_player", json={"args": ["Ada"]})).json() == {"result": 1}
    async with connected(web.base_url.netloc.decode(), f"/threads/game-room/{name}") as client:
        await client.until_state({"players": ["Ada"], "score": 7})


async def test_two_names_that_differ_are_two_threads(web: httpx.AsyncClient) -> None:
    for score, name in enumerate(("a", "A", "a%20", "a%2F", "%C3%A9", "e%CC%81"), 1):
        answer = await web.put(f"/threads/game-room/{name}", json={"score": score})
        assert answer.json()["version"] == 1


# Calls


async def test_a_call_takes_arguments_by_place_and_by_name(web: httpx.AsyncClient) -> None:
    url = "/threads/game-room/one/rpc/add_player"
    assert (await web.post(url, json={"args": ["Ada"]})).json() == {"result": 1}
    assert (await web.post(url, json={"args": ["Bob"], "kwargs": {"score": 5}})).json() == {"result": 2}
    assert (await web.post(url, json={"kwargs": {"name": "Cy", "score": 1}})).json() == {"result": 3}
    assert (await web.get("/threads/game-room/one")).json() == {"players": ["Ada", "Bob", "Cy"], "score": 6}
    assert (await web.post("/threads/game-room/one/rpc/nothing")).json() == {"result": None}
    assert (await web.post("/threads/game-room/one/rpc/whoAmI", json={})).json() == {"result": [None, "POST"]}


async def test_the_name_of_an_rpc_may_have_any_characters(web: httpx.AsyncClient) -> None:
    answer = await web.post("/threads/game-room/one/rpc/gro%C3%9Fe%20Namen%2Flist")
    assert answer.json() == {"result": 0}
    for name in ("gro%FFe", "gro%C3%9Fe%2520Namen%2Flist"):
        answer = await web.post(f"/threads/game-room/one/rpc/{name}")
        assert error_of(answer) == (404, "method_not_found")


async def test_a_call_that_fails_is_an_error(web: httpx.AsyncClient) -> None:
    for method, body, expected, path in (
        ("add_player", '{"args":[1]}', (422, "invalid_arguments"), "/name"),
        ("add_player", '{"args":[]}', (422, "invalid_arguments"), "/name"),
        ("add_player", '{"args":["a","b"]}', (422, "invalid_arguments"), None),
        ("add_player", '{"args":["a"],"kwargs":{"score":"x"}}', (422, "invalid_arguments"), "/score"),
        ("add_player", '{"args":["a"],"kwargs":{"name":"b"}}', (422, "invalid_arguments"), "/name"),
        ("add_player", '{"args":["a"],"kwargs":{"other":1}}', (422, "invalid_arguments"), "/other"),
        ("add_player", '{"args":"a"}', (422, "invalid_arguments"), None),
        ("add_player", '["a"]', (422, "invalid_arguments"), None),
        ("add_player", '{"arguments":["a"]}', (422, "invalid_arguments"), None),
        ("add_player", '{"args":', (422, "invalid_arguments"), None),
        ("add_player", '{"args":["a"],"kwargs":{"score":-5}}', (409, "rejected"), "/score"),
        ("fail", "", (500, "call_failed"), None),
        ("give_up", "", (500, "call_failed"), None),
        ("refuse", "", (409, "rejected"), "/when"),
        ("not_json", "", (500, "call_failed"), None),
        ("missing", "", (404, "method_not_found"), None),
        ("on_request", "", (404, "method_not_found"), None),
        ("__init__", "", (404, "method_not_found"), None),
    ):
        answer = await web.post(f"/threads/game-room/one/rpc/{method}", content=body)
        assert error_of(answer) == expected, answer.text
        assert answer.json()["error"].get("path") == path, answer.text
    assert (await web.get("/threads/game-room/one")).json() == {"players": [], "score": 0}


async def test_a_result_that_nests_deep_is_answered(web: httpx.AsyncClient) -> None:
    answer = await web.post("/threads/game-room/one/rpc/deep")
    assert answer.text == '{"result":' + "[" * 500 + "]" * 500 + "}"


async def test_a_stream_is_a_line_of_json_for_each_chunk(web: httpx.AsyncClient) -> None:
    url = "/threads/game-room/one/rpc/count"
    async with web.stream("POST", url, json={"args": [2]}) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert [json.loads(line) async for line in answer.aiter_lines()] == [{"chunk": 0}, {"chunk": 1}, {"end": None}]
    assert (await web.get("/threads/game-room/one")).json()["score"] == 1
    answer = await web.post(url, json={"args": [3]})
    assert INTERNAL.fullmatch([json.loads(line) for line in answer.text.splitlines()][-1]["error"])
    assert error_of(await web.post(url, json={"args": ["x"]})) == (422, "invalid_arguments")


async def test_a_stream_that_nobody_reads_any_more_is_ended(web: httpx.AsyncClient) -> None:
    url = "/threads/game-room/one/rpc/count"
    async with web.stream("POST", url, json={"args": [1_000_000]}) as answer:
        async for _ in answer.aiter_lines():
            break
    await web.put("/threads/game-room/one", json={"score": 123_456_789})
    answer = await web.post("/threads/game-room/one/rpc/add_player", json={"args": ["Ada"]})
    assert answer.status_code == 200


async def test_a_stream_by_generator_waits_for_who_reads_slowly(web: httpx.AsyncClient) -> None:
    url = "/threads/game-room/one/rpc/how_much"
    with bare_socket(web.base_url.netloc.decode(), receive_buffer=4096) as bare:
        await _post(bare, "/threads/game-room/one/rpc/pour")
        await _read_until(bare, b'"chunk"')
        before, poured = -1, 0
        while poured > before:
            before, poured = poured, (await web.post(url)).json()["result"]
        assert poured < POURED / 2
        await _read_until(bare, b'{"end":null}\n')
        assert (await web.post(url)).json()["result"] == POURED


async def test_a_stream_by_hand_ends_when_its_reader_is_too_slow(tmp_path: Path) -> None:
    app = Plait(GameRoom, store=f"sqlite:///{tmp_path}/plait.db", limits=Limits(write_buffer=100_000))
    async with running(app) as address, http(address) as web:
        with bare_socket(address, receive_buffer=4096) as bare:
            await _post(bare, "/threads/game-room/one/rpc/pour_by_hand")
            await _read_until(bare, b'"chunk"')
            (actor,) = app._node.actors
            async with asyncio.timeout(TIMEOUT):
                while actor.turns._concurrent:
                    assert (await web.get("/healthz")).status_code == 200
            assert await _read_until(bare, b'{"error":"the client reads too slowly"}\n')


async def test_a_stream_ends_when_the_token_expires_of_whoever_asked_for_it() -> None:
    ended = asyncio.Event()

    class Ticker(Thread[Any]):
        @rpc
        async def tick(self) -> AsyncIterator[int]:
            try:
                yield 1
                await asyncio.Event().wait()
            finally:
                ended.set()

    def authenticate(request: Request) -> Principal:
        return Principal("ada", expires_at=time.time() + 3)

    app = Plait(Ticker, store=MemoryStore(), authenticate=authenticate)
    async with running(app) as address, http(address) as web, asyncio.timeout(TIMEOUT):
        async with web.stream("POST", "/threads/ticker/one/rpc/tick") as answer:
            lines = [json.loads(line) async for line in answer.aiter_lines()]
        assert lines == [{"chunk": 1}, {"error": "the token has expired"}]
        await ended.wait()


async def _post(bare: socket.socket, path: str) -> None:
    request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(bare, request.encode())


async def _read_until(bare: socket.socket, wanted: bytes) -> bytes:
    """Return the data from a socket up to an expected part."""
    received = bytearray()
    async with asyncio.timeout(TIMEOUT):
        while wanted not in received[-100_000:]:
            data = await asyncio.get_running_loop().sock_recv(bare, 65536)
            assert data
            received += data
    return bytes(received)


# Everything else


@each_case(
    ("method", "path"),
    [
        ("GET", "/page"),
        ("GET", "/a/b%2Fc/"),
        ("DELETE", "/page"),
        ("PATCH", ""),
        ("POST", ""),
        ("POST", "/rpc"),
        ("GET", "/rpc/add_player"),
        ("PUT", "/page"),
        ("OPTIONS", "/page"),
    ],
)
async def test_on_request_answers_everything_else(web: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await web.request(method, f"/threads/game-room/one{path}", content=b"body")
    assert answer.status_code == 201
    assert (answer.json()["method"], answer.json()["body"]) == (method, "body")


async def test_an_on_request_that_returns_no_response_is_500(web: httpx.AsyncClient) -> None:
    assert error_of(await web.get("/threads/game-room/one/wrong")) == (500, "internal")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "bad_request"),
        (401, "unauthenticated"),
        (403, "forbidden"),
        (404, "not_found"),
        (413, "too_large"),
        (418, "i_m_a_teapot"),
        (429, "rate_limited"),
        (499, "error"),
        (500, "internal"),
        (503, "unavailable"),
    ],
)
async def test_an_http_exception_of_on_request_is_answered_as_it_says(
    web: httpx.AsyncClient, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await web.get(f"/threads/game-room/one/page?raise={status}")
    assert error_of(answer) == (status, code)
    assert answer.json()["error"]["message"] == "no such book"
    assert answer.headers["x-shelf"] == "7"
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_http_exception_without_a_body_has_none(web: httpx.AsyncClient) -> None:
    answer = await web.get("/threads/game-room/one/page?raise=304")
    assert (answer.status_code, answer.content, answer.headers["x-shelf"]) == (304, b"", "7")


async def test_without_on_request_everything_else_is_404(web: httpx.AsyncClient) -> None:
    for method, path in (("GET", "/page"), ("DELETE", "/page"), ("POST", "/rpc/"), ("POST", "/rpc/a/b")):
        assert error_of(await web.request(method, f"/threads/empty/one{path}")) == (404, "not_found")


@each_case(
    "path",
    [
        "/",
        "/nothing",
        "/threads",
        "/threads/",
        "/threads/game-room",
        "/threads/game-room/",
        "/threads//one",
        "/threads/GameRoom/one",
        "/threads/nothing/one",
        "/threads/game-room/a%00b",
        "/threads/game-room/%ff",
        f"/threads/game-room/{'x' * 257}",
    ],
)
async def test_what_is_not_there_is_404(web: httpx.AsyncClient, path: str) -> None:
    for method in ("GET", "PUT", "POST"):
        answer = await web.request(method, path, json={}, follow_redirects=True)
        assert error_of(answer) == (404, "not_found")


async def test_health_and_readiness(web: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await web.get(path)
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        assert error_of(await web.post(path)) == (405, "method_not_allowed")


# Who may


async def test_pages_of_allowed_origins_may_read_and_write_and_others_may_not(web: httpx.AsyncClient) -> None:
    url = "/threads/game-room/one"
    asks = {
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "If-Match,Content-Type,Last-Event-ID",
    }
    answer = await web.options(url, headers={"Origin": FRIEND, **asks})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == FRIEND
    answer = await web.options(url, headers={"Origin": "https://foe.example", **asks})
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers

    answer = await web.put(url, json={"score": 1}, headers={"Origin": FRIEND})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == FRIEND
    answer = await web.get(url, headers={"Origin": FRIEND})
    assert (answer.status_code, answer.headers["access-control-expose-headers"]) == (200, "ETag, x-thread-id")
    answer = await web.get("/threads/nothing/one", headers={"Origin": FRIEND})
    assert answer.headers["access-control-allow-origin"] == FRIEND
    assert "access-control-allow-origin" not in (await web.get(url, headers={"Origin": "https://foe.example"})).headers


@each_case("origin", ["https://foe.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_origin_cannot_write_or_call(web: httpx.AsyncClient, origin: str) -> None:
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    for method, path in (("PUT", ""), ("POST", "/rpc/add_player"), ("POST", "/page"), ("DELETE", "")):
        answer = await web.request(method, f"/threads/game-room/one{path}", content='{"args":["a"]}', headers=headers)
        assert error_of(answer) == (403, "forbidden")
    assert (await web.get("/threads/game-room/one")).json() == {"players": [], "score": 0}
    same = str(web.base_url).rstrip("/")
    assert (await web.put("/threads/game-room/one", json={}, headers={"Origin": same})).status_code == 200


async def test_readonly_also_holds_over_http(web: httpx.AsyncClient) -> None:
    url = "/threads/game-room/one"
    assert error_of(await web.put(f"{url}?readonly", json={"score": 1})) == (403, "readonly")
    answer = await web.post(f"{url}/rpc/add_player?readonly", json={"args": ["Ada"]})
    assert error_of(answer) == (403, "readonly")
    assert (await web.post(f"{url}/rpc/nothing?readonly")).status_code == 200
    assert (await web.get(f"{url}?readonly")).json() == {"players": [], "score": 0}


class Sleepy(Thread[int]):
    """Is stopped as soon as it is unused."""

    initial_state = 0
    idle_timeout = 0.0

    @rpc
    def add(self) -> int:
        self.set_state(lambda n: n + 1)
        return self.state

    @rpc
    async def count(self) -> AsyncIterator[int]:
        yield self.add()


async def asleep(app: Plait) -> None:
    """Wait until no thread is awake."""
    node = app._node
    async with asyncio.timeout(TIMEOUT):
        while node.actors or node._threads.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize(("method", "path"), [("PUT", ""), ("POST", "/rpc/add"), ("POST", "/rpc/count")])
async def test_a_thread_may_go_to_sleep_while_somebody_is_checked(method: str, path: str) -> None:
    async def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        await asleep(app)
        return True

    app = Plait(Sleepy, store=MemoryStore(), authorize=authorize)
    async with running(app) as address, http(address) as web:
        await app.thread(Sleepy, "one").state()
        body = b"1" if method == "PUT" else b""
        answer = await web.request(method, f"/threads/sleepy/one{path}", content=body)
        assert answer.status_code == 200
        assert "error" not in answer.text
        assert (await web.get("/threads/sleepy/one")).json() == 1


@pytest.mark.local
async def test_a_thread_may_go_to_sleep_while_the_head_of_a_stream_is_sent() -> None:
    sent = b""
    parts = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else await asyncio.Future()

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal sent
        if message["type"] == "http.response.start":
            await asleep(app)
        sent += message.get("body", b"")

    app = Plait(Sleepy, store=MemoryStore())
    path = "/threads/sleepy/one/rpc/count"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "headers": [],
        "query_string": b"",
    }
    async with app:
        await app({**scope, "asgi": {"spec_version": "2.4"}}, receive, send)
    assert [json.loads(line) for line in sent.splitlines()] == [{"chunk": 1}, {"end": None}]


async def test_who_is_nobody_gets_401_and_who_may_not_403() -> None:
    async def authenticate(request: Request) -> Principal | Response | None:
        match request.headers.get("authorization"):
            case None:
                return None
            case "broken":
                raise RuntimeError("the secret of the session table")
            case "elsewhere":
                return Response("log in", 303, headers={"Location": "/login"})
            case "unpaid":
                raise HTTPException(402, "pay first")
            case name:
                return Principal(name)

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        assert principal is not None
        return principal.id == "ada" or f"{principal.id}:{action}" in (
            "bob:read",
            "cy:write",
            "dee:call",
            "eve:request",
        )

    app = Plait(GameRoom, store=MemoryStore(), authenticate=authenticate, authorize=authorize)
    url = "/threads/game-room/one"
    requests = (("GET", url), ("PUT", url), ("POST", f"{url}/rpc/nothing"), ("GET", f"{url}/page"))
    async with running(app) as address, http(address) as web:
        await begin(app, GameRoom)

        async def statuses(name: str | None) -> list[int]:
            headers = {} if name is None else {"Authorization": name}
            answers = [await web.request(method, path, json={}, headers=headers) for method, path in requests]
            for answer in answers:
                if answer.status_code >= 400:
                    error_of(answer)
                    assert "secret" not in answer.text
            return [answer.status_code for answer in answers]

        assert await statuses(None) == [401] * 4
        assert await statuses("ada") == [200, 200, 200, 201]
        assert await statuses("bob") == [200, 403, 403, 403]
        assert await statuses("cy") == [403, 200, 403, 403]
        assert await statuses("dee") == [403, 403, 200, 403]
        assert await statuses("eve") == [403, 403, 403, 201]
        assert await statuses("broken") == [500] * 4
        assert await statuses("elsewhere") == [303] * 4
        assert await statuses("unpaid") == [402] * 4
        # Who may call and not write cannot write by calling.
        answer = await web.post(f"{url}/rpc/add_player", json={"args": ["a"]}, headers={"Authorization": "dee"})
        assert error_of(answer) == (403, "readonly")
        answer = await web.post(f"{url}/rpc/whoAmI", headers={"Authorization": "ada"})
        assert answer.json() == {"result": ["ada", "POST"]}
        assert (await web.get(f"{url}/page", headers={"Authorization": "ada"})).json()["who"] == "ada"
        assert (await web.get("/healthz")).status_code == 200


# Beginning


async def test_reading_begins_no_thread(web: httpx.AsyncClient, tmp_path: Path) -> None:
    url = "/threads/game-room/new"
    for path in ("", "?at=0", "/changes"):
        assert error_of(await web.get(url + path)) == (404, "not_found")
    assert (await web.head(url)).status_code == 404
    answer = await web.get(f"{url}/changes", headers={"Accept": "text/event-stream"})
    assert error_of(answer) == (404, "not_found")
    assert (await web.get(f"{url}/page")).status_code == 201
    assert (await web.post(f"{url}/rpc/nothing")).status_code == 200
    assert error_of(await web.put(url, json={"score": -1})) == (409, "rejected")
    assert error_of(await web.put(f"{url}?readonly", json={"score": 1})) == (403, "readonly")
    assert error_of(await web.get(url)) == (404, "not_found")
    async with SqliteStore(tmp_path / "plait.db").reader() as store:
        assert [row.key.name for row in await store.threads()] == ["one"]
    answer = await web.post(f"{url}/rpc/add_player", json={"args": ["Ada"]})
    assert answer.json() == {"result": 1}
    assert (await web.get(f"{url}?at=0")).json() == {"players": [], "score": 0}
    assert (await web.get(url)).json() == {"players": ["Ada"], "score": 0}


async def test_a_thread_is_stored_before_its_first_socket_is_told_of_it(tmp_path: Path) -> None:
    app = Plait(GameRoom, Empty, store=f"sqlite:///{tmp_path}/plait.db")
    async with running(app) as address, http(address) as web:
        for kind, status in (("game-room", 200), ("empty", 404)):
            async with connected(address, f"/threads/{kind}/one") as client:
                await client.until(lambda client: client.frames)
            assert (await web.get(f"/threads/{kind}/one")).status_code == status
            assert await app._node.is_stored(ThreadKey(kind, "one"))
        async with connect(f"ws://{address}/threads/game-room/two") as room:
            assert room.state == {"players": [], "score": 0}
            assert (await web.get("/threads/game-room/two")).json() == room.state


async def test_who_may_not_create_leaves_nothing(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        asked.append((thread.name, action))
        return action != "create"

    app = Plait(GameRoom, store=f"sqlite:///{tmp_path}/plait.db", authorize=authorize)
    url = "/threads/game-room/one"
    async with running(app) as address, http(address) as web:
        assert error_of(await web.put(url, json={"score": 1})) == (403, "forbidden")
        assert error_of(await web.post(f"{url}/rpc/add_player", json={"args": ["Ada"]})) == (403, "forbidden")
        async with connected(address, url) as client:
            assert await client.until_closed() == 4403
        with pytest.raises(Closed) as told:
            async with connect(f"ws://{address}{url}"):
                pass
        assert told.value.code == 4403
        assert not app._node.actors
        assert not await app._node.is_stored(ThreadKey("game-room", "one"))
        assert [action for _, action in asked].count("create") == 4
        # The author's own code may, and then `authorize` is not asked again.
        await app.thread(GameRoom, "one").call(GameRoom.add_player, "Ada")
        asked.clear()
        assert (await web.put(url, json={"score": 1})).status_code == 200
        async with connected(address, url) as client:
            await client.until_state({"players": [], "score": 1})
        assert ("one", "create") not in asked
