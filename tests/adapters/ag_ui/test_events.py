"""The stream of AG-UI over HTTP: its ids, coming back, checks and limits."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonpatch
import pytest
from ag_ui.core import Event, StepStartedEvent, ToolCallStartEvent
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from tests.adapters.ag_ui.lab import TIMEOUT, Conversation, Gate, make_app, until_connected
from tests.integration.socket_client import http
from tests.integration.test_http import error_of
from tests.running import running

from plait import Connection, Context, Limits, MemoryStore, Plait, Principal, Thread, ThreadKey
from plait.adapters.ag_ui import AgUi, emit

EVENTS = TypeAdapter[Any](Event)


class Stream:
    """One stream of events; `ids` are those that came, by their order."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.ids: list[str] = []
        self.events: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any] | None:
        """Return the next event, None at the end."""
        async with asyncio.timeout(TIMEOUT):
            async for line in self._lines:
                if line.startswith("id:"):
                    self.ids.append(line[3:].strip())
                elif line.startswith("data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    EVENTS.validate_python(event)
                    self.events.append(event)
                    return event
        return None

    async def until(self, type: str) -> dict[str, Any]:
        while (event := await self.next()) is not None:
            if event["type"] == type:
                return event
        raise AssertionError(f"no {type} came, but {self.types}")

    async def rest(self) -> list[str]:
        """Read up to the end, and return the types of all events."""
        while await self.next() is not None:
            pass
        return self.types

    @property
    def types(self) -> list[str]:
        return [each["type"] for each in self.events]


def body(text: str = "a b c", **more: Any) -> dict[str, Any]:
    message = {"id": "1", "role": "user", "content": text}
    return {"threadId": "t", "runId": "r", "messages": [message], **more}


@asynccontextmanager
async def begun(web: httpx.AsyncClient, path: str, **more: Any) -> AsyncIterator[Stream]:
    """Begin a run."""
    async with web.stream("POST", f"/ag-ui/{path}", json=body(**more)) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer)


@asynccontextmanager
async def watched(web: httpx.AsyncClient, path: str, id: str = "") -> AsyncIterator[Stream]:
    """Watch a run, or come back."""
    headers = {"Last-Event-ID": id} if id else {}
    async with web.stream("GET", f"/ag-ui/{path}/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Stream(answer)


class Served:
    """A served app, and a client of it."""

    def __init__(self, app: Plait, web: httpx.AsyncClient) -> None:
        self.app = app
        self.web = web
        self.gate: Gate = app.gate  # type: ignore[attr-defined]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    app = make_app(**{"store": MemoryStore(), **settings})
    async with running(app) as address, http(address) as web:
        yield Served(app, web)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as served:
        yield served


# Ids, and coming back


async def test_ids_are_versions_and_a_place_where_no_version_has_come(served: Served) -> None:
    async with begun(served.web, "writer/one") as stream:
        served.gate.open(3)
        await stream.rest()
    for id, event in zip(stream.ids, stream.events, strict=True):
        if event["type"] == "STATE_DELTA":
            assert id == event["metadata"]["stateVersion"]
        else:
            assert len(id.split(":")) == 3
    assert stream.ids[0].endswith(".start")
    assert stream.ids[-1].endswith(".end")


async def test_who_comes_back_from_any_event_has_in_all_what_others_have(served: Served) -> None:
    async with begun(served.web, "writer/one", text="a b c d") as stream:
        served.gate.open(4)
        await stream.rest()
    for place, id in enumerate(stream.ids[:-1]):
        async with watched(served.web, "writer/one", id) as again:
            await again.rest()
        assert [each["type"] for each in again.events if each["type"][:5] != "STATE"] == [
            each["type"] for each in stream.events[place + 1 :] if each["type"][:5] != "STATE"
        ]
        if id.endswith(".start"):
            continue  # Its state comes with what is left of the run, which has ended.
        state = next(each["snapshot"] for each in stream.events if each["type"] == "STATE_SNAPSHOT")
        for event in (*stream.events[: place + 1], *again.events):
            if event["type"] == "STATE_DELTA":
                state = jsonpatch.apply_patch(state, event["delta"])
            elif event["type"] == "STATE_SNAPSHOT":
                state = event["snapshot"]
        assert state["answer"] == "abcd"


async def test_who_comes_back_to_a_run_that_nobody_watched_gets_the_state_as_it_is(served: Served) -> None:
    async with begun(served.web, "writer/one", text="a b c d") as stream:
        served.gate.open()
        await stream.until("STATE_DELTA")
    await until_connected(served.app, 0)
    for _ in range(2):
        await served.gate.reached()
        served.gate.open()
    for _ in range(2):
        await served.gate.reached()
    async with watched(served.web, "writer/one", stream.ids[-1]) as again:
        assert (await again.until("STATE_SNAPSHOT"))["snapshot"]["answer"] == "abc"
        served.gate.open()
        assert (await again.rest())[-1] == "RUN_FINISHED"
    texts = [each["delta"] for each in again.events if each["type"] == "TEXT_MESSAGE_CONTENT"]
    assert texts == ["a", "b", "c", "d"]


async def test_who_has_seen_the_end_waits_for_the_next_run(served: Served) -> None:
    async with begun(served.web, "writer/one", text="a") as stream:
        served.gate.open()
        await stream.rest()
    async with watched(served.web, "writer/one", stream.ids[-1]) as viewer:
        async with begun(served.web, "writer/one", text="b") as second:
            served.gate.open()
            await second.rest()
        await viewer.rest()
    assert viewer.events == second.events


async def test_who_was_away_for_a_whole_run_gets_that(served: Served) -> None:
    async with begun(served.web, "writer/one", text="a") as stream:
        served.gate.open()
        await stream.rest()
    async with begun(served.web, "writer/one", text="b") as second:
        served.gate.open()
        await second.rest()
    async with watched(served.web, "writer/one", stream.ids[-1]) as viewer:
        types = await viewer.rest()
    assert (types[:2], types[-1]) == (["RUN_STARTED", "STATE_SNAPSHOT"], "RUN_FINISHED")
    assert viewer.events[1]["snapshot"]["answer"] == "ab"


@pytest.mark.parametrize("id", ["{epoch}:1:00000000.3", "{epoch}:999", "elsewhere:1"])
async def test_who_comes_back_to_a_run_that_is_not_kept_is_told_to_connect_anew(served: Served, id: str) -> None:
    async with begun(served.web, "writer/one", text="a b") as stream:
        served.gate.open()
        await stream.until("STATE_DELTA")
        epoch = stream.ids[0].partition(":")[0]
        async with watched(served.web, "writer/one", id.format(epoch=epoch)) as viewer:
            assert await viewer.rest() == ["RUN_ERROR"]
        assert (viewer.ids, viewer.events[0]["code"]) == ([""], "gone")
        served.gate.open()
        await stream.rest()


async def test_an_id_that_is_none_is_refused(served: Served) -> None:
    async with begun(served.web, "adder/one") as stream:
        await stream.rest()
    answer = await served.web.get("/ag-ui/adder/one/events", headers={"Last-Event-ID": "nonsense"})
    assert error_of(answer) == (422, "invalid_arguments")


async def test_who_comes_late_to_a_long_run_gets_no_part_of_a_text_that_has_begun_before() -> None:
    async with serving(limits=Limits(write_buffer=4096)) as served:
        words = [f"word{n}" for n in range(60)]
        async with begun(served.web, "writer/one", text=" ".join(words)) as stream:
            for _ in range(50):
                served.gate.open()
                await stream.until("TEXT_MESSAGE_CONTENT")
            async with watched(served.web, "writer/one") as viewer:
                assert (await viewer.until("STATE_SNAPSHOT"))["snapshot"]["answer"] == "".join(words[:50])
                for _ in range(10):
                    served.gate.open()
                    await stream.until("TEXT_MESSAGE_CONTENT")
                    await viewer.until("STATE_DELTA")
                types = await viewer.rest()
            await stream.rest()
    assert types[0] == "RUN_STARTED"
    assert set(types[2:-1]) == {"STATE_DELTA"}
    assert viewer.events[-2]["delta"][0]["value"] == "".join(words)


async def test_a_viewer_who_reads_too_slowly_is_cut_off_and_the_run_goes_on() -> None:
    async with serving(limits=Limits(write_buffer=4096)) as served:
        words, ended = ["word"] * 5000, asyncio.Event()
        served.app.on("agent.completed", lambda _: ended.set())
        async with served.web.stream("POST", "/ag-ui/writer/two", json=body(" ".join(words))) as answer:
            served.gate.open(5000)
            async with asyncio.timeout(TIMEOUT):
                await ended.wait()
            text = await answer.aread()
        assert len((await served.app.thread(Conversation, "two").state()).answer) == 4 * 5000
    assert b"RUN_FINISHED" not in text
    assert text.startswith(b"id: ")


async def test_a_viewer_of_a_thread_that_is_not_there_gets_404_and_begins_none(served: Served) -> None:
    assert error_of(await served.web.get("/ag-ui/adder/none/events")) == (404, "not_found")
    assert [each async for each in served.app.threads()] == []


# Deltas


class Sheet(Thread[dict[str, Any]]):
    initial_state = {"texts": {"a": "", "b": "x"}, "list": [{"id": 1, "text": "one"}], "n": 0}  # noqa: RUF012
    texts = ("/texts/*", "/list/*/text")


async def test_deltas_lead_to_each_version_whatever_a_change_is_made_of() -> None:
    dice = random.Random(7)
    app = Plait(Sheet, store=MemoryStore(), secret="s")

    def change(thread: Thread[Any]) -> None:
        state = thread.state
        match dice.randrange(6):
            case 0:
                thread.append(f"/texts/{dice.choice('ab')}", "é𝄞"[dice.randrange(2)])
            case 1:
                thread.update("/n", dice.random())
            case 2:
                thread.set_state({**state, "list": [{"id": dice.random(), "text": "t"}, *state["list"]]})
            case 3 if state["list"]:
                thread.append(f"/list/{dice.randrange(len(state['list']))}/text", "!")
            case 4:
                thread.set_state({**state, "list": dice.sample(state["list"], len(state["list"]))})
            case _:
                thread.splice("/texts/b", 0, 0, "y")

    @app.agent("change", thread=Sheet)
    async def agent(ctx: Context) -> None:
        for _ in range(60):
            with ctx.thread.transaction():
                for _ in range(dice.randrange(1, 4)):
                    change(ctx.thread)
            await ctx.checkpoint()

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web:
        async with begun(web, "change/one") as stream:
            await stream.rest()
        state: Any = None
        seen = 0
        for event in stream.events:
            if event["type"] == "STATE_SNAPSHOT":
                state = event["snapshot"]
            elif event["type"] == "STATE_DELTA":
                assert {op["op"] for op in event["delta"]} <= {"add", "remove", "replace"}
                state = jsonpatch.apply_patch(state, event["delta"])
                version = event["metadata"]["stateVersion"].rpartition(":")[2]
                assert state == (await web.get(f"/threads/sheet/one?at={version}")).json()
                seen += 1
        assert seen > 40


# What agents emit


class Silent(Thread[dict[str, Any]]):
    initial_state = {"secret": 1}  # noqa: RUF012

    def should_send_protocol_messages(self, connection: Connection, request: Request) -> bool:
        return False


async def test_who_gets_no_state_gets_none_here_either() -> None:
    app = Plait(Silent, store=MemoryStore(), secret="s")

    @app.agent("teller", thread=Silent)
    async def agent(ctx: Context) -> AsyncIterator[str]:
        ctx.thread.set_state({"secret": 2})
        yield "told"

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web, begun(web, "teller/one") as stream:
        types = await stream.rest()
    assert [each for each in types if each.startswith("STATE")] == []
    assert types[-1] == "RUN_FINISHED"


async def test_what_is_left_open_is_ended_before_the_run(served: Served) -> None:
    app = Plait(Sheet, store=MemoryStore(), secret="s")

    @app.agent("open", thread=Sheet)
    async def agent(ctx: Context) -> AsyncIterator[Any]:
        yield StepStartedEvent(step_name="s")
        yield "text"
        emit(ctx, ToolCallStartEvent(tool_call_id="t", tool_call_name="n"))

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web, begun(web, "open/one") as stream:
        types = await stream.rest()
    assert types[-6:] == [
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_END",
        "STEP_FINISHED",
        "RUN_FINISHED",
    ]


async def test_events_of_agents_cannot_be_taken_for_those_of_the_run() -> None:
    app = Plait(Sheet, store=MemoryStore(), secret="s")

    @app.agent("liar", thread=Sheet)
    async def agent(ctx: Context) -> None:
        emit(ctx, EVENTS.validate_python({"type": "STATE_SNAPSHOT", "snapshot": {}}))

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web, begun(web, "liar/one") as stream:
        assert await stream.rest() == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_ERROR"]
    assert "STATE_SNAPSHOT is sent by itself" in stream.events[-1]["message"]


# Interrupts over HTTP


async def test_a_run_is_interrupted_over_http(served: Served) -> None:
    async with begun(served.web, "writer/one") as stream:
        await stream.until("STATE_SNAPSHOT")
        answer = await served.web.post("/ag-ui/writer/one/interrupt", json={"message": "stop"})
        assert answer.json() == {"interrupted": True}
        served.gate.open()
        await stream.rest()
    assert stream.events[-1]["outcome"] == {"type": "cancelled"}
    answer = await served.web.post("/ag-ui/writer/two/interrupt")
    assert answer.json() == {"interrupted": False}
    answer = await served.web.post("/ag-ui/writer/one/interrupt", content=b"[1]")
    assert error_of(answer) == (422, "invalid_arguments")


# Checks and limits


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b"{", ""),
        (b"[]", ""),
        (b'{"threadId":"t","runId":"r"}', "/messages"),
        (b'{"threadId":"t","runId":1,"messages":[]}', "/runId"),
        (b"[" * 5000, ""),
    ],
)
async def test_a_body_that_is_no_input_is_refused_with_its_place(served: Served, content: bytes, path: str) -> None:
    answer = await served.web.post("/ag-ui/writer/one", content=content)
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["path"] == path
    assert [each async for each in served.app.threads()] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "nobody/one"), ("GET", "writer/one"), ("POST", "writer"), ("POST", "writer/one/more"), ("GET", "")],
)
async def test_what_is_not_there_is_404(served: Served, method: str, path: str) -> None:
    assert error_of(await served.web.request(method, f"/ag-ui/{path}")) == (404, "not_found")


async def test_a_name_may_have_a_slash(served: Served) -> None:
    async with begun(served.web, "adder/a%2Fb%20%C3%A9") as stream:
        await stream.rest()
    assert [each async for each in served.app.threads()] == [ThreadKey("conversation", "a/b é")]


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
        answer = await web.post("/ag-ui/adder/one/interrupt", headers={"authorization": "reader"})
        assert error_of(answer) == (403, "forbidden")


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


async def test_the_thread_and_its_answer_survive_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    async with serving(store=store) as served, begun(served.web, "writer/one", text="a b") as stream:
        served.gate.open(2)
        await stream.rest()
    async with serving(store=store) as served:
        async with begun(served.web, "writer/one", text="c") as second:
            served.gate.open()
            await second.rest()
        assert second.events[1]["snapshot"]["answer"] == "ab"
        async with watched(served.web, "writer/one", stream.ids[2]) as viewer:
            assert await viewer.rest() == ["RUN_ERROR"]


async def test_it_can_be_mounted_only_at_a_path(served: Served) -> None:
    for path in ("", "/", "ag-ui", "/ag-ui/"):
        with pytest.raises(ValueError, match="is not a path to mount at"):
            served.app.mount(path, AgUi(served.app))


async def test_the_streams_of_a_thread_end_when_it_is_destroyed(served: Served) -> None:
    async with begun(served.web, "writer/one") as stream:
        await stream.until("STATE_SNAPSHOT")
        await served.app.destroy(Conversation, "one")
        assert await stream.rest() == ["RUN_STARTED", "STATE_SNAPSHOT"]
    assert [each async for each in served.app.threads()] == []


async def test_a_run_that_is_cut_off_by_a_shutdown_keeps_what_it_had_and_its_streams_end(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    app = make_app(store=store, shutdown_timeout=0.2)
    async with running(app) as address, http(address) as web, begun(web, "writer/one") as stream:
        app.gate.open()  # type: ignore[attr-defined]
        await stream.until("TEXT_MESSAGE_CONTENT")
        app.drain()
        await stream.rest()
    async with serving(store=store) as served:
        assert (await served.app.thread(Conversation, "one").state()).answer == "a"


async def test_it_is_served_in_an_app_that_is_mounted_elsewhere_and_told_to_instruments() -> None:
    app = make_app(store=MemoryStore(), metrics=True)
    outer = Starlette(routes=[Mount("/api", app)], lifespan=app.lifespan)
    async with running(outer) as address, http(address) as web:
        async with web.stream("POST", "/api/ag-ui/adder/a%2Fb", json=body()) as answer:
            assert answer.status_code == 200
            assert (await Stream(answer).rest())[-1] == "RUN_FINISHED"
        assert [each async for each in app.threads()] == [ThreadKey("conversation", "a/b")]
        assert "plait_" in (await web.get("/api/metrics")).text
