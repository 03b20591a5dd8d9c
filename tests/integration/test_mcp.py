"""The rpcs of a thread as tools of MCP: the published client uses them, with the rights of the other doors."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from msgspec import Struct
from starlette.requests import Request
from tests.cases import each_case
from tests.integration.socket_client import http
from tests.running import begin, running
from tests.server.parts.workshop import until

from plait import (
    Limits,
    MemoryStore,
    Plait,
    Principal,
    Reject,
    Step,
    Stream,
    Tasks,
    Thread,
    ThreadKey,
    current,
    rpc,
    task,
)
from plait.web.http import routes

pytestmark = pytest.mark.relayed(in_soak=True)

PATH = "/threads/room/one/mcp"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
HEADERS = {"accept": "application/json, text/event-stream"}

Era = Literal["auto", "legacy"]
"""How the client speaks: without a handshake, as since 2026, or with one."""

ERAS: list[Era] = ["auto", "legacy"]


class Item(Struct):
    """The content of the room."""

    name: str
    count: int = 1


class Room(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"items": []})
    tasks = Tasks()

    @rpc
    def put(self, item: Item, *, note: str | None = None) -> int:
        """Put an item into the room."""
        self.set_state(lambda state: {"items": [*state["items"], item.name]})
        return len(self.state["items"])

    @rpc
    async def count(self, upto: int) -> AsyncIterator[Any]:
        for number in range(upto):
            yield number

    @rpc
    async def speak(self, stream: Stream) -> None:
        for word in ("one ", "two ", "three"):
            stream.send(word)
        stream.end()

    @rpc
    async def break_off(self) -> AsyncIterator[str]:
        yield "half"
        raise Reject("no more")

    @rpc
    async def pour(self) -> AsyncIterator[str]:
        while True:
            yield "x" * 1000

    @rpc(name="who-am-i")
    def tell(self) -> str:
        connection = current().connection
        assert connection is not None
        return "anonymous" if connection.principal is None else connection.principal.id

    @rpc
    def refuse(self) -> None:
        raise Reject("the room is full")

    @rpc
    def fail(self) -> None:
        raise KeyError("a secret")

    @rpc(clients=False)
    def grant(self) -> str:
        return "granted"

    @task(clients=True)
    async def work(self, step: Step) -> None: ...


async def authenticate(request: Request) -> Principal | None:
    user = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Principal(user) if user else None


def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    """Ada may do everything in the room `one`, Bob all but begin it, and Eve may only watch."""
    assert principal is not None
    if thread.name != "one" or principal.id == "joe":
        return False
    return principal.id == "ada" or action not in {"bob": {"create"}, "eve": {"write"}}[principal.id]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    options: dict[str, Any] = {"store": MemoryStore()} | settings
    async with running(Plait(Room, **options)) as address:
        yield address


@asynccontextmanager
async def using(address: str, *, path: str = PATH, mode: Era = "auto", **headers: str) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers=headers, trust_env=False) as web:
        transport = streamable_http_client(f"http://{address}{path}", http_client=web)
        async with Client(transport, mode=mode) as client:
            yield client


def read(result: CallToolResult) -> str:
    """Return the text of a result, after `error` if it is one."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return f"{'error ' if result.is_error else ''}{content.text}"


async def post(address: str, *, path: str = PATH, body: Any = LIST, **headers: str) -> tuple[int, Any]:
    async with http(address) as web:
        answer = await web.post(path, json=body, headers={**HEADERS, **headers})
        return answer.status_code, answer.json() if answer.content else None


# What the published client sees


@pytest.mark.parametrize("mode", ERAS)
async def test_the_published_client_calls_rpcs(mode: Era) -> None:
    async with serving() as address, using(address, mode=mode) as client:
        assert [read(await client.call_tool("put", {"item": {"name": name}})) for name in "ab"] == ["1", "2"]
        assert read(await client.call_tool("put", {"item": {"name": "c", "count": 2}, "note": "x"})) == "3"
        assert read(await client.call_tool("who-am-i")) == "anonymous"
        async with http(address) as web:
            assert (await web.get("/threads/room/one")).json() == {"items": ["a", "b", "c"]}


@pytest.mark.parametrize("mode", ERAS)
async def test_tools_are_the_rpcs_for_clients_as_their_types_and_docstrings_describe_them(mode: Era) -> None:
    async with serving() as address, using(address, mode=mode) as client:
        tools = {each.name: each for each in (await client.list_tools()).tools}
    names = {"put", "count", "speak", "break_off", "pour", "who-am-i", "refuse", "fail"}
    assert tools.keys() == names  # Neither `grant`, which is for handles, nor the methods of tasks.
    put = tools["put"]
    assert put.description == "Put an item into the room."
    assert put.input_schema["properties"]["item"] == {"$ref": "#/$defs/Item"}
    assert put.input_schema["$defs"]["Item"]["required"] == ["name"]
    assert put.input_schema["required"] == ["item"]
    assert tools["speak"].input_schema["properties"] == {}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_stream_is_joined(mode: Era) -> None:
    async with serving() as address, using(address, mode=mode) as client:
        assert read(await client.call_tool("speak")) == "one two three"
        assert read(await client.call_tool("count", {"upto": 3})) == "0\n1\n2\n"
        assert read(await client.call_tool("count", {"upto": 0})) == ""
        assert read(await client.call_tool("break_off")) == "error no more"


async def test_a_stream_without_an_end_is_bounded() -> None:
    async with serving(limits=Limits(write_buffer=20_000)) as address, using(address) as client:
        assert "more than 20000 bytes" in read(await client.call_tool("pour"))
        assert read(await client.call_tool("speak")) == "one two three"


class Watched(Thread[None]):
    calls = 0

    @rpc
    async def watch(self) -> AsyncIterator[str]:
        Watched.calls += 1
        try:
            yield "x"
            await asyncio.Event().wait()
        finally:
            Watched.calls -= 1


async def test_a_stream_ends_if_its_client_leaves() -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "watch"}}
    async with running(Plait(Watched, store=MemoryStore())) as address:
        leaving = asyncio.create_task(post(address, path="/threads/watched/one/mcp", body=call))
        await until(lambda: Watched.calls == 1)
        leaving.cancel()
        await until(lambda: Watched.calls == 0)


@pytest.mark.parametrize("mode", ERAS)
async def test_errors_are_results_with_the_public_text(mode: Era) -> None:
    async with serving() as address, using(address, mode=mode) as client:
        assert read(await client.call_tool("refuse")) == "error the room is full"
        told = read(await client.call_tool("fail"))
        assert told.startswith("error internal error ")
        assert "secret" not in told
        told = read(await client.call_tool("put", {"item": {"name": 1}}))
        assert told == "error put: item/name: Expected `str`, got `int`"
        assert read(await client.call_tool("put", {})) == "error put: 'item' is missing"
        assert "is not an argument" in read(await client.call_tool("count", {"self": 1}))


@each_case("name", ["grant", "nothing", "tasks:cancel", "task:work", "set_state", "_decode"])
async def test_what_is_no_rpc_for_clients_is_no_tool(name: str) -> None:
    async with serving() as address, using(address) as client:
        with pytest.raises(MCPError, match="there is no tool"):
            await client.call_tool(name)


# Rights


async def test_a_client_needs_a_token_and_is_the_principal_of_its_calls() -> None:
    async with serving(authenticate=authenticate, authorize=authorize) as address:
        assert (await post(address))[0] == 401
        async with using(address, authorization="Bearer ada") as client:
            assert read(await client.call_tool("who-am-i")) == "ada"


async def test_a_client_uses_only_the_threads_that_it_may_call() -> None:
    async with serving(authenticate=authenticate, authorize=authorize) as address:
        for user, path in (("joe", PATH), ("ada", "/threads/room/two/mcp")):
            status, answer = await post(address, path=path, authorization=f"Bearer {user}")
            assert status == 403, (user, path)
            assert answer["error"]["code"] == "forbidden"


async def test_a_call_begins_a_thread_only_if_the_client_may_create_it() -> None:
    app = Plait(Room, store=MemoryStore(), authenticate=authenticate, authorize=authorize)
    async with running(app) as address, using(address, authorization="Bearer bob") as client:
        assert len((await client.list_tools()).tools) == 8
        assert read(await client.call_tool("who-am-i")) == "error you may not create room/one"
        await begin(app, Room)
        assert read(await client.call_tool("who-am-i")) == "bob"


async def test_a_client_that_may_not_write_is_readonly() -> None:
    item = {"item": {"name": "x"}}
    async with serving(authenticate=authenticate, authorize=authorize) as address:
        async with using(address, authorization="Bearer ada") as client:
            assert read(await client.call_tool("put", item)) == "1"
        async with using(address, authorization="Bearer eve") as client:
            assert read(await client.call_tool("put", item)) == "error Connection is readonly"
            assert read(await client.call_tool("who-am-i")) == "eve"


async def test_pages_of_other_origins_and_unknown_hosts_are_refused() -> None:
    async with serving() as address:
        assert (await post(address))[0] == 200
        assert (await post(address, origin="https://evil.example"))[0] == 403
        assert (await post(address, host="evil.example"))[0] == 421


async def test_a_kind_that_is_not_served_is_not_found() -> None:
    async with serving() as address:
        assert (await post(address, path="/threads/hall/one/mcp"))[0] == 404


async def test_the_limits_of_requests_hold() -> None:
    async with serving(limits=Limits(frame=2000, depth=8, messages_per_second=1, message_burst=3)) as address:
        assert (await post(address, body={**LIST, "params": {"x": "x" * 2000}}))[0] == 413
        nested: Any = 1
        for _ in range(20):
            nested = [nested]
        assert (await post(address, body={**LIST, "params": {"x": nested}}))[0] == 422
        assert (await post(address))[0] == 200
        assert (await post(address))[0] == 429


# The protocol


async def test_there_is_no_stream_and_no_session_to_end() -> None:
    async with serving() as address, http(address) as web:
        for method in ("GET", "DELETE"):
            answer = await web.request(method, PATH, headers=HEADERS)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@each_case("body", [[LIST], {}, 1, {"jsonrpc": "2.0", "id": 1, "method": "resources/list"}])
async def test_what_is_no_request_of_mcp_is_an_error_of_json_rpc(body: Any) -> None:
    async with serving() as address:
        status, answer = await post(address, body=body)
        assert status in (200, 400)
        assert answer["error"]["code"] < 0


async def test_a_request_for_a_stream_of_the_server_does_not_hold_the_loop() -> None:
    version = "2026-07-28"
    meta = {"protocolVersion": version, "clientInfo": {"name": "test", "version": "1"}, "clientCapabilities": {}}
    params = {"_meta": {f"io.modelcontextprotocol/{name}": value for name, value in meta.items()}, "notifications": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {"mcp-protocol-version": version, "mcp-method": "subscriptions/listen"}
    async with serving() as address:
        assert (await post(address, body=body, **headers))[1]["error"]["message"] == "Method not found"
        assert (await post(address))[0] == 200


async def test_notifications_are_accepted() -> None:
    async with serving() as address:
        body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await post(address, body=body))[0] == 202


async def test_clients_that_call_at_the_same_time_are_all_answered() -> None:
    async with serving() as address, using(address) as client:
        results = await asyncio.gather(*(client.call_tool("put", {"item": {"name": "x"}}) for _ in range(20)))
        assert sorted(int(read(each)) for each in results) == [*range(1, 21)]


@pytest.mark.local
async def test_without_the_extra_the_answer_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plait.web.http.mcp", None)
    routes._import_mcp.cache_clear()
    async with serving() as address:
        status, answer = await post(address)
        assert (status, answer["error"]["message"]) == (501, "MCP needs an extra: pip install 'plait[mcp]'")
