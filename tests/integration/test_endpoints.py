"""Endpoints over HTTP: arguments, answers and limits."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from tests.cases import each_case
from tests.integration.socket_client import http
from tests.running import begin, running
from tests.server.fakes import TroubledStore
from tests.server.session.guests import until

from plait import Limits, Plait, Principal, Reject, Sql, Thread, ThreadKey, endpoint, rpc

pytestmark = pytest.mark.relayed(in_soak=True)

PATH = "/threads/shop/one"


class Item(msgspec.Struct):
    name: str
    price: float = 0.0


class Note(BaseModel):
    text: str


class Shop(Thread[dict[str, Any]]):
    """Has an endpoint of each sort."""

    initial_state = {"n": 0}  # noqa: RUF012

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    @endpoint("GET", "/report/{year:int}")
    async def report(self, year: int, lines: bool = False, tags: list[str] | None = None) -> dict[str, Any]:
        return {"year": year, "lines": lines, "tags": tags}

    @endpoint("GET", "/report/newest")
    def newest(self) -> str:
        return "newest"

    @endpoint("GET", "/report/{rest:path}")
    def others(self, rest: str) -> list[str]:
        return ["others", rest]

    @endpoint("POST", "/items")
    async def add(self, item: Item, times: int = 1) -> Item:
        self.set_state(lambda state: {**state, item.name: times})
        return item

    @endpoint("POST", "/notes")
    def take(self, note: Note) -> Note:
        return note

    @endpoint("PATCH", "/any")
    def echo(self, value: Any) -> Any:
        return value

    @endpoint("PUT", "/blob", limit=10)
    def put(self, data: bytes) -> int:
        return len(data)

    @endpoint("DELETE", "/items/{name}")
    def remove(self, name: str) -> None:
        if name not in self.state:
            raise Reject(f"there is no {name}", path="/name")
        self.set_state(lambda state: {key: value for key, value in state.items() if key != name})

    @endpoint("GET", "/found")
    def find(self, least: float = 0.0) -> Item | None:
        return None

    @endpoint("PATCH", "/whole")
    async def whole(self, request: Request) -> Response:
        who = None if request.state.principal is None else request.state.principal.id
        return JSONResponse({"body": (await request.body()).decode(), "who": who}, 202, {"x-shop": "1"})

    @endpoint("GET", "/lines")
    async def lines(self) -> Response:
        async def make() -> AsyncIterator[str]:
            yield "a\n"
            yield "b\n"

        return StreamingResponse(make(), media_type="text/plain")

    @endpoint("GET", "/broken")
    def broken(self) -> Any:
        raise ValueError("a secret")

    @endpoint("GET", "/object")
    def no_json(self) -> Any:
        return object()

    @endpoint("GET", "/wait", concurrent=True)
    async def wait(self) -> str:
        self.entered.set()
        await self.gate.wait()
        return "waited"

    @endpoint("GET", "/wait/alone")
    async def wait_alone(self) -> str:
        return await self.wait()

    @endpoint("POST", "/open", concurrent=True)
    def open(self) -> None:
        self.gate.set()

    @rpc
    async def until_entered(self) -> None:
        await self.entered.wait()

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse("on_request")


@pytest.fixture
def app(tmp_path: Path) -> Plait:
    return Plait(Shop, store=f"sqlite:///{tmp_path}/plait.db", limits=Limits(frame=1_000))


@pytest.fixture
async def web(app: Plait) -> AsyncIterator[httpx.AsyncClient]:
    async with running(app) as address, http(address) as web:
        assert (await web.put(PATH, json={"n": 0})).status_code == 200
        yield web


@each_case(
    ("path", "answer"),
    [
        ("/report/2024", {"year": 2024, "lines": False, "tags": None}),
        ("/report/2024?lines=true&tags=a&tags=b&other=1", {"year": 2024, "lines": True, "tags": ["a", "b"]}),
        ("/report/newest", "newest"),
        ("/report", ["others", ""]),
        ("/report/x", ["others", "x"]),
        ("/report/x%2Fy/z/", ["others", "x/y/z"]),
        ("/found?least=1.5", None),
    ],
)
async def test_a_request_finds_its_endpoint_and_its_arguments(web: httpx.AsyncClient, path: str, answer: Any) -> None:
    found = await web.get(f"{PATH}{path}")
    assert (found.status_code, found.json()) == (200, answer)
    assert found.headers["content-type"] == "application/json"


async def test_a_body_is_converted_to_its_annotation(web: httpx.AsyncClient) -> None:
    made = await web.post(f"{PATH}/items?times=3", json={"name": "pen"})
    assert (made.status_code, made.json()) == (200, {"name": "pen", "price": 0.0})
    assert (await web.get(PATH)).json() == {"n": 0, "pen": 3}
    assert (await web.post(f"{PATH}/notes", json={"text": "a"})).json() == {"text": "a"}
    assert (await web.put(f"{PATH}/blob", content=b"\xff\x00,,")).json() == 4


async def test_a_method_that_returns_nothing_answers_204(web: httpx.AsyncClient) -> None:
    await web.post(f"{PATH}/items", json={"name": "a/b"})
    removed = await web.delete(f"{PATH}/items/a%2Fb")
    assert (removed.status_code, removed.content) == (204, b"")
    assert (await web.get(PATH)).json() == {"n": 0}


async def test_a_response_is_sent_as_it_is(web: httpx.AsyncClient) -> None:
    answer = await web.patch(f"{PATH}/whole", content=b"what")
    assert (answer.status_code, answer.headers["x-shop"]) == (202, "1")
    assert answer.json() == {"body": "what", "who": None}
    assert (await web.get(f"{PATH}/lines")).text == "a\nb\n"


async def test_head_is_answered_as_get_without_the_body(web: httpx.AsyncClient) -> None:
    answer = await web.head(f"{PATH}/report/newest")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "8")


@each_case(
    ("method", "path", "body", "where"),
    [
        ("GET", "/report/2024?lines=perhaps", None, "/lines"),
        ("GET", "/found?least=nan", None, "/least"),
        ("GET", "/found?least=much", None, "/least"),
        ("POST", "/items", b"{", ""),
        ("POST", "/items", b"", ""),
        ("POST", "/items", b'{"name": 5}', "/name"),
        ("POST", "/items?times=x", b'{"name": "a"}', "/times"),
        ("POST", "/notes", b'{"text": []}', "/text"),
    ],
)
async def test_wrong_arguments_are_refused_with_their_place(
    web: httpx.AsyncClient, method: str, path: str, body: bytes | None, where: str
) -> None:
    answer = await web.request(method, f"{PATH}{path}", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["path"]) == (422, "invalid_arguments", where), error


async def test_a_body_may_be_nested_as_deep_as_an_argument_of_an_rpc(web: httpx.AsyncClient) -> None:
    deep, deeper = (b"[" * depth + b"]" * depth for depth in (64, 65))
    assert (await web.patch(f"{PATH}/any", content=deep)).content == deep
    refused = await web.patch(f"{PATH}/any", content=deeper)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_arguments")


async def test_errors_of_the_code_have_the_shape_of_all_errors(web: httpx.AsyncClient) -> None:
    refused = await web.delete(f"{PATH}/items/pen")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "rejected")
    broken = await web.get(f"{PATH}/broken")
    assert broken.status_code == 500
    assert "secret" not in broken.text
    unsent = await web.get(f"{PATH}/object")
    assert (unsent.status_code, unsent.json()["error"]["code"]) == (500, "call_failed")


async def test_an_endpoint_has_its_own_limit_of_the_body(web: httpx.AsyncClient) -> None:
    assert (await web.put(f"{PATH}/blob", content=b"x" * 10)).status_code == 200
    excess = await web.put(f"{PATH}/blob", content=b"x" * 11)
    assert (excess.status_code, excess.json()["error"]["code"]) == (413, "too_large")
    assert (await web.patch(f"{PATH}/whole", content=b"x" * 1_000)).status_code == 202
    assert (await web.patch(f"{PATH}/whole", content=b"x" * 1_001)).status_code == 413


async def test_a_client_is_not_charged_for_a_body_that_is_not_decoded(tmp_path: Path) -> None:
    class Box(Thread[None]):
        @endpoint("PUT", "/data", limit=20_000_000)
        def put(self, data: bytes) -> int:
            return len(data)

    app = Plait(Box, store=f"sqlite:///{tmp_path}/plait.db")
    async with running(app) as address, http(address) as web:
        await begin(app, Box)
        data = b"x" * 20_000_000
        assert (await web.put("/threads/box/one/data", content=data)).json() == len(data)
        assert (await web.put("/threads/box/one/data", content=b"")).json() == 0


async def test_a_thread_that_is_not_stored_is_not_found_and_not_made(web: httpx.AsyncClient) -> None:
    answer = await web.get("/threads/shop/none/report/2024")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (await web.post("/threads/shop/none/items", json={"name": "a"})).status_code == 404
    assert (await web.get("/threads/shop/none")).status_code == 404


async def test_what_no_endpoint_answers_goes_to_on_request(web: httpx.AsyncClient) -> None:
    assert (await web.post(f"{PATH}/report/2024")).text == "on_request"
    assert (await web.get(f"{PATH}/elsewhere")).text == "on_request"
    assert (await web.get(PATH)).json() == {"n": 0}


async def test_a_request_waits_for_the_turns_before_it(app: Plait, web: httpx.AsyncClient) -> None:
    first = asyncio.create_task(web.get(f"{PATH}/wait/alone"))
    actor = await app._node.actor(ThreadKey("shop", "one"))
    assert isinstance(actor.thread, Shop)
    await actor.thread.entered.wait()
    second = asyncio.create_task(web.get(f"{PATH}/report/newest"))
    await until(lambda: actor.turns.mailbox.length == 1)
    assert not second.done()
    await web.post(f"{PATH}/open")
    assert [(await each).json() for each in (first, second)] == ["waited", "newest"]


async def test_others_do_not_wait_for_a_concurrent_endpoint(web: httpx.AsyncClient) -> None:
    waiting = asyncio.create_task(web.get(f"{PATH}/wait"))
    await web.post(f"{PATH}/rpc/until_entered")
    assert (await web.post(f"{PATH}/open")).status_code == 204
    assert (await waiting).json() == "waited"


@each_case("path", ["value", "response", "concurrent", "hidden"])
async def test_an_answer_is_sent_only_when_its_changes_are_durable(path: str) -> None:
    class Counter(Thread[int]):
        initial_state = 0

        @endpoint("POST", "/value")
        def value(self) -> int:
            self.set_state(self.state + 1)
            return self.state

        @endpoint("POST", "/response")
        def response(self) -> Response:
            return JSONResponse(self.value())

        @endpoint("POST", "/concurrent", concurrent=True)
        async def add_beside(self) -> int:
            return self.value()

        @endpoint("POST", "/hidden")
        def hidden(self) -> None:
            self.value()

    store = TroubledStore()
    app = Plait(Counter, store=store)
    async with running(app) as address, http(address) as web:
        await begin(app, Counter)
        assert (await web.post(f"/threads/counter/one/{path}")).is_success
        store.is_held = True
        waiting = asyncio.create_task(web.post(f"/threads/counter/one/{path}"))
        await until(lambda: bool(store.waiting))
        store.fail_next()
        store.resume()
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_error")
        assert (await web.get("/threads/counter/one")).json() == 1


class Order(msgspec.Struct):
    id: int
    item: str


async def test_an_endpoint_reads_and_writes_the_tables_of_its_thread(tmp_path: Path) -> None:
    class Orders(Thread[None]):
        sql = Sql(migrations=["create table orders (id integer primary key, item text)"])

        @endpoint("POST", "/orders")
        async def order(self, request: Request) -> list[dict[str, Any]]:
            item = (await request.body()).decode()
            return await self.sql("insert into orders (item) values (?) returning id", item)

        @endpoint("GET", "/orders/{id:int}")
        async def one(self, id: int) -> Order | None:
            return (await self.sql("select * from orders where id = ?", id, into=Order) or [None])[0]

    for start in (1, 2):
        app = Plait(Orders, store=f"sqlite:///{tmp_path}/plait.db")
        async with running(app) as address, http(address) as web:
            await begin(app, Orders)
            assert (await web.get("/threads/orders/one/orders/2")).json() is None
            if start == 1:
                assert (await web.post("/threads/orders/one/orders", content=b"tea")).json() == [{"id": 1}]
            assert (await web.get("/threads/orders/one/orders/1")).json() == {"id": 1, "item": "tea"}


async def test_authorize_decides_by_the_action_request(tmp_path: Path) -> None:
    asked: list[str] = []

    def authorize(principal: Principal | None, key: ThreadKey, action: str) -> bool:
        asked.append(action)
        return principal is not None

    def authenticate(request: Request) -> Principal | None:
        return Principal("ada") if "authorization" in request.headers else None

    app = Plait(Shop, store=f"sqlite:///{tmp_path}/plait.db", authenticate=authenticate, authorize=authorize)
    async with running(app) as address, http(address) as web:
        await begin(app, Shop)
        assert (await web.get(f"{PATH}/report/2024")).status_code == 401
        assert (await web.get(f"{PATH}/report/nowhere/x", headers={"authorization": "x"})).status_code == 200
        answer = await web.patch(f"{PATH}/whole", headers={"authorization": "x"})
        assert answer.json()["who"] == "ada"
        assert {*asked} == {"request"}
