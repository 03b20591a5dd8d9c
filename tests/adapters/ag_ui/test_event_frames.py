"""The stream of AG-UI over HTTP: its ids, and coming back."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from tests.adapters.ag_ui.lab import TIMEOUT, Conversation, make_app, until_connected
from tests.adapters.ag_ui.streams import Served, Stream, begun, body, serving, watched
from tests.integration.socket_client import http
from tests.integration.test_http import error_of
from tests.running import running

from plait import Connection, Context, Limits, MemoryStore, Plait, Thread, ThreadKey
from plait.adapters.ag_ui import AgUi

pytestmark = pytest.mark.relayed

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


# Who gets no state


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


# Lives


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


@pytest.mark.local
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


@pytest.mark.local
async def test_it_is_served_in_an_app_that_is_mounted_elsewhere_and_told_to_instruments() -> None:
    app = make_app(store=MemoryStore(), metrics=True)
    outer = Starlette(routes=[Mount("/api", app)], lifespan=app.lifespan)
    async with running(outer) as address, http(address) as web:
        async with web.stream("POST", "/api/ag-ui/adder/a%2Fb", json=body()) as answer:
            assert answer.status_code == 200
            assert (await Stream(answer).rest())[-1] == "RUN_FINISHED"
        assert [each.key async for each in app.threads()] == [ThreadKey("conversation", "a/b")]
        assert "plait_" in (await web.get("/api/metrics")).text
