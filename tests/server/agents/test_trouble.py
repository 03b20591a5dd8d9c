"""Runs whose callers stall or leave, that call back into their threads, and that fail halfway."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, ClassVar, cast

import pytest
from tests.cases import each_case
from tests.server.agents.lab import Conversation, CountingMemory, Lab, open_lab
from tests.server.agents.test_runs import PATIENCE, Gate, ended

from plait import Context, Interrupted, Interruption, Plait, Thread, ThreadKey, TurnTimeout, current_context, rpc

ONE = ThreadKey("conversation", "one")


async def numbers(ctx: Context[Conversation]) -> AsyncIterator[int]:
    for number in range(1000):
        yield number


async def nothing(ctx: Context[Conversation]) -> str:
    return "ran"


async def test_a_reader_who_leaves_early_does_not_keep_the_next_run_waiting(lab: Lab) -> None:
    chunks = lab.app.stream("stream", numbers, thread="one")
    assert await anext(chunks) == 0
    await chunks.aclose()
    assert await ended(asyncio.create_task(lab.do(nothing))) == "ran"


async def test_a_reader_who_stalls_can_be_interrupted(lab: Lab) -> None:
    chunks = lab.app.stream("stream", numbers, thread="one")
    assert await anext(chunks) == 0
    assert await lab.app.interrupt(ONE, "enough")
    assert await lab.app.interrupt(ONE, "enough")
    assert await ended(asyncio.create_task(lab.do(nothing))) == "ran"
    assert [chunk async for chunk in chunks][-1] == Interruption("enough")


async def test_a_stream_whose_reader_stalls_ends_with_its_timeout() -> None:
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("slow", thread=Conversation, timeout=0.05)
        async def slow(ctx: Context[Conversation]) -> AsyncIterator[str]:
            while True:
                yield "x" * 65_536

        chunks = lab.app.stream("slow", thread="one")
        assert await anext(chunks)
        assert await ended(asyncio.create_task(lab.do(nothing))) == "ran"
        with pytest.raises(TurnTimeout):
            async for _ in chunks:
                pass


@each_case("how", ["timeout", "interrupt", "error"])
async def test_the_context_is_found_as_a_stream_is_closed(how: str) -> None:
    seen: list[Any] = []
    async with open_lab(CountingMemory()) as lab:

        @lab.app.agent("slow", thread=Conversation, timeout=0.05 if how == "timeout" else None)
        async def slow(ctx: Context[Conversation]) -> AsyncIterator[int | str]:
            try:
                yield 1
                if how == "error":
                    yield cast("int", object())
                async for number in numbers(ctx):
                    yield number
            finally:
                seen.append(current_context().run_id == ctx.run_id)

        chunks = lab.app.stream("slow", thread="one")
        assert await anext(chunks) == 1
        if how == "interrupt":
            await lab.app.interrupt(ONE)
        assert await ended(asyncio.create_task(lab.do(nothing))) == "ran" if how != "error" else True
        with suppress(TurnTimeout, TypeError):
            async for _ in chunks:
                pass
        assert seen == [True]


async def test_an_interrupt_of_an_inner_agent_ends_the_outer_one_too(lab: Lab) -> None:
    gate = Gate()

    @lab.app.agent("inner", thread=Conversation)
    async def inner(ctx: Context[Conversation]) -> str:
        await gate.wait()
        await ctx.checkpoint()
        return "inner"

    async def outer(ctx: Context[Conversation]) -> str:
        await ctx.run("inner")
        await ctx.thread.values.set("billed", True)
        return "outer"

    async def careful(ctx: Context[Conversation]) -> str:
        try:
            return str(await ctx.run("inner"))
        except Interrupted:
            return "stopped"

    for work, output in ((outer, None), (careful, "stopped")):
        gate.arrived.clear()
        gate._is_open.clear()
        task = asyncio.create_task(lab.do(work))
        await gate.somebody()
        await lab.app.interrupt(ONE)
        gate.open()
        assert await ended(task) == Interruption(output=output)
    assert await lab.values() == {}


async def test_an_interrupt_during_the_commit_comes_too_late_and_says_so(lab: Lab) -> None:
    submit, answers = lab.store.submit, list[bool]()

    def watch(write: Any) -> Any:
        if write.records:
            answers.append(lab.app._runs.interrupt(ONE))
        return submit(write)

    async def work(ctx: Context[Conversation]) -> str:
        await ctx.thread.values.set("a", 1)
        return "done"

    lab.store.submit = watch  # type: ignore[method-assign]
    assert await lab.do(work) == "done"
    assert answers == [False]


class Between(Thread[Any]):
    """Calls back into the thread whose run has called it."""

    # What `call_back` does.
    work: ClassVar[list[Callable[[], Awaitable[Any]]]] = []

    @rpc
    async def call_back(self) -> Any:
        return await self.work[0]()


async def test_a_run_that_comes_back_through_an_rpc_of_another_thread_stages_what_it_writes() -> None:
    app = Plait(Conversation, Between, store=CountingMemory())

    @app.agent("count", thread=Conversation)
    async def count(ctx: Context[Conversation], fails: bool) -> int:
        await ctx.thread.values.update("n", lambda n: n + 1, 0)
        if not fails:
            return int(await ctx.thread.values.get("n"))
        Between.work[:] = [lambda: app.run("count", False, thread="one")]
        found = await app.thread(Between, "between").call(Between.call_back)
        assert await ctx.thread.values.get("n") == found == 2
        raise ZeroDivisionError

    async with app, asyncio.timeout(PATIENCE):
        with pytest.raises(ZeroDivisionError):
            await app.run("count", True, thread="one")
        assert await app.thread(Conversation, "one").part(Conversation.values).items() == []


async def test_a_run_that_comes_back_has_the_session_of_the_first_and_its_listeners_are_called() -> None:
    app, told = Plait(Conversation, Between, store=CountingMemory()), list[str]()

    @app.agent("listen", thread=Conversation)
    async def listen(ctx: Context[Conversation], depth: int) -> str:
        ctx.session.add_listener("completed", lambda session: told.append(f"{depth} {session.id}"))
        if depth == 1:
            Between.work[:] = [lambda: app.run("listen", 2, thread="one")]
            assert await app.thread(Between, "between").call(Between.call_back) == ctx.session.id
            Between.work[:] = [lambda: app.run("listen", 2, thread="one", session_id="other")]
            with pytest.raises(ValueError, match="'mine'"):
                await app.thread(Between, "between").call(Between.call_back)
        return ctx.session.id

    async with app, asyncio.timeout(PATIENCE):
        assert await app.run("listen", 1, thread="one", session_id="mine") == "mine"
        await app.run("listen", 3, thread="one", session_id="next")
    assert told == ["1 mine", "2 mine", "3 next"]


async def test_a_run_that_waited_for_something_cancelled_fails_and_stores_nothing(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)
        other = asyncio.create_task(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    with pytest.raises(RuntimeError, match="cancelled"):
        await lab.do(work)
    assert await lab.values() == {}


@each_case("how", ["cancels itself", "raises CancelledError", "raises Interrupted"])
@each_case("way", ["do", "stream"])
async def test_an_agent_that_ends_itself_as_if_it_was_ended_has_failed(lab: Lab, how: str, way: str) -> None:
    async def end(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)
        if how == "cancels itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()
        raise Interrupted if how == "raises Interrupted" else asyncio.CancelledError

    async def stream(ctx: Context[Conversation]) -> AsyncIterator[int]:
        yield 1
        await end(ctx)

    run = lab.do(end) if way == "do" else lab.app.run("stream", stream, thread="one")
    with pytest.raises(RuntimeError, match=r"the agent \w+ (was cancelled|raised Interrupted)"):
        await run
    assert await ended(asyncio.create_task(lab.do(nothing))) == "ran"
    assert await lab.values() == ({} if way == "do" else {"a": 1})
    await lab.app.destroy(Conversation, "one")


async def test_background_work_of_a_run_that_raises_is_stored_however_fast_it_is(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> None:
        async def later() -> None:
            await ctx.thread.values.push("log", "later")

        ctx.wait_until(later)
        await asyncio.sleep(0.01)
        await ctx.thread.values.push("log", "dropped")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lab.do(work)
    assert await lab.values() == {"log": ["later"]}


async def test_leaving_what_another_agent_streams_leaves_its_context(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    @lab.app.agent("count", thread=Conversation)
    async def count(ctx: Context[Conversation]) -> AsyncIterator[int]:
        for number in range(10):
            assert current_context().run_id == ctx.run_id
            yield number

    async def work(ctx: Context[Conversation]) -> bool:
        async for _ in ctx.stream("count"):
            assert current_context().run_id == ctx.run_id
            break
        return current_context().run_id == ctx.run_id

    assert await lab.do(work)
    assert await lab.do(nothing) == "ran"
    assert "different Context" not in caplog.text


@each_case("option", ["max_waiting", "wait_timeout"])
def test_only_the_time_of_a_run_may_be_unlimited(option: str) -> None:
    lab = Lab(CountingMemory())

    async def agent(ctx: Context[Conversation]) -> None: ...

    with pytest.raises(ValueError, match=option):
        lab.app.agent("a", thread=Conversation, **{option: None})(agent)  # type: ignore[arg-type]
    lab.app.agent("a", thread=Conversation, timeout=None)(agent)
