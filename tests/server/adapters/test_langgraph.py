"""The checkpoint saver for LangGraph, by LangGraph's own tests of such savers and by graphs that use it."""

import asyncio
import operator
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import ChannelVersions
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from tests.running import running
from tests.schedules import in_soak

from plait import Context, Limits, Messages, Plait, Thread, TooLarge, Values, rpc
from plait.adapters.langgraph import Checkpoints, PlaitSaver, steer
from plait.store.thread_rows import RecordRange
from plait_client import connect


class Graphs(Thread[Any]):
    initial_state = 0
    values = Values()
    checkpoints = Checkpoints()


class Sums(TypedDict):
    numbers: Annotated[list[int], operator.add]
    asked: str


@pytest.fixture(params=["sqlite", *in_soak(["memory"])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/a.db"


def make(store: str, **options: Any) -> tuple[Plait, PlaitSaver]:
    app = Plait(Graphs, store=store, **options)
    return app, PlaitSaver(app, Graphs)


def config(thread: str = "one", **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, **more}}


def build(saver: PlaitSaver, *steps: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return a graph whose nodes are the steps, one after the other."""
    graph = StateGraph(Sums)
    last = START
    for number, step in enumerate(steps):
        graph.add_node(f"step{number}", step)
        graph.add_edge(last, f"step{number}")
        last = f"step{number}"
    graph.add_edge(last, END)
    return graph.compile(checkpointer=saver)


def add(number: int) -> Any:
    return lambda _: {"numbers": [number]}


def ask(_: Sums) -> dict[str, str]:
    return {"asked": interrupt("How many?")}


async def history(graph: CompiledStateGraph[Any, Any, Any, Any], thread: str = "one") -> list[Any]:
    return [each.values.get("numbers") async for each in graph.aget_state_history(config(thread))]


async def put(saver: PlaitSaver, place: RunnableConfig, id: str, values: dict[str, Any]) -> RunnableConfig:
    versions: ChannelVersions = dict.fromkeys(values, id)
    checkpoint: Any = {
        "v": 1,
        "id": id,
        "ts": "",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }
    return await saver.aput(place, checkpoint, {"source": "loop"}, versions)


async def last_id(saver: PlaitSaver, thread: str = "one") -> str:
    found = await saver.aget_tuple(config(thread))
    assert found is not None
    return found.checkpoint["id"]


async def count_records(app: Plait, thread: str = "one") -> int:
    actor = await app._node.actor(app.thread(Graphs, thread)._key)
    return len(await actor.records.list(RecordRange("checkpoints")))


async def test_the_projects_own_conformance_tests_pass(store: str) -> None:
    async def begin() -> AsyncIterator[PlaitSaver]:
        app, saver = make(store)
        async with app:
            yield saver

    report = await validate(checkpointer_test(name="plait")(begin))
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert all(result.detected and result.passed for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) >= 81


async def test_a_graph_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    app, saver = make(url)
    async with app:
        found = await build(saver, add(1), ask, add(2)).ainvoke({"numbers": [0]}, config())
        assert found["__interrupt__"][0].value == "How many?"
    app, saver = make(url)
    async with app:
        graph = build(saver, add(1), ask, add(2))
        assert await graph.ainvoke(Command(resume="two"), config()) == {"numbers": [0, 1, 2], "asked": "two"}
        assert await history(graph) == [[0, 1, 2], [0, 1], [0, 1], [0], []]


async def test_checkpoints_stay_when_the_run_of_an_agent_fails(store: str) -> None:
    app, saver = make(store)
    fails = True

    def fail(_: Sums) -> dict[str, Any]:
        if fails:
            raise LookupError("not yet")
        return {"numbers": [2]}

    graph = build(saver, add(1), fail)

    @app.agent("sum", thread=Graphs)
    async def sum_up(ctx: Context, input: list[int] | None) -> list[int]:
        assert isinstance(ctx.thread, Graphs)
        await ctx.thread.values.set("staged", True)
        given = None if input is None else {"numbers": input}
        numbers: list[int] = (await graph.ainvoke(given, config(ctx.thread.name)))["numbers"]
        return numbers

    @app.agent("staged", thread=Graphs)
    async def staged(ctx: Context) -> bool:
        assert isinstance(ctx.thread, Graphs)
        return await ctx.thread.values.has("staged")

    async with app:
        with pytest.raises(LookupError):
            await app.run("sum", [0], thread="one")
        assert not await app.run("staged", thread="one")
        fails = False
        # Without an input, the graph goes on from its last checkpoint.
        assert await app.run("sum", None, thread="one") == [0, 1, 2]


async def test_branches_of_one_thread_keep_their_own_values(store: str) -> None:
    app, saver = make(store)
    async with app:
        graph = build(saver, add(1), add(2))
        await graph.ainvoke({"numbers": [0]}, config())
        first = [each async for each in graph.aget_state_history(config())][-2]
        branch = await graph.aupdate_state(first.config, {"numbers": [10]}, as_node="step0")
        assert (await graph.ainvoke(None, branch))["numbers"] == [0, 10, 2]
        assert [0, 1, 2] in await history(graph)


async def test_other_os_threads_use_it_synchronously(store: str) -> None:
    app, saver = make(store)
    graph = build(saver, add(1))

    def use() -> list[Any]:
        graph.invoke({"numbers": [0]}, config())
        saver.copy_thread("one", "two")
        found = [each.values.get("numbers") for each in graph.get_state_history(config("two"))]
        saver.prune(["two"])
        assert len([*saver.list(config("two"))]) == 1
        saver.delete_for_runs(["none"])
        saver.delete_thread("two")
        assert saver.get_tuple(config("two")) is None
        return found

    async with app:
        assert await asyncio.to_thread(use) == [[0, 1], [0], []]


async def test_a_synchronous_use_in_the_loop_is_refused_and_so_is_one_while_the_app_does_not_run() -> None:
    app, saver = make("memory:")
    with pytest.raises(RuntimeError, match="is not running"):
        saver.get_tuple(config())
    async with app:
        with pytest.raises(RuntimeError, match="ainvoke"):
            saver.get_tuple(config())


async def test_reading_and_deleting_begin_no_thread(store: str) -> None:
    app, saver = make(store)
    async with app:
        assert await saver.aget_tuple(config()) is None
        assert [each async for each in saver.alist(config())] == []
        await saver.adelete_thread("one")
        await saver.aprune(["one"])
        await saver.acopy_thread("one", "two")
        assert [each async for each in app.threads()] == []


async def test_a_deleted_thread_keeps_what_else_it_has(store: str) -> None:
    app, saver = make(store)
    async with app:
        await build(saver, add(1)).ainvoke({"numbers": [0]}, config())
        room = app.thread(Graphs, "one")
        await room.set_state(7)
        assert await count_records(app) > 0
        await saver.adelete_thread("one")
        assert await count_records(app) == 0
        assert await room.state() == 7


async def test_destroying_a_thread_ends_its_checkpoints(store: str) -> None:
    app, saver = make(store)
    async with app:
        await build(saver, add(1)).ainvoke({"numbers": [0]}, config())
        await app.destroy(Graphs, "one")
        assert await saver.aget_tuple(config()) is None


async def test_pruning_leaves_no_values_and_writes_of_what_is_gone(store: str) -> None:
    app, saver = make(store)
    async with app:
        graph = build(saver, add(1), add(2), add(3))
        await graph.ainvoke({"numbers": [0]}, config())
        before = await count_records(app)
        await saver.aprune(["one"])
        # The checkpoint, its values, and which one is the last.
        last = await saver.aget_tuple(config())
        assert last is not None
        assert await count_records(app) == len(last.checkpoint["channel_values"]) + 2 < before
        assert (await graph.ainvoke({"numbers": [4]}, config()))["numbers"] == [0, 1, 2, 3, 4, 1, 2, 3]


async def test_pruning_keeps_what_a_channel_of_differences_is_rebuilt_from(store: str) -> None:
    class Words(TypedDict):
        words: Annotated[list[str], DeltaChannel(_join, snapshot_frequency=3)]

    app, saver = make(store)
    before: Any = None
    kept = 0
    async with app:
        builder = StateGraph(Words)
        builder.add_node("say", lambda state: {"words": ["said"]})
        builder.add_edge(START, "say")
        builder.add_edge("say", END)
        graph = builder.compile(checkpointer=saver)
        for number in range(5):
            await graph.ainvoke({"words": [str(number)]}, config())
            before = (await graph.aget_state(config())).values
            kept = len([each async for each in saver.alist(config())])
            await saver.aprune(["one"])
            assert (await graph.aget_state(config())).values == before
            assert len([each async for each in saver.alist(config())]) <= kept
        assert before["words"] == ["0", "said", "1", "said", "2", "said", "3", "said", "4", "said"]
        assert kept < 10


def _join(words: list[str], more: Sequence[list[str]]) -> list[str]:
    return [*words, *(word for each in more for word in each)]


async def test_names_of_any_length_and_characters_are_told_apart(store: str) -> None:
    app, saver = make(store)
    long = "n:1|" * 100
    names = ["", "a/b", "a:b", "a%2Fb", "ü\n", "*", long, f"{long}!"]
    async with app:
        for number, name in enumerate(names):
            saved = await put(saver, config(checkpoint_ns=name), "1", {f"{name}channel": number})
            await saver.aput_writes(saved, [(name, number)], f"{name}task")
        for number, name in enumerate(names):
            found = await saver.aget_tuple(config(checkpoint_ns=name))
            assert found is not None
            assert found.checkpoint["channel_values"] == {f"{name}channel": number}
            assert found.pending_writes == [(f"{name}task", name, number)]
        assert len([each async for each in saver.alist(config())]) == len(names)


async def test_the_last_checkpoint_is_that_with_the_last_id_and_not_the_one_that_came_last(store: str) -> None:
    app, saver = make(store)
    async with app:
        for id in ("3", "1"):
            await put(saver, config(checkpoint_ns=""), id, {})
        await put(saver, config("two", checkpoint_ns=""), "2", {})
        assert await last_id(saver) == "3"
        await saver.acopy_thread("two", "one")
        assert await last_id(saver) == "3"
        await saver.acopy_thread("one", "two")
        assert await last_id(saver, "two") == "3"
        assert [each.checkpoint["id"] async for each in saver.alist(config("two"))] == ["3", "2", "1"]


async def test_a_value_over_the_limit_is_refused_and_the_graph_stays_where_it_was(store: str) -> None:
    app, saver = make(store, limits=Limits(record=20_000))
    async with app:
        graph = build(saver, add(1))
        await graph.ainvoke({"numbers": [0]}, config())
        with pytest.raises(TooLarge):
            await graph.ainvoke({"numbers": [1_000_000] * 20_000}, config())
        assert (await graph.aget_state(config())).values["numbers"] == [0, 1]


async def test_many_runs_at_once_of_threads_of_their_own(store: str) -> None:
    app, saver = make(store)
    async with app:
        graph = build(saver, add(1), add(2))
        found = await asyncio.gather(*(graph.ainvoke({"numbers": [n]}, config(f"t{n}")) for n in range(30)))
        assert [each["numbers"] for each in found] == [[n, 1, 2] for n in range(30)]
        assert len([each async for each in saver.alist(None)]) == 30 * 4


async def test_a_readonly_client_cannot_cause_a_checkpoint_of_its_thread() -> None:
    class Watched(Thread[Any]):
        checkpoints = Checkpoints()

        def should_be_readonly(self, connection: Any, request: Any) -> bool:
            return True

        @rpc
        async def think(self) -> None:
            await graph.ainvoke({"numbers": [0]}, config(self.name))

    app = Plait(Watched, store="memory:")
    saver = PlaitSaver(app, Watched)
    graph = build(saver, add(1))
    async with running(app) as address, connect(f"ws://{address}/threads/watched/one") as room:
        with pytest.raises(Exception, match="readonly"):
            await room.call("think")
        assert await saver.aget_tuple(config()) is None


def test_a_class_without_checkpoints_is_refused() -> None:
    class Plain(Thread[Any]):
        pass

    with pytest.raises(TypeError, match="Plain needs `checkpoints = Checkpoints"):
        PlaitSaver(Plait(Plain, store="memory:"), Plain)


async def test_a_node_takes_what_is_queued_between_two_calls_of_its_model(store: str) -> None:
    class Desk(Thread[Any]):
        initial_state = 0
        messages = Messages(agent="support")
        checkpoints = Checkpoints()

    class Asked(TypedDict):
        texts: Annotated[list[str], operator.add]

    app, seen = Plait(Desk, store=store), list[list[str]]()

    @app.agent("support", thread=Desk)
    async def support(ctx: Context[Desk]) -> None:
        async def call_model(asked: Asked) -> Asked:
            taken = [str(each.content) for each in await ctx.thread.messages.take()]
            seen.append([*asked["texts"], *taken])
            return {"texts": [*taken, f"call {len(seen)}"]}

        async def call_tool(asked: Asked) -> Asked:
            await app.thread(Desk, "one").part(Desk.messages).queue("Hurry!")
            return {"texts": ["found"]}

        graph: Any = StateGraph(Asked)
        graph.add_node("model", call_model)
        graph.add_node("tool", call_tool)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda asked: "tool" if len(seen) == 1 else END)
        graph.add_edge("tool", "model")
        await graph.compile(checkpointer=PlaitSaver(app, Desk)).ainvoke({"texts": []}, config())

    async with app:
        messages = app.thread(Desk, "one").part(Desk.messages)
        await messages.queue("Look!")
        async with asyncio.timeout(10):
            while len(await roles(messages)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    assert seen == [["Look!"], ["Look!", "call 1", "found", "Hurry!"]]


async def roles(messages: Any) -> list[str]:
    """Return the roles of what is taken."""
    return [each.role for each in (await messages.list()).messages if each.status == "completed"]


class Said(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Talks(Thread[Any]):
    checkpoints = Checkpoints()
    messages = Messages()


async def talk(store: str, *steps: Any, again: Any = None) -> tuple[list[str], list[str], list[list[str]]]:
    """Have a steered graph answer; return what its state and the messages have of users, and what each node has seen.

    After the first node has begun, more is said. With `again`, the graph goes on with that in another run.
    """
    app, seen = Plait(Talks, store=store), list[list[str]]()
    place = app.thread(Talks, "one").part(Talks.messages)

    def note(step: Any) -> Any:
        async def run(said: Said) -> Any:
            seen.append([str(each.content) for each in said["messages"]])
            if len(seen) == 1:
                await place.queue("second")
            return step(said)

        return run

    nodes: list[Any] = [(f"step{number}", note(step)) for number, step in enumerate(steps)]
    builder: Any = StateGraph(Said).add_sequence(nodes).add_edge(START, "step0")
    graph = steer(builder).compile(PlaitSaver(app, Talks))

    @app.agent("talk", thread=Talks)
    async def answer(ctx: Context[Talks], given: Any) -> None:
        await graph.ainvoke(given, config())

    async with app:
        await place.queue("first")
        for given in ({"messages": []}, *([] if again is None else [again])):
            await app.run("talk", given, thread="one")
        state = (await graph.aget_state(config())).values["messages"]
        stored = (await place.list()).messages
    assert [each.id for each in state if each.type == "human"] == [each.id for each in stored]
    assert {each.status for each in stored} == {"completed"}
    return [each.content for each in state], [each.content or "" for each in stored], seen


@pytest.mark.parametrize(
    "result", [None, {"messages": [AIMessage("Well.")]}, Command(update={"messages": [AIMessage("Well.")]})]
)
async def test_a_node_gets_what_users_have_queued_before_it_whatever_the_node_returns(store: str, result: Any) -> None:
    state, stored, seen = await talk(store, lambda _: result, lambda _: {"messages": [AIMessage("Done.")]})
    said = [] if result is None else ["Well."]
    assert seen == [["first"], ["first", *said, "second"]]
    assert state == ["first", *said, "second", "Done."]
    assert stored == ["first", "second"]


async def test_a_node_that_asks_a_person_gets_what_was_queued_when_it_goes_on(store: str) -> None:
    def ask(said: Said) -> Any:
        return {"messages": [AIMessage(interrupt("Well?"))]}

    state, stored, seen = await talk(store, lambda _: None, ask, again=Command(resume="Yes."))
    assert seen == [["first"], ["first", "second"], ["first", "second"]]
    assert state == ["first", "second", "Yes."]
    assert stored == ["first", "second"]


async def test_a_node_sees_what_a_failed_run_has_left_in_a_checkpoint_once(store: str) -> None:
    app, seen = Plait(Talks, store=store), list[list[str]]()

    def note(said: Said) -> None:
        seen.append([str(each.content) for each in said["messages"]])

    nodes: list[Any] = [("one", note)]
    builder: Any = StateGraph(Said).add_sequence(nodes).add_edge(START, "one")
    graph = steer(builder).compile(PlaitSaver(app, Talks))

    @app.agent("talk", thread=Talks)
    async def answer(ctx: Context[Talks], fails: bool) -> None:
        await graph.ainvoke({"messages": []}, config())
        if fails:
            raise LookupError("no answer")

    async with app:
        place = app.thread(Talks, "one").part(Talks.messages)
        await place.queue("first")
        with pytest.raises(LookupError):
            await app.run("talk", True, thread="one")
        assert [each.status for each in await place.pending()] == ["pending"]
        await app.run("talk", False, thread="one")
        assert await place.pending() == []
    assert seen == [["first"], ["first"]]


async def test_what_is_said_during_a_call_comes_after_the_results_of_the_tools(store: str) -> None:
    app = Plait(Talks, store=store)
    place = app.thread(Talks, "one").part(Talks.messages)

    async def think(said: Said) -> Any:
        await place.queue("second")
        calls: list[Any] = [{"name": "look", "args": {}, "id": id} for id in ("a", "b")]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    def look() -> str:
        """Look."""
        return "found"

    nodes: list[Any] = [("think", think), ("look", ToolNode([look])), ("tell", lambda _: None)]
    builder: Any = StateGraph(Said).add_sequence(nodes).add_edge(START, "think")
    graph = steer(builder).compile(PlaitSaver(app, Talks))

    @app.agent("talk", thread=Talks)
    async def answer(ctx: Context[Talks]) -> None:
        await graph.ainvoke({"messages": []}, config())

    async with app:
        await place.queue("first")
        await app.run("talk", thread="one")
        state = (await graph.aget_state(config())).values["messages"]
    assert [each.type for each in state] == ["human", "ai", "tool", "tool", "human"]


async def test_a_steered_graph_outside_of_runs_goes_on_as_it_is(store: str) -> None:
    app = Plait(Talks, store=store)
    nodes: list[Any] = [("one", lambda _: {"messages": [AIMessage("Done.")]})]
    builder: Any = StateGraph(Said).add_sequence(nodes).add_edge(START, "one")
    graph = steer(builder).compile(PlaitSaver(app, Talks))
    async with app:
        result = await graph.ainvoke({"messages": []}, config())
        with pytest.raises(RuntimeError, match="use `ainvoke`"):
            await asyncio.to_thread(graph.invoke, {"messages": []}, config())
    assert [each.content for each in result["messages"]] == ["Done."]
