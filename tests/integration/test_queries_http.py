"""Queries over HTTP: a result once, and a stream of server-sent events that follows it."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.cases import each_case
from tests.integration.native_client import joined
from tests.integration.socket_client import TIMEOUT, bare_socket, http
from tests.integration.test_agents_client_trouble import HeldStore
from tests.integration.test_event_stream import STREAM, Reader
from tests.integration.test_http import error_of
from tests.running import Process, begin, running
from tests.told import check_internal

from plait import Connection, Limits, MemoryStore, Plait, Principal, Reject, Sql, Thread, current, query, rpc
from plait_schemas.codec import convert
from plait_schemas.patch import Op, apply

pytestmark = pytest.mark.relayed

PATH = "/threads/shop/one"
QUERY = f"{PATH}/query"
KINDS = ("error", "reject", "json", "sql")


class Shop(Thread[dict[str, Any]]):
    """Has orders of customers, and counts the runs of queries."""

    initial_state = {"orders": {}, "text": "", "is_broken": False}  # noqa: RUF012
    sql = Sql(migrations=["CREATE TABLE items (name TEXT)"])
    clients_may_destroy = True
    runs: ClassVar = 0

    def on_connect(self, connection: Connection, request: Request) -> None:
        if "refused" in request.query_params:
            raise Reject("nobody comes in")

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(f"{request.method} {request.url.path}")

    @query
    def orders(self, customer: str, *, most: int = 10) -> list[str]:
        type(self).runs += 1
        if self.state["is_broken"]:
            raise ValueError("no orders today")
        found: list[str] = self.state["orders"].get(customer, [])
        return found[:most]

    @query(name="text of/all")
    def text(self) -> str:
        type(self).runs += 1
        return str(self.state["text"])

    @query
    def who(self) -> str:
        principal = current().principal
        return principal.id

    @query
    def fails(self, how: str) -> Any:
        return self._fail(how)

    @rpc
    def fail(self, how: str) -> Any:
        return self._fail(how)

    def _fail(self, how: str) -> Any:
        match how:
            case "error":
                raise ValueError("too hot")
            case "reject":
                raise Reject("closed on Mondays")
            case "sql":
                return self.sql("SELECT nothing FROM items").value
            case "large":
                return "x" * (1 << 20)
        return object()

    @rpc
    def put(self, name: str, value: Any) -> None:
        self.update(f"/{name}", value)

    @rpc
    def count_runs(self) -> int:
        return self.runs

    @rpc
    def connected(self) -> int:
        return len(self.connections())

    @rpc
    def tell(self) -> None:
        self.broadcast({"hello": "all"})
        self.emit("goal", {"by": "Ada"})


class Quiet(Thread[dict[str, Any]]):
    """Has no queries."""

    initial_state = {}  # noqa: RUF012

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(f"{request.method} {request.url.path}")


app = Plait(Shop, Quiet)


class Fold:
    """A stream of a query: the result as a client folds the chunks, and all chunks."""

    def __init__(self, answer: httpx.Response) -> None:
        self.rows: Any = None
        self.chunks: list[dict[str, Any]] = []
        self.reader = Reader(answer)

    async def next(self) -> dict[str, Any] | None:
        """Return the next chunk; None at the end."""
        chunk: dict[str, Any] | None = await self.reader.next()
        if chunk is not None:
            self.chunks.append(chunk)
            if "rows" in chunk:
                self.rows = chunk["rows"]
            elif "ops" in chunk:
                self.rows = apply(self.rows, convert(chunk["ops"], list[Op]))
        return chunk

    async def until(self, rows: Any) -> None:
        """Wait until the result is `rows`."""
        while self.rows != rows:
            assert await self.next() is not None


@asynccontextmanager
async def following(
    web: httpx.AsyncClient, name: str, *args: Any, after: str = "", **params: str
) -> AsyncIterator[Fold]:
    """Follow a query, from the result with the tag `after` on."""
    headers = STREAM | ({"Last-Event-ID": after} if after else {})
    params = {"args": json.dumps(args), **params}
    async with web.stream("GET", f"{QUERY}/{name}", params=params, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Fold(answer)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a shop that keeps nothing, unless a store is given."""
    app = Plait(Shop, Quiet, **{"store": MemoryStore(), **settings})
    async with running(app) as address, http(address) as web:
        await begin(app, Shop)
        await begin(app, Quiet)
        yield web


@pytest.fixture
async def web() -> AsyncIterator[httpx.AsyncClient]:
    async with serving() as web:
        yield web


async def call(web: httpx.AsyncClient, method: str, *args: Any) -> Any:
    answer = await web.post(f"{PATH}/rpc/{method}", json={"args": args})
    assert answer.status_code == 200, answer.text
    return answer.json().get("result")


async def ask(web: httpx.AsyncClient, name: str, *args: Any, **options: Any) -> httpx.Response:
    return await web.get(f"{QUERY}/{name}", params={"args": json.dumps(args)}, **options)


async def order(web: httpx.AsyncClient, *items: str) -> None:
    await call(web, "put", "orders", {"ada": items})


async def until_connected(web: httpx.AsyncClient, count: int) -> None:
    """Wait until this many clients are connected to the thread."""
    async with asyncio.timeout(TIMEOUT):
        while await call(web, "connected") != count:
            pass


async def check_nothing_runs(web: httpx.AsyncClient) -> None:
    """Check that no query runs again after a change, as none is followed."""
    runs = await call(web, "count_runs")
    await order(web, "more", "of", "it")
    # A query that was left behind would run before this one.
    assert (await web.get(f"{QUERY}/text%20of%2Fall")).json() == ""
    assert await call(web, "count_runs") == runs + 1


# Once


async def test_a_result_is_json_with_a_tag_by_which_it_is_not_sent_again(web: httpx.AsyncClient) -> None:
    await order(web, "tea", "milk")
    answer = await ask(web, "orders", "ada")
    assert (answer.status_code, answer.json()) == (200, ["tea", "milk"])
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "private, no-cache"
    tag = answer.headers["etag"]
    assert tag.strip('"')
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await ask(web, "orders", "ada", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    await order(web, "tea")
    answer = await ask(web, "orders", "ada", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.json()) == (200, ["tea"])
    assert answer.headers["etag"] != tag
    head = await web.head(f"{QUERY}/orders", params={"args": '["ada"]'})
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", answer.headers["etag"])


async def test_arguments_have_a_place_or_a_name_and_a_query_any_name(web: httpx.AsyncClient) -> None:
    await order(web, "tea", "milk")
    for params in ({"args": '["ada"]', "kwargs": '{"most": 1}'}, {"kwargs": '{"customer": "ada", "most": 1}'}):
        assert (await web.get(f"{QUERY}/orders", params=params)).json() == ["tea"]
    await call(web, "put", "text", "hello")
    assert (await web.get(f"{QUERY}/text%20of%2Fall")).json() == "hello"


@each_case(
    ("params", "path"),
    [
        ({}, "/customer"),
        ({"args": "[1]"}, "/customer"),
        ({"args": '["ada", 2]'}, None),
        ({"args": '["ada"'}, "/args"),
        ({"args": '{"customer": "ada"}'}, "/args"),
        ({"kwargs": "[]"}, "/kwargs"),
        ({"args": '["ada"]', "kwargs": '{"most": "x"}'}, "/most"),
        ({"args": '["ada"]', "kwargs": '{"customer": "ada"}'}, "/customer"),
        ({"args": "[" * 5000}, "/args"),
    ],
)
async def test_arguments_that_do_not_fit_are_422_with_their_path(
    web: httpx.AsyncClient, params: dict[str, str], path: str | None
) -> None:
    for headers in ({}, STREAM):
        answer = await web.get(f"{QUERY}/orders", params=params, headers=headers)
        assert error_of(answer) == (422, "invalid_arguments")
        assert answer.json()["error"].get("path") == path
    assert await call(web, "connected") == 0


@each_case(
    ("name", "says"),
    [
        ("order", "Query order does not exist; did you mean orders?"),
        ("put", "put is not a query: call it"),
        ("nothing", "Query nothing does not exist"),
    ],
)
async def test_what_is_not_a_query_is_404(web: httpx.AsyncClient, name: str, says: str) -> None:
    for headers in ({}, STREAM):
        answer = await ask(web, name, headers=headers)
        assert error_of(answer) == (404, "method_not_found")
        assert answer.json()["error"]["message"] == says


async def test_a_query_creates_no_thread(web: httpx.AsyncClient) -> None:
    for headers in ({}, STREAM):
        for _ in range(2):
            answer = await web.get('/threads/shop/other/query/orders?args=["ada"]', headers=headers)
            assert error_of(answer) == (404, "not_found")


@each_case("how", KINDS)
async def test_an_error_of_a_query_is_answered_as_that_of_an_rpc(
    web: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    answer = await ask(web, "fails", how)
    other = await web.post(f"{PATH}/rpc/fail", json={"args": [how]})
    assert error_of(answer) == error_of(other)
    assert "etag" not in answer.headers
    assert answer.headers["cache-control"] == "no-store"
    if how == "error":
        assert answer.status_code == 500
        check_internal(answer.json()["error"]["message"], caplog, "too hot")


async def test_a_result_that_is_too_large_is_413(web: httpx.AsyncClient) -> None:
    assert error_of(await ask(web, "fails", "large")) == (413, "too_large")


async def test_who_may_not_call_may_not_ask() -> None:
    def authorize(principal: Principal | None, thread: Any, action: str) -> bool:
        return action != "call"

    async with serving(authorize=authorize) as web:
        for headers in ({}, STREAM):
            assert error_of(await ask(web, "orders", "ada", headers=headers)) == (403, "forbidden")


async def test_each_principal_gets_its_own_result() -> None:
    def authenticate(request: Request) -> Principal:
        return Principal(request.headers.get("x-user", "nobody"))

    async with serving(authenticate=authenticate) as web:
        answers = [await ask(web, "who", headers={"x-user": user}) for user in ("ada", "grace", "ada")]
        assert [answer.json() for answer in answers] == ["ada", "grace", "ada"]
        assert len({answer.headers["etag"] for answer in answers}) == 2
        assert {answer.headers["cache-control"] for answer in answers} == {"private, no-cache"}


async def test_a_result_that_others_follow_is_answered_without_another_run(web: httpx.AsyncClient) -> None:
    await order(web, "tea")
    async with following(web, "orders", "ada") as fold:
        await fold.until(["tea"])
        runs = await call(web, "count_runs")
        answer = await ask(web, "orders", "ada")
        assert (answer.json(), answer.headers["etag"]) == (["tea"], f'"{fold.reader.id}"')
        assert await call(web, "count_runs") == runs
    await until_connected(web, 0)
    await check_nothing_runs(web)


async def test_other_paths_and_methods_and_classes_reach_on_request(web: httpx.AsyncClient) -> None:
    for method, path in (
        ("POST", f"{QUERY}/orders"),
        ("GET", QUERY),
        ("GET", f"{QUERY}/orders/more"),
        ("GET", "/threads/quiet/one/query/orders"),
    ):
        answer = await web.request(method, path)
        assert (answer.status_code, answer.text) == (200, f"{method} {path}")


# A result that waits


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[httpx.AsyncClient, HeldStore, Plait]]:
    """Serve a shop with a change that is not durable until the store is resumed."""
    store = HeldStore()
    app = Plait(Shop, store=store)
    async with running(app) as address, http(address) as web:
        await begin(app, Shop)
        store.hold()
        change = asyncio.create_task(order(web, "tea"))
        try:
            await until(lambda: store._held)
            yield web, store, app
        finally:
            store.resume()
            await asyncio.wait([change])


async def drain(app: Plait) -> None:
    """End the work of all threads at once."""
    await app._node.drain(0)


async def until(is_so: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(TIMEOUT):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_result_is_answered_when_what_it_shows_is_durable() -> None:
    async with waiting() as (web, store, _):
        runs = Shop.runs
        asking = asyncio.create_task(ask(web, "orders", "ada"))
        await until(lambda: runs < Shop.runs)
        assert not asking.done()
        store.resume()
        assert (await asking).json() == ["tea"]
        await check_nothing_runs(web)


@pytest.mark.parametrize("accept", ["application/json", STREAM["Accept"]])
async def test_a_client_that_leaves_leaves_no_query_behind(accept: str) -> None:
    async with waiting() as (web, store, app):
        (actor,), runs = app._node.actors, Shop.runs
        url = f"{QUERY}/orders?args=%5B%22ada%22%5D"
        with bare_socket(web.base_url.netloc.decode()) as bare:
            head = f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(bare, head.encode())
            await until(lambda: runs < Shop.runs)
            assert not actor.is_unused
        await until(lambda: actor.turns.is_idle and not actor.sockets)
        store.resume()
        await check_nothing_runs(web)


async def test_a_thread_that_ends_answers_who_waits_and_is_not_there_for_who_comes() -> None:
    async with waiting() as (web, store, app):
        runs = Shop.runs
        early = asyncio.create_task(ask(web, "orders", "ada"))
        await until(lambda: runs < Shop.runs)
        (actor,) = app._node.actors
        destroying = asyncio.create_task(app.thread(Shop, "one").destroy())
        await until(lambda: actor.is_ending)
        late = asyncio.create_task(ask(web, "orders", "ada"))
        store.resume()
        await destroying
        assert (await early).json() == ["tea"]
        assert error_of(await late) == (404, "not_found")


async def test_who_waits_is_told_that_the_server_ends() -> None:
    async with waiting() as (web, store, app):
        runs = Shop.runs
        asking = asyncio.create_task(ask(web, "orders", "ada"))
        await until(lambda: runs < Shop.runs)
        ending = asyncio.create_task(drain(app))
        (actor,) = app._node.actors
        await until(lambda: actor.turns.is_idle)
        store.resume()
        assert error_of(await asking) == (503, "unavailable")
        await ending


# Streams


async def test_a_stream_begins_with_the_result_and_goes_on_with_differences(web: httpx.AsyncClient) -> None:
    await order(web, "tea", "milk", "a longer name of an order")
    async with following(web, "orders", "ada") as fold:
        assert fold.reader.answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert fold.reader.answer.headers["cache-control"] == "no-store"
        first = await fold.next()
        assert first == {"at": 1, "tag": fold.reader.id, "rows": ["tea", "milk", "a longer name of an order"]}
        await call(web, "put", "text", "nothing that it has read")
        await order(web, "tea", "milk", "a longer name of an order", "salt")
        second = await fold.next()
        assert second == {
            "at": 3,
            "tag": fold.reader.id,
            "ops": [{"op": "add", "path": "/3", "value": "salt"}],
        }
        assert second["tag"] != first["tag"]
        once = await ask(web, "orders", "ada")
        assert (once.json(), once.headers["etag"]) == (fold.rows, f'"{fold.reader.id}"')


async def test_an_error_is_a_chunk_and_keeps_the_id(web: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    await order(web, "tea")
    async with following(web, "orders", "ada") as fold:
        await fold.until(["tea"])
        known = fold.reader.id
        await call(web, "put", "is_broken", True)
        chunk = await fold.next()
        assert chunk is not None
        assert (chunk["at"], chunk["error"]["code"], fold.reader.id) == (2, "call_failed", known)
        check_internal(chunk["error"]["message"], caplog, "no orders today")
        await call(web, "put", "is_broken", False)
        assert await fold.next() == {"at": 3, "tag": known}


@pytest.mark.parametrize("where", ["header", "parameter", "both"])
async def test_who_comes_back_is_not_sent_what_it_has(web: httpx.AsyncClient, where: str) -> None:
    await order(web, "tea")
    async with following(web, "orders", "ada") as fold:
        await fold.until(["tea"])
        id = fold.reader.id
    # An EventSource reconnects to the same URL, and sends its current position in the header.
    options: Any = {"header": {"after": id}, "parameter": {"have": id}, "both": {"after": id, "have": "old"}}
    async with following(web, "orders", "ada", **options[where]) as fold:
        assert await fold.next() == {"at": 1, "tag": id}
        assert fold.reader.id == id
    await order(web, "milk")
    async with following(web, "orders", "ada", **options[where]) as fold:
        chunk = await fold.next()
        assert chunk is not None
        assert (chunk["at"], chunk["rows"]) == (2, ["milk"])


async def test_a_stream_has_nothing_but_the_query(web: httpx.AsyncClient) -> None:
    async with following(web, "orders", "ada") as fold:
        await fold.until([])
        await call(web, "tell")
        await order(web, "tea")
        await fold.until(["tea"])
        assert [sorted(chunk) for chunk in fold.chunks[:-1]] == [["at", "rows", "tag"]]


async def test_a_stream_of_a_principal_has_its_own_result() -> None:
    def authenticate(request: Request) -> Principal:
        return Principal(request.query_params.get("user", "nobody"))

    async with (
        serving(authenticate=authenticate) as web,
        following(web, "who", user="ada") as ada,
        following(web, "who", user="grace") as grace,
    ):
        await ada.until("ada")
        await grace.until("grace")
        assert [len(fold.chunks) for fold in (ada, grace)] == [1, 1]


async def test_a_slow_reader_is_skipped_and_gets_the_difference_later() -> None:
    loop, last = asyncio.get_running_loop(), 30
    async with serving(limits=Limits(messages_per_second=1e6)) as web:
        with bare_socket(web.base_url.netloc.decode(), receive_buffer=4096) as bare:
            url = f"{QUERY}/text%20of%2Fall"
            head = f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: {STREAM['Accept']}\r\n\r\n"
            await loop.sock_sendall(bare, head.encode())
            await until_connected(web, 1)
            for n in range(last + 1):
                await call(web, "put", "text", f"{n} " + chr(97 + n % 26) * 900_000)
            assert await call(web, "connected") == 1
            read = b""
            async with asyncio.timeout(TIMEOUT):
                while b'"%d ' % last not in read:
                    read += await loop.sock_recv(bare, 1 << 20)
            assert 1 < read.count(b"data: ") < last


async def test_a_reader_that_goes_is_gone_from_the_thread(web: httpx.AsyncClient) -> None:
    async with following(web, "orders", "ada") as fold:
        await fold.until([])
        assert await call(web, "connected") == 1
    await until_connected(web, 0)
    await check_nothing_runs(web)


async def test_a_reader_that_a_hook_refuses_is_told_and_follows_nothing(web: httpx.AsyncClient) -> None:
    answer = await web.get(f'{QUERY}/orders?args=["ada"]&refused', headers=STREAM)
    assert error_of(answer) == (409, "rejected")
    await check_nothing_runs(web)


async def test_a_stream_counts_among_the_connections_of_its_thread_and_address() -> None:
    for limits in (Limits(connections_per_thread=1), Limits(connections_per_address=1)):
        async with serving(limits=limits) as web:
            for _ in range(2):
                async with following(web, "orders", "ada") as fold:
                    await fold.until([])
                    refused = await ask(web, "orders", "ada", headers=STREAM)
                    assert error_of(refused) == (429, "rate_limited")
                    assert (await ask(web, "orders", "ada")).json() == []
                await until_connected(web, 0)


async def test_a_query_beyond_the_limit_of_the_thread_is_429(web: httpx.AsyncClient) -> None:
    async with AsyncExitStack() as stack:
        for socket in range(4):
            client = await stack.enter_async_context(joined(web.base_url.netloc.decode(), PATH, f"{socket}"))
            for n in range(64):
                await client.send("call", ref=n + 1, method="orders", args=[f"{socket}.{n}"], have="")
            await client.until(lambda client: len(client.of("result")) == 64)
        for headers in ({}, STREAM):
            assert error_of(await ask(web, "orders", "ada", headers=headers)) == (429, "rate_limited")
        assert (await ask(web, "orders", "0.0")).json() == []
        assert await call(web, "connected") == 4


async def test_a_stream_ends_when_the_token_of_its_reader_expires() -> None:
    def authenticate(request: Request) -> Principal:
        return Principal("ada", {}, time.time() + float(request.query_params.get("seconds", "600")))

    async with serving(authenticate=authenticate) as web:
        async with following(web, "who", seconds="1") as fold:
            await fold.until("ada")
            assert await fold.next() is None
        await until_connected(web, 0)


async def test_a_stream_ends_with_its_thread(web: httpx.AsyncClient) -> None:
    async with following(web, "orders", "ada") as fold:
        await fold.until([])
        assert (await web.delete(PATH)).status_code == 204
        assert await fold.next() is None
    assert error_of(await ask(web, "orders", "ada", headers=STREAM)) == (404, "not_found")


@pytest.mark.local
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_has_nothing_but_streams_ends_at_once(tmp_path: Path, by: signal.Signals) -> None:
    with Process("tests.integration.test_queries_http:app", cwd=tmp_path) as server:
        async with http(server.address) as web, AsyncExitStack() as stack:
            await order(web, "tea")
            fold = await stack.enter_async_context(following(web, "orders", "ada"))
            await fold.until(["tea"])
            server.signal(by)
            async with asyncio.timeout(9):  # Less than the 10 s of shutdown_timeout.
                assert await fold.next() is None
        assert await asyncio.to_thread(server.wait) == 0
        assert "Traceback" not in server.log.read_text()
        server.start()
        async with http(server.address) as web, following(web, "orders", "ada", after=fold.reader.id) as again:
            assert await again.next() == {"at": 1, "tag": fold.reader.id}
