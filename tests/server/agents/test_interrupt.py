"""Runs that are interrupted, and runs that are cut off as the server shuts down."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.agents.lab import Conversation, CountingMemory, Lab, make_store, open_lab
from tests.server.agents.test_runs import Gate, ended

from plait import Context, Interrupted, Interruption, MemoryStore, Plait, Thread, ThreadKey, TooLarge, Unavailable, rpc
from plait.agents.run import MARK
from plait.store.thread_rows import Record

ONE = ThreadKey("conversation", "one")


@pytest.mark.parametrize("where", ["checkpoint", "values", "run", "flush"])
async def test_an_interrupt_stops_the_run_of_exactly_that_thread_at_its_next_checkpoint(lab: Lab, where: str) -> None:
    gate = Gate()

    @lab.app.agent("inner", thread=Conversation)
    async def inner(ctx: Context[Conversation]) -> None: ...

    async def work(ctx: Context[Conversation]) -> str:
        await ctx.thread.values.set("kept", 1)
        ctx.thread.append("/answer", "so far")
        await gate.wait()
        match where:
            case "checkpoint":
                await ctx.checkpoint()
            case "values":
                await ctx.thread.values.get("kept")
            case "run":
                await ctx.run("inner")
            case _:
                await ctx.flush()
        return "to the end"

    one, two = asyncio.create_task(lab.do(work, "one")), asyncio.create_task(lab.do(work, "two"))
    await gate.somebody(2)
    assert await lab.app.interrupt(lab.app.thread(Conversation, "one"), "please stop")
    gate.open()
    assert await ended(one) == Interruption("please stop")
    assert await ended(two) == "to the end"
    assert await lab.values() == {"kept": 1}
    assert (await lab.app.thread(Conversation, "one").state())["answer"] == "so far"


async def test_an_agent_may_end_in_its_own_way_and_has_the_message(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> Any:
        await gate.wait()
        try:
            await ctx.checkpoint()
        except Interrupted as interrupted:
            await ctx.thread.values.set("summary", interrupted.message)
            return [ctx.interrupted, ctx.interrupt_message]

    task = asyncio.create_task(lab.do(work))
    await gate.somebody()
    await lab.app.interrupt(ONE, {"role": "user"})
    gate.open()
    assert await ended(task) == Interruption({"role": "user"}, [True, {"role": "user"}])
    assert await lab.values() == {"summary": {"role": "user"}}


async def test_the_run_after_an_interrupted_one_is_normal(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> str:
        await gate.wait()
        await ctx.checkpoint()
        return "done"

    task = asyncio.create_task(lab.do(work))
    await gate.somebody()
    await lab.app.interrupt(ONE)
    gate.open()
    assert await ended(task) == Interruption()
    assert await lab.do(work) == "done"


async def test_an_interrupt_of_an_idle_thread_changes_nothing_and_says_so(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> bool:
        await ctx.checkpoint()
        return ctx.interrupted

    assert await lab.app.interrupt(ONE, "stop") is False
    assert await lab.do(work) is False
    assert await lab.app.interrupt(lab.app.thread(Conversation, "one"), "stop") is False


async def test_a_stream_is_interrupted_at_its_next_chunk_and_says_so_last(lab: Lab) -> None:
    @lab.app.agent("count", thread=Conversation)
    async def count(ctx: Context[Conversation]) -> AsyncIterator[str]:
        number = -1
        try:
            for number in range(100):
                yield str(number)
        except Interrupted:
            await ctx.thread.values.set("said", number)
            yield "goodbye"

    chunks, seen = lab.app.stream("count", thread="one"), list[Any]()
    async for chunk in chunks:
        seen.append(chunk)
        await lab.app.interrupt(ONE, "stop")
    assert seen[0] == "0"
    assert seen[-2:] == ["goodbye", Interruption("stop")]
    assert len(seen) < 100
    assert 0 <= (await lab.values())["said"] < 99


@pytest.mark.parametrize("agent", ["do", "stream"])
async def test_a_caller_that_is_cancelled_interrupts_an_agent_that_streams_and_no_other(lab: Lab, agent: str) -> None:
    gate, over = Gate(), asyncio.Event()

    async def work(ctx: Context[Conversation]) -> str:
        try:
            await gate.wait()
            await ctx.checkpoint()
            return "to the end"
        finally:
            await ctx.thread.values.set("interrupted", ctx.interrupted)
            over.set()

    async def stream(ctx: Context[Conversation]) -> AsyncIterator[str]:
        yield "first"
        yield await work(ctx)

    given: Any = work if agent == "do" else stream
    task = asyncio.create_task(lab.app.run(agent, given, thread="one"))
    await gate.somebody()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ended(task)
    gate.open()
    async with asyncio.timeout(10):
        await over.wait()
    assert await lab.values() == {"interrupted": agent == "stream"}


@pytest.mark.parametrize("how", ["run", "inner", "stream", "nested"])
async def test_an_interrupt_in_a_task_group_keeps_what_the_run_wrote(lab: Lab, how: str) -> None:
    gate = Gate()

    async def check(ctx: Context[Conversation]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.checkpoint())

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("kept", how)
        await gate.wait()
        if how == "inner":
            await ctx.run("do", check)
        elif how == "nested":
            async with asyncio.TaskGroup() as group:
                group.create_task(check(ctx))
        else:
            await check(ctx)

    async def stream(ctx: Context[Conversation]) -> AsyncIterator[int]:
        yield 1
        await work(ctx)

    name, function = ("stream", stream) if how == "stream" else ("do", work)
    task = asyncio.create_task(lab.app.run(name, function, thread="one"))
    await gate.somebody()
    await lab.app.interrupt(ONE, "stop")
    gate.open()
    assert await ended(task) == ([1, Interruption("stop")] if how == "stream" else Interruption("stop"))
    assert await lab.values() == {"kept": how}


async def test_a_group_of_errors_of_an_agents_own_class_fails_the_run_as_it_is(lab: Lab) -> None:
    class Problems(ExceptionGroup[ValueError]):
        pass

    problems = Problems("two", [ValueError("a"), ValueError("b")])

    async def work(ctx: Context[Conversation]) -> None:
        raise problems

    with pytest.raises(Problems) as raised:
        await lab.do(work)
    assert raised.value is problems


async def test_the_errors_beside_an_interrupt_in_a_task_group_fail_the_run(lab: Lab) -> None:
    gate = Gate()

    async def fail() -> None:
        raise ZeroDivisionError

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("dropped", 1)
        await gate.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(ctx.checkpoint())

    task = asyncio.create_task(lab.do(work))
    await gate.somebody()
    await lab.app.interrupt(ONE, "stop")
    gate.open()
    with pytest.raises(ExceptionGroup) as raised:
        await ended(task)
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]
    assert await lab.values() == {}


async def test_an_interrupt_without_a_message_leaves_that_of_an_earlier_one(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> None:
        await gate.wait()
        await ctx.checkpoint()

    task = asyncio.create_task(lab.do(work))
    await gate.somebody()
    await lab.app.interrupt(ONE, "summarise first")
    await lab.app.interrupt(ONE)
    gate.open()
    assert await ended(task) == Interruption("summarise first")


async def test_a_run_that_has_just_been_let_in_can_be_interrupted(lab: Lab) -> None:
    gate, loop = Gate(), asyncio.get_running_loop()
    runs = lab.app._runs

    async def first(ctx: Context[Conversation]) -> None:
        ctx.wait_until(gate.wait)

    async def work(ctx: Context[Conversation]) -> str:
        return "to the end"

    def interrupt() -> None:
        """Interrupt the run as soon as that is possible: before its task resumes."""
        if any(not run.is_over for run in runs._active):
            assert runs.interrupt(ONE, "stop")
        elif not task.done():
            loop.call_soon(interrupt)

    await lab.do(first)
    task = asyncio.create_task(lab.do(work))
    await gate.somebody()
    await asyncio.sleep(0)
    interrupt()
    gate.open()
    assert await ended(task) == Interruption("stop")


async def test_each_interrupt_of_a_run_arrives(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> list[Any]:
        told = list[Any]()
        for message in ("first", "second", None):
            await gate.arrive()
            try:
                while True:
                    await asyncio.sleep(0)
                    await ctx.checkpoint()
            except Interrupted as interrupted:
                told.append(interrupted.message)
            await ctx.checkpoint()  # Each is raised once.
            await ctx.thread.values.push("told", message)
        return told

    task = asyncio.create_task(lab.do(work))
    for count, message in enumerate(("first", "second", None), 1):
        await gate.somebody(count)
        assert await lab.app.interrupt(ONE, message)
    assert await ended(task) == Interruption("second", ["first", "second", "second"])
    assert await lab.values() == {"told": ["first", "second", None]}


async def test_each_interrupt_of_a_stream_arrives(lab: Lab) -> None:
    @lab.app.agent("listen", thread=Conversation)
    async def listen(ctx: Context[Conversation]) -> AsyncIterator[str]:
        for _ in range(2):
            try:
                while True:
                    yield "on"
            except Interrupted as interrupted:
                yield f"told {interrupted.message}"

    seen = list[Any]()
    async for chunk in lab.app.stream("listen", thread="one"):
        if chunk == "on" and (not seen or seen[-1] != "on"):
            await lab.app.interrupt(ONE, len(seen))
        seen.append(chunk)
    told = [chunk for chunk in seen if chunk != "on"]
    second = seen.index("told 0") + 1
    assert told == ["told 0", f"told {second}", Interruption(second)]


@pytest.mark.parametrize("what", ["background", "session", "app"])
@pytest.mark.parametrize("by", ["interrupt", "timeout"])
async def test_what_hangs_after_the_answer_is_cut_and_logged_and_the_next_run_begins(
    what: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("hang", thread=Conversation, background_timeout=0.05 if by == "timeout" else None)
        async def hang(ctx: Context[Conversation]) -> str:
            async def keep_on() -> None:
                await ctx.thread.values.set("kept", 1)
                await gate.arrive()
                await asyncio.Event().wait()

            match what:
                case "background":
                    ctx.wait_until(keep_on)
                case "session":
                    ctx.session.add_listener("completed", lambda _: keep_on())
                case _:
                    ctx.session.state["hangs"] = keep_on
            return "answer"

        async def completed(session: Any) -> None:
            if "hangs" in session.state:
                await session.state["hangs"]()

        if what == "app":
            lab.app.on("session.completed", completed)
        assert await lab.app.run("hang", thread="one") == "answer"
        await gate.somebody()
        if by == "interrupt":
            assert await lab.app.interrupt(ONE)
        assert await ended(asyncio.create_task(lab.values())) == {"kept": 1}
        assert await lab.app.interrupt(ONE) is False
        reason = "by an interrupt" if by == "interrupt" else r"after 0.05 s (background_timeout)"
        name = "keep_on" if what == "background" else "a listener"
        (told,) = [each.getMessage() for each in caplog.records if "the work after" in each.getMessage()]
        assert told.startswith(f"the work after the answer of a run of hang is cancelled {reason}: ")
        assert name in told


async def test_an_inner_agents_listener_that_hangs_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("inner", thread=Conversation, background_timeout=0.05)
        async def inner(ctx: Context[Conversation]) -> str:
            return "inner"

        @lab.app.on("agent.completed")
        async def completed(ctx: Context[Conversation]) -> None:
            if ctx.agent == "inner":
                await asyncio.Event().wait()

        assert await ended(asyncio.create_task(lab.do(lambda ctx: ctx.run("inner")))) == "inner"
        assert "the work after the answer of a run of inner is cancelled after 0.05 s" in caplog.text


async def test_background_work_is_not_interrupted(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> None:
        async def later() -> None:
            await gate.wait()
            await ctx.thread.values.set("later", 1)

        ctx.wait_until(later)
        await gate.wait()
        await asyncio.sleep(0.01)
        await ctx.checkpoint()

    task = asyncio.create_task(lab.do(work))
    await gate.somebody()
    await lab.app.interrupt(ONE)
    gate.open()
    assert await ended(task) == Interruption()
    assert await lab.values() == {"later": 1}


async def test_an_interrupt_ends_the_run_also_if_what_it_called_in_another_thread_is_told() -> None:
    gate = Gate()

    class Tool(Thread[Any]):
        @rpc(concurrent=True)
        async def look(self) -> Any:
            await gate.wait()
            return await app.kv.get("cache", "key")

    app = Plait(Conversation, Tool, store=MemoryStore(), shutdown_timeout=1.0)

    @app.agent("do", thread=Conversation)
    async def do(ctx: Context[Conversation]) -> Any:
        await ctx.thread.values.set("kept", 1)
        return await app.thread(Tool, "tool").call(Tool.look)

    async with app:
        task = asyncio.create_task(app.run("do", thread="one"))
        await gate.somebody()
        assert await app.interrupt(ONE, "stop")
        gate.open()
        assert await ended(task) == Interruption("stop")
        assert await app.thread(Conversation, "one").part(Conversation.values).items() == [("kept", 1)]


@each_case("event", ["session.started", "agent.started"])
async def test_an_interrupt_before_the_agent_begins_is_not_raised_in_listeners(event: Any) -> None:
    gate, told = Gate(), list[Any]()

    async def tell(about: Any) -> None:
        await gate.wait()
        told.append(await about.thread.values.get("n", 0))

    async def work(ctx: Context[Conversation]) -> None:
        told.append("begun")
        await ctx.checkpoint()

    async with open_lab(CountingMemory()) as lab:
        lab.app.on(event, tell)
        task = asyncio.create_task(lab.do(work))
        await gate.somebody()
        assert await lab.app.interrupt(ONE, "stop")
        gate.open()
        assert await ended(task) == Interruption("stop")
        assert told == [0]
        assert await ended(asyncio.create_task(lab.values())) == {}


# Shutdown


async def drained(lab: Lab) -> "asyncio.Task[None]":
    """Begin to shut down, as a server does on SIGTERM."""
    lab.app.drain()
    await asyncio.sleep(0)
    return asyncio.create_task(lab.app.__aexit__(None, None, None))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_on_shutdown_new_runs_are_refused_and_running_ones_may_finish(kind: str, tmp_path: Path) -> None:
    gate, store = Gate(), make_store(kind, tmp_path)

    async def work(ctx: Context[Conversation]) -> str:
        async def later() -> None:
            await asyncio.sleep(0.01)
            await ctx.thread.values.push("log", "later")

        await ctx.thread.values.push("log", "first")
        await gate.wait()
        await ctx.thread.values.push("log", "last")
        ctx.wait_until(later)
        return f"done {ctx.shutdown_interrupted}"

    async with open_lab(store) as lab:
        running = asyncio.create_task(lab.do(work))
        await gate.somebody()
        waiting = asyncio.create_task(lab.do(work))
        await asyncio.sleep(0)
        stopping = await drained(lab)
        with pytest.raises(Unavailable, match="shutting down"):
            await ended(waiting)
        with pytest.raises(Unavailable, match="shutting down"):
            await lab.do(work)
        gate.open()
        assert await ended(running) == "done False"
        await ended(stopping)
        await lab.app.__aenter__()
        assert await lab.values() == {"log": ["first", "last", "later"]}
        assert await lab.do(work) == "done False"


@pytest.mark.parametrize("how", ["checks", "waits", "ends itself", "streams"])
async def test_a_run_that_is_cut_off_is_saved_and_marked_and_the_next_one_sees_that_once(
    how: str, tmp_path: Path
) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> Any:
        await ctx.thread.values.set("kept", how)
        await gate.arrive()
        try:
            while how in ("checks", "ends itself"):
                await asyncio.sleep(0.01)
                await ctx.checkpoint()
            await asyncio.Event().wait()
        except Interrupted:
            if how == "ends itself":
                return "goodbye"
            raise

    async def stream(ctx: Context[Conversation]) -> AsyncIterator[int]:
        await ctx.thread.values.set("kept", how)
        await gate.arrive()
        while True:
            await asyncio.sleep(0.01)
            yield 1

    async def look(ctx: Context[Conversation]) -> bool:
        return ctx.shutdown_interrupted

    store = make_store("sqlite", tmp_path)
    lab = Lab(store, shutdown_timeout=0.1)
    async with lab.app:
        if how == "streams":
            task = asyncio.create_task(lab.app.run("stream", stream, thread="one"))
        else:
            task = asyncio.create_task(lab.do(work))
        await gate.somebody()
        await ended(await drained(lab))
        result = await ended(task)
        assert result == Interruption(output="goodbye" if how == "ends itself" else None) or how == "streams"
        assert how != "streams" or result[-1] == Interruption()
        await lab.app.__aenter__()
        assert await lab.do(look, "other") is False
        assert await lab.do(look) is True
        assert await lab.do(look) is False
        await lab.sleep()
        assert await lab.do(look) is False
        assert await lab.values() == {"kept": how}


async def is_marked(lab: Lab) -> bool:
    return await lab.store.record(ONE, *MARK) is not None


async def marked(lab: Lab) -> None:
    async with asyncio.timeout(10):
        while not await is_marked(lab):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("end", ["returns", "raises", "cannot store", "streams"])
async def test_a_thread_is_marked_while_a_run_takes_long_and_not_when_that_has_ended(lab: Lab, end: str) -> None:
    async def work(ctx: Context[Conversation]) -> bool:
        assert not await is_marked(lab)
        await ctx.thread.set_state({"answer": ctx.run_id})
        await marked(lab)
        await ctx.thread.values.set("big", "x" * (1 << 21 if end == "cannot store" else 1))
        if end == "raises":
            raise ZeroDivisionError
        return ctx.shutdown_interrupted

    async def stream(ctx: Context[Conversation]) -> AsyncIterator[bool]:
        yield await work(ctx)

    for _ in range(2):
        if end in ("raises", "cannot store"):
            with pytest.raises((ZeroDivisionError, TooLarge)):
                await lab.do(work)
        elif end == "streams":
            assert await lab.app.run("stream", stream, thread="one") == [False]
        else:
            assert await lab.do(work) is False
        await lab.sleep()
        assert not await is_marked(lab)


async def test_a_run_that_was_told_removes_the_mark_also_if_it_can_store_nothing(lab: Lab) -> None:
    async def look(ctx: Context[Conversation]) -> None:
        told.append(ctx.shutdown_interrupted)
        await ctx.thread.values.set("big", "x" * (1 << 21))

    told = list[bool]()
    await (await lab.thread())._actor.records.write([Record(*MARK, b"{}")])
    for _ in range(2):
        await lab.sleep()
        with pytest.raises(TooLarge):
            await lab.do(look)
    assert told == [True, False]


@pytest.mark.parametrize(("what", "parts"), [("values", ["values"]), ("state", []), ("nothing", None)])
async def test_a_short_run_costs_one_write_at_most(
    lab: Lab, what: str, parts: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.agents.run._DELAY", 60.0)  # However slow the machine is.
    submit, writes = lab.store.submit, list[Any]()

    def watch(write: Any) -> Any:
        writes.append([record.part for record in write.records])
        return submit(write)

    async def work(ctx: Context[Conversation]) -> None:
        match what:
            case "values":
                await ctx.thread.values.update("a", lambda n: n + 1, 0)
            case "state":
                await ctx.thread.append("/answer", "word")

    await lab.do(work)
    lab.store.submit = watch  # type: ignore[method-assign]
    for _ in range(3):
        await lab.do(work)
    assert writes == ([] if parts is None else [parts] * 3)


async def test_background_work_that_takes_too_long_at_shutdown_keeps_what_it_wrote(tmp_path: Path) -> None:
    lab = Lab(CountingMemory(), shutdown_timeout=0.05)

    async def work(ctx: Context[Conversation]) -> str:
        async def later() -> None:
            await ctx.thread.values.set("later", 1)
            await asyncio.Event().wait()

        ctx.wait_until(later)
        return "answer"

    async with lab.app:
        assert await lab.do(work) == "answer"
        await ended(await drained(lab))
        await lab.app.__aenter__()
        assert await lab.values() == {"later": 1}
