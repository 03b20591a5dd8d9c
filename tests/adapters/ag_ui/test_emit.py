"""What agents yield and emit, as events of AG-UI."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ag_ui.core import CustomEvent, StepStartedEvent, ToolCallEndEvent, ToolCallStartEvent
from tests.adapters.ag_ui.lab import TIMEOUT
from tests.adapters.ag_ui.streams import EVENTS, Stream, begun
from tests.cases import each_case
from tests.integration.socket_client import http
from tests.running import running
from tests.server.fakes import TroubledStore
from tests.told import check_internal

from plait import Context, MemoryStore, Plait, Store, Thread
from plait.adapters.ag_ui import AgUi, emit

pytestmark = pytest.mark.relayed


class Note(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012


Work = Callable[[Context[Note]], AsyncIterator[Any]]


@asynccontextmanager
async def running_agent(work: Work, store: Store | None = None) -> AsyncIterator[Stream]:
    """Begin a run of an agent that does some work."""
    app = Plait(Note, store=store or MemoryStore(), secret="s")

    @app.agent("work", thread=Note)
    async def agent(ctx: Context[Note]) -> AsyncIterator[Any]:
        async for chunk in work(ctx):
            yield chunk

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web, begun(web, "work/one") as stream:
        yield stream


def change(ctx: Context[Note]) -> None:
    """Make a change that is still being stored when this returns."""
    ctx.thread.set_state(lambda s: {"n": s["n"] + 1})


BAD = {
    "half a surrogate pair": "\ud800",
    "an event that is no JSON": CustomEvent(name="x", value=object()),
    "a text in an event": CustomEvent(name="x", value="\ud800"),
    "a chunk that is no JSON": {"x": object()},
}


@each_case("is_changed", [True, False])
@each_case("bad", BAD.values())
async def test_what_cannot_be_sent_ends_the_run_with_an_error(bad: Any, is_changed: bool) -> None:
    async def work(ctx: Context[Note]) -> AsyncIterator[Any]:
        yield "a"
        if is_changed:
            change(ctx)
        yield bad
        yield "b"

    async with running_agent(work) as stream:
        assert (await stream.rest())[-1] == "RUN_ERROR"
    assert [each["delta"] for each in stream.events if each["type"] == "TEXT_MESSAGE_CONTENT"] == ["a"]


async def test_an_event_that_cannot_be_sent_is_refused_where_it_is_emitted_and_none_beside_it_is_sent() -> None:
    raised: list[type[Exception]] = []

    async def work(ctx: Context[Note]) -> AsyncIterator[Any]:
        change(ctx)
        unnamed = ToolCallStartEvent(tool_call_id="t", tool_call_name="n")
        unnamed.tool_call_id = 5  # type: ignore[assignment]
        for bad in (CustomEvent(name="x", value=object()), CustomEvent(name="\ud800", value=1), unnamed):
            try:
                emit(ctx, CustomEvent(name="beside", value=1), bad)
            except ValueError as error:
                raised.append(type(error))
        emit(ctx, CustomEvent(name="good", value=1))
        yield "done"

    async with running_agent(work) as stream:
        assert (await stream.rest())[-1] == "RUN_FINISHED"
    assert len(raised) == 3
    assert [each["name"] for each in stream.events if each["type"] == "CUSTOM"] == ["good"]


async def test_an_event_is_sent_as_it_was_when_it_was_emitted_or_yielded() -> None:
    async def work(ctx: Context[Note]) -> AsyncIterator[Any]:
        event = CustomEvent(name="x", value=[0])
        for how in (emit, None):
            change(ctx)
            if how is not None:
                how(ctx, event)
            else:
                yield event
            event.value.append(1)
            event.name = "y"

    async with running_agent(work) as stream:
        assert (await stream.rest())[-1] == "RUN_FINISHED"
    sent = [(each["name"], each["value"]) for each in stream.events if each["type"] == "CUSTOM"]
    assert sent == [("x", [0]), ("y", [0, 1])]


@pytest.mark.parametrize("fails", [False, True], ids=["stored", "not stored"])
async def test_what_is_emitted_comes_after_the_changes_made_before_it_and_not_without_them(fails: bool) -> None:
    store, has_emitted = TroubledStore(), asyncio.Event()

    async def work(ctx: Context[Note]) -> AsyncIterator[Any]:
        store.is_held = True
        change(ctx)
        emit(ctx, ToolCallStartEvent(tool_call_id="t", tool_call_name="n"), ToolCallEndEvent(tool_call_id="t"))
        has_emitted.set()
        return
        yield

    async with running_agent(work, store) as stream:
        async with asyncio.timeout(TIMEOUT):
            await has_emitted.wait()
        if fails:
            store.fail_next()
        store.resume()
        types = await stream.rest()
    told = ["RUN_ERROR"] if fails else ["STATE_DELTA", "TOOL_CALL_START", "TOOL_CALL_END", "RUN_FINISHED"]
    assert types == ["RUN_STARTED", "STATE_SNAPSHOT", *told]


async def test_what_is_left_open_is_ended_before_the_run() -> None:
    app = Plait(Note, store=MemoryStore(), secret="s")

    @app.agent("open", thread=Note)
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


async def test_events_of_agents_cannot_be_taken_for_those_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    app = Plait(Note, store=MemoryStore(), secret="s")

    @app.agent("liar", thread=Note)
    async def agent(ctx: Context) -> None:
        emit(ctx, EVENTS.validate_python({"type": "STATE_SNAPSHOT", "snapshot": {}}))

    app.mount("/ag-ui", AgUi(app))
    async with running(app) as address, http(address) as web, begun(web, "liar/one") as stream:
        assert await stream.rest() == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_ERROR"]
    check_internal(stream.events[-1]["message"], caplog, "STATE_SNAPSHOT cannot be emitted")
