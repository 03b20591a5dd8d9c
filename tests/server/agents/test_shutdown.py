"""Turns and runs that use other threads as the server shuts down."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from tests.cases import each_case
from tests.server.agents.lab import Conversation, CountingMemory
from tests.server.agents.test_runs import Gate, ended

from plait import Context, Interruption, Plait, Thread, Unavailable, Values, rpc


class Desk(Thread[Any]):
    """Another kind of thread, whose rpc does what it is told by name."""

    values = Values()
    works: ClassVar[dict[str, Callable[[], Awaitable[Any]]]] = {}

    @rpc(concurrent=True)
    async def do(self, work: str) -> Any:
        return await self.works[work]()


@asynccontextmanager
async def open_app(timeout: float = 5.0) -> AsyncIterator[Plait]:
    app = Plait(Conversation, Desk, store=CountingMemory(), shutdown_timeout=timeout)

    @app.agent("do", thread=Conversation)
    async def do(ctx: Context[Conversation], work: Any) -> Any:
        return await work(ctx)

    async with app:
        yield app


async def end(app: Plait) -> None:
    """Shut down as a server does, and begin again."""
    async with asyncio.timeout(10):
        await app.__aexit__(None, None, None)
    assert app._node.actors == []
    await app.__aenter__()


async def note(ctx: Context[Conversation]) -> str:
    await ctx.thread.values.set("noted", 1)
    return ctx.thread.name


@each_case("caller", ["run", "background", "rpc"])
async def test_what_had_begun_may_use_sleeping_threads_and_run_agents_there(caller: str) -> None:
    gate, found = Gate(), list[Any]()

    async with open_app() as app:

        async def use_others(_: Any = None) -> None:
            await gate.wait()
            found.append(await app.run("do", note, thread="two"))
            await app.thread(Desk, "desk").part(Desk.values).set("n", 1)
            found.append(await app.thread(Desk, "other").call(Desk.do, "run"))

        Desk.works = {"run": lambda: app.run("do", note, thread="three"), "use others": use_others}

        async def run(ctx: Context[Conversation]) -> None:
            if caller == "background":
                ctx.wait_until(use_others)
            else:
                await use_others()

        if caller == "rpc":
            task = asyncio.create_task(app.thread(Desk, "begin").call(Desk.do, "use others"))
        else:
            task = asyncio.create_task(app.run("do", run, thread="one"))
        await gate.somebody()
        app.drain()
        for work in (
            app.run("do", note, thread="one"),
            app.run("do", note, thread="new"),
            app.thread(Desk, "d").state(),
        ):
            with pytest.raises(Unavailable, match="shutting down"):
                await work
        gate.open()
        await ended(task)
        await end(app)
        assert found == ["two", "three"]
        assert await app.thread(Conversation, "two").part(Conversation.values).items() == [("noted", 1)]
        assert await app.thread(Conversation, "three").part(Conversation.values).items() == [("noted", 1)]
        assert await app.thread(Desk, "desk").part(Desk.values).items() == [("n", 1)]


async def test_the_background_work_of_a_run_that_was_called_meanwhile_is_waited_for() -> None:
    gate, later = Gate(), Gate()

    async def called(ctx: Context[Conversation]) -> str:
        async def work() -> None:
            await later.wait()
            await ctx.thread.values.set("later", 1)

        ctx.wait_until(work)
        return "answer"

    async with open_app() as app:

        async def run(ctx: Context[Conversation]) -> Any:
            await gate.wait()
            return await app.run("do", called, thread="two")

        task = asyncio.create_task(app.run("do", run, thread="one"))
        await gate.somebody()
        draining = app._node.drain(5.0)
        gate.open()
        assert await ended(task) == "answer"
        await later.somebody()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not draining.done()
        later.open()
        await end(app)
        assert await app.thread(Conversation, "two").part(Conversation.values).items() == [("later", 1)]


@each_case("is_taken", [False, True])
async def test_runs_that_were_called_meanwhile_are_cut_off_in_time_with_their_callers(is_taken: bool) -> None:
    gate, called = Gate(), Gate()

    async def wait(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("kept", ctx.thread.name)
        await called.arrive()
        while True:
            await asyncio.sleep(0.01)
            await ctx.checkpoint()

    async def look(ctx: Context[Conversation]) -> Any:
        return ctx.shutdown_interrupted, await ctx.thread.values.items()

    async with open_app(timeout=0.1) as app:

        async def run(ctx: Context[Conversation]) -> Any:
            await ctx.thread.values.set("kept", ctx.thread.name)
            await gate.wait()
            return await app.run("do", wait, thread="two")

        first = asyncio.create_task(app.run("do", wait, thread="two")) if is_taken else None
        if is_taken:
            await called.somebody()
        task = asyncio.create_task(app.run("do", run, thread="one"))
        await gate.somebody()
        app.drain()
        ending = asyncio.create_task(end(app))
        gate.open()
        assert isinstance(await ended(task), Interruption)
        assert first is None or await ended(first) == Interruption()
        await ended(ending)
        assert len(called.arrived) == 1
        for name in ("one", "two"):
            assert await app.run("do", look, thread=name) == (True, [("kept", name)])
