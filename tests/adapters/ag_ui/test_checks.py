"""The checks of AG-UI requests, and their maximum cost."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from ag_ui.core import RunAgentInput
from starlette.requests import Request
from tests.adapters.ag_ui.lab import Conversation
from tests.adapters.ag_ui.streams import Served, begun, body, serving, watched
from tests.cases import each_case
from tests.integration.socket_client import http
from tests.integration.test_http import error_of
from tests.running import running
from tests.server.parts.workshop import until

from plait import Connection, Context, Limits, MemoryStore, Plait, Principal, Thread, ThreadKey
from plait.adapters.ag_ui import AgUi

pytestmark = pytest.mark.relayed


@each_case(
    ("content", "path"),
    [
        (b"{", ""),
        (b"[]", ""),
        (b'{"threadId":"t","runId":"r"}', "/messages"),
        (b'{"threadId":"t","runId":1,"messages":[]}', "/runId"),
        (b"[" * 5000, ""),
        (json.dumps(body(state={"n": 0})).replace("0", "NaN").encode(), ""),
        (json.dumps(body(forwardedProps={"n": 0})).replace(": 0", ": 1e400").encode(), "/*/*"),
        (json.dumps(body(state={"n": 0})).replace("0", "[" * 70 + "]" * 70).encode(), ""),
    ],
)
async def test_a_body_that_is_no_input_is_refused_with_its_place(served: Served, content: bytes, path: str) -> None:
    answer = await served.web.post("/ag-ui/adder/one", content=content)
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["path"] == path
    assert [each async for each in served.app.threads()] == []


@each_case(
    ("content", "path"),
    [
        (b'{"message": "\xff"}', ""),
        (b'{"message": ' + b"[" * 70 + b"]" * 70 + b"}", "/message"),
        (b'{"other": 1}', ""),
        (b"[1]", ""),
        (b"{", ""),
    ],
)
async def test_an_interrupt_is_read_as_elsewhere(served: Served, content: bytes, path: str) -> None:
    answer = await served.web.post("/ag-ui/writer/one/interrupt", content=content)
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["path"] == path
    elsewhere = await served.web.post("/threads/conversation/one/interrupt", content=content)
    assert (elsewhere.status_code, elsewhere.json()) == (422, answer.json())


@pytest.mark.local
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "nobody/one"), ("GET", "writer/one"), ("POST", "writer"), ("POST", "writer/one/more"), ("GET", "")],
)
async def test_what_is_not_there_is_404(served: Served, method: str, path: str) -> None:
    assert error_of(await served.web.request(method, f"/ag-ui/{path}")) == (404, "not_found")


async def test_a_name_may_have_a_slash(served: Served) -> None:
    async with begun(served.web, "adder/a%2Fb%20%C3%A9") as stream:
        await stream.rest()
    assert [each.key async for each in served.app.threads()] == [ThreadKey("conversation", "a/b é")]


async def test_pages_of_other_origins_and_unknown_hosts_are_refused(served: Served) -> None:
    answer = await served.web.post("/ag-ui/adder/one", json=body(), headers={"Origin": "https://evil.example"})
    assert error_of(answer) == (403, "forbidden")
    answer = await served.web.post("/ag-ui/adder/one", json=body(), headers={"Host": "evil.example"})
    assert answer.status_code == 421


async def test_clients_are_asked_who_they_are_and_may_do_what_they_may() -> None:
    def authenticate(request: Request) -> Principal | None:
        name = request.headers.get("authorization")
        return None if name is None else Principal(name)

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        assert principal is not None
        return {"reader": action in ("read", "connect"), "caller": action != "read", "one": action != "write"}.get(
            principal.id, True
        )

    async with serving(authenticate=authenticate, authorize=authorize) as served:
        web = served.web

        async def post(who: str | None, **more: Any) -> httpx.Response:
            headers = {} if who is None else {"authorization": who}
            return await web.post("/ag-ui/adder/one", json=body(**more), headers=headers)

        assert error_of(await post(None)) == (401, "unauthenticated")
        assert error_of(await post("reader")) == (403, "forbidden")
        assert error_of(await post("caller")) == (403, "forbidden")
        first = await post("all")
        assert "RUN_FINISHED" in first.text
        version = json.loads(first.text.partition('"stateVersion":')[2].partition("}")[0])
        changed = {"answer": "", "steps": [], "note": "x"}
        refused = await post("one", state=changed, forwardedProps={"stateVersion": version})
        assert '"code":"readonly"' in refused.text
        answer = await web.get("/ag-ui/adder/one/events", headers={"authorization": "caller"})
        assert error_of(answer) == (403, "forbidden")
        # The thread is there, so nothing is left to refuse but the call.
        assert error_of(await post("reader")) == (403, "forbidden")
        answer = await web.post("/ag-ui/adder/one/interrupt", headers={"authorization": "reader"})
        assert error_of(answer) == (403, "forbidden")


async def test_a_session_is_its_users_alone_though_its_name_can_be_guessed() -> None:
    async with serving(authenticate=lambda request: Principal(request.headers["authorization"])) as served:
        web, alice = served.web, {"authorization": "alice"}
        for name in ("alice:s1", "alice:%2573%2531"):
            assert "RUN_FINISHED" in (await web.post(f"/ag-ui/adder/{name}", json=body(), headers=alice)).text
            for method, path in (("POST", ""), ("GET", "/events"), ("POST", "/interrupt")):
                content = json.dumps(body()) if path == "" else None
                url, bob = f"/ag-ui/adder/{name}{path}", {"authorization": "bob"}
                async with web.stream(method, url, content=content, headers=bob) as answer:
                    assert answer.status_code == 403


class Shown(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012

    def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        return "readonly" in request.headers


async def test_who_is_readonly_to_the_thread_cannot_push_a_state() -> None:
    app = Plait(Shown, store=MemoryStore(), secret="s")

    @app.agent("show", thread=Shown)
    async def show(ctx: Context[Shown]) -> dict[str, int]:
        return ctx.thread.state

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web:
        first = await web.post("/ag-ui/show/one", json=body())
        version = json.loads(first.text.partition('"stateVersion":')[2].partition("}")[0])
        pushed = body(state={"n": 1}, forwardedProps={"stateVersion": version})
        refused = await web.post("/ag-ui/show/one", json=pushed, headers={"readonly": "1"})
        assert '"code":"readonly"' in refused.text
        assert '"result":{"n":1}' in (await web.post("/ag-ui/show/one", json=pushed)).text


async def test_a_refused_run_says_that_the_state_which_came_with_it_is_stored() -> None:
    async with serving() as served:
        state = {"answer": "", "steps": [], "note": "x"}
        async with begun(served.web, "writer/one", text="a") as first:
            version = (await first.until("STATE_SNAPSHOT"))["metadata"]["stateVersion"]
            await served.gate.reached()
            pushed = {"state": state, "forwardedProps": {"stateVersion": version}}
            async with begun(served.web, "adder/one", **pushed) as changed, begun(served.web, "adder/one") as other:

                async def is_changed() -> bool:
                    return (await served.app.thread(Conversation, "one").state()).note == "x"

                await until(is_changed)
                served.app.drain()
                for stream, code in ((changed, "indeterminate"), (other, "unavailable")):
                    await stream.rest()
                    assert stream.events[-1]["code"] == code
            served.gate.open()


async def test_a_request_that_is_repeated_does_not_wait_for_one_that_has_failed() -> None:
    joined: list[str] = []
    both = asyncio.Event()

    class Picky(Thread[None]):
        async def on_connect(self, connection: Connection, request: Request) -> None:
            joined.append(connection.id)
            if len(joined) == 1:
                await both.wait()
                raise ValueError("not the first one")

    asked: list[str] = []

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        asked.append(action)
        if asked.count("messages") == 2:
            both.set()
        return True

    app = Plait(Picky, store=MemoryStore(), secret="s", authorize=authorize)

    @app.agent("show", thread=Picky)
    async def show(ctx: Context[Picky]) -> None: ...

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web, asyncio.timeout(10):
        content = json.dumps(body())
        first, second = await asyncio.gather(*(web.post("/ag-ui/show/one", content=content) for _ in range(2)))
        assert sorted(each.status_code for each in (first, second)) == [200, 500]
        assert '"code":"unavailable"' in first.text + second.text


async def test_nothing_keeps_or_delays_a_stream_on_its_way(served: Served) -> None:
    answer = await served.web.post("/ag-ui/adder/one", json=body())
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")


async def test_a_stream_ends_when_the_token_expires_and_the_run_goes_on() -> None:
    def authenticate(request: Request) -> Principal:
        return Principal("ada", expires_at=time.time() + 1)

    async with serving(authenticate=authenticate) as served:
        async with begun(served.web, "writer/one", text="a") as stream:
            assert await stream.rest() == ["RUN_STARTED", "STATE_SNAPSHOT"]
        async with watched(served.web, "writer/one") as viewer:
            await viewer.until("STATE_SNAPSHOT")
            served.gate.open()
            assert (await viewer.rest())[-1] == "RUN_FINISHED"


async def test_large_bodies_and_too_many_viewers_are_refused() -> None:
    async with serving(limits=Limits(frame=2000, connections_per_thread=1)) as served:
        answer = await served.web.post("/ag-ui/adder/one", json=body("x" * 3000))
        assert error_of(answer) == (413, "too_large")
        async with begun(served.web, "writer/one") as stream:
            await stream.until("STATE_SNAPSHOT")
            assert error_of(await served.web.get("/ag-ui/writer/one/events")) == (429, "rate_limited")
            served.gate.open(3)
            await stream.rest()


MESSAGE = {"id": "", "role": "user", "content": ""}
PART = {"type": "text", "text": ""}


@each_case(
    "items",
    [
        {"messages": [MESSAGE] * 6_000},
        {"messages": [{"role": "nobody"}] * 8_000},
        {"messages": [*[1] * 53_000, {**MESSAGE, "content": [PART]}]},
        {"messages": [{**MESSAGE, "content": [PART] * 3_300}] * 2},
        {"messages": [{"id": "", "role": "assistant", "toolCalls": [{}] * 7_600}]},
        {"messages": [], "tools": [{}] * 4_000, "context": [{}] * 3_600},
        {"messages": [], "resume": [{}] * 7_600},
        {"messages": [{"id": "", "role": "assistant", "tool_calls": [{}] * 7_600}]},
    ],
)
async def test_a_body_with_too_many_items_is_refused_before_each_is_validated(
    served: Served, items: dict[str, Any]
) -> None:
    answer = await served.web.post("/ag-ui/adder/one", json={**body(), **items})
    assert error_of(answer) == (413, "too_large")
    assert "10 times for a model" in answer.json()["error"]["message"]


async def test_the_state_and_forwarded_props_come_as_they_were_sent() -> None:
    app = Plait(Shown, store=MemoryStore(), secret="s")

    @app.agent("show", thread=Shown)
    async def show(ctx: Context[Shown]) -> Any:
        given = ctx.get(RunAgentInput)
        assert given is not None
        return [given.state, given.forwarded_props, given.model_dump(by_alias=True)["forwardedProps"]]

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web:
        for name in ("forwardedProps", "forwarded_props"):
            async with begun(web, "show/one", state={"a": None}, **{name: {"b": [1]}}) as stream:
                await stream.rest()
            assert stream.events[-1]["result"] == [{"a": None}, {"b": [1]}, {"b": [1]}]


@each_case("member", ["state", "forwardedProps", "unknown"])
async def test_a_body_of_too_much_weight_is_refused_before_it_is_decoded(served: Served, member: str) -> None:
    answer = await served.web.post("/ag-ui/adder/one", json={**body(), member: [{}] * 100_000})
    assert error_of(answer) == (413, "too_large")
    assert "weight" in answer.json()["error"]["message"]


async def test_requests_are_counted() -> None:
    async with serving(limits=Limits(messages_per_second=0.001, message_burst=3)) as served:
        answers = [await served.web.get("/ag-ui/adder/none/events") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [404, 404, 404, 429]


@pytest.mark.parametrize("path", ["adder/one", "adder/one/interrupt"])
async def test_a_large_body_counts_as_many_requests(path: str) -> None:
    async with serving(limits=Limits(messages_per_second=0.001, message_burst=20)) as served:
        codes = [(await served.web.post(f"/ag-ui/{path}", content=b"[" + b" " * 500_000)).status_code for _ in "ab"]
        assert codes == [422, 429]
