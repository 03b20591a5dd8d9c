"""Threads that end while agents run in them or know of them, and what an app is told of all that."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.cases import each_case
from tests.server.agents.lab import Conversation, Lab
from tests.server.agents.test_runs import Gate, ended
from tests.server.owning import submit

from plait import (
    Context,
    Destroyed,
    Interrupted,
    Limits,
    MemoryStore,
    Plait,
    Thread,
    ThreadKey,
    TooMany,
    Values,
)
from plait.store.protocol import Write

HOUR = 3600


async def test_a_run_may_destroy_its_thread_and_the_next_one_sees_a_new_one(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> str:
        await ctx.thread.values.set("a", 1)
        await ctx.thread.set_state({"answer": "old"})
        values, given = ctx.thread.values, list[int]()
        await values.set("list", given)
        await ctx.thread.destroy()
        for write in (
            lambda: values.set("b", 1),
            lambda: values.push("b", 1),
            lambda: values.delete("a"),
            values.clear,
            lambda: values.update("b", lambda _: 1),
            lambda: values.set_metadata({}),
        ):
            with pytest.raises(Destroyed):
                await write()
        given.append(1)
        return "reset"

    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("before", 1)

    await lab.do(put)
    assert await lab.do(work) == "reset"
    assert [key async for key in lab.app.threads()] == []
    assert await lab.values() == {}
    assert await lab.app.thread(Conversation, "one").state() == {"answer": ""}


async def test_a_run_that_writes_to_the_values_of_a_thread_that_it_has_destroyed_fails(lab: Lab) -> None:
    async def work(ctx: Context[Conversation]) -> str:
        await ctx.thread.destroy()
        await ctx.thread.values.set("b", 1)
        return "stored"

    with pytest.raises(Destroyed):
        await lab.do(work)
    assert await lab.values() == {}


async def test_a_run_in_progress_brings_nothing_back_when_its_thread_is_destroyed_from_outside(lab: Lab) -> None:
    gate = Gate()

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)
        await gate.arrive()
        await asyncio.Event().wait()

    task = asyncio.create_task(lab.do(work))
    await gate.somebody()
    await lab.app.thread(Conversation, "one").set_state({"answer": "old"})
    await lab.app.destroy(Conversation, "one")
    with pytest.raises(Destroyed):
        await ended(task)
    assert [key async for key in lab.app.threads()] == []
    assert await lab.values() == {}


@each_case("how", ["waits", "swallows", "raises", "writes", "sets the state", "queued", "interrupted"])
@each_case("agent", ["do", "stream"])
async def test_a_run_that_a_destroy_ends_is_told_so_whatever_it_makes_of_it(lab: Lab, how: str, agent: str) -> None:
    gate, over, is_held = Gate(), asyncio.Event(), how in ("writes", "sets the state")

    async def tell(thread: Any) -> None:
        gate.open()
        if is_held:
            await over.wait()  # The run goes on while its thread ends.

    async def work(ctx: Context[Conversation]) -> str:
        await ctx.thread.values.set("a", 1)
        await gate.arrive()
        try:
            if is_held:
                await gate.wait()
            else:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            match how:
                case "swallows":
                    return "answer"
                case "raises":
                    raise ZeroDivisionError from None
                case "interrupted":
                    raise Interrupted from None
                case _:
                    raise
        try:
            if how == "sets the state":
                ctx.thread.set_state({"answer": "late"})
            await ctx.thread.values.set("late", 1)
        finally:
            over.set()
        return "answer"

    async def stream(ctx: Context[Conversation]) -> AsyncIterator[str]:
        yield await work(ctx)

    lab.app.on("thread.destroyed", tell)
    await lab.app.thread(Conversation, "one").set_state({"answer": "old"})
    given: Any = work if agent == "do" else stream
    tasks = [asyncio.create_task(lab.app.run(agent, given, thread="one")) for _ in range(2 if how == "queued" else 1)]
    await gate.somebody()
    await lab.app.destroy(Conversation, "one")
    for task in tasks:
        with pytest.raises(Destroyed):
            await ended(task)
    assert await lab.values() == {}


class Watched(Thread[dict[str, Any]]):
    """Tells what it sees as it ends."""

    @staticmethod
    def initial_state() -> dict[str, Any]:
        return {"n": 0}

    values = Values()
    idle_timeout = 0.0
    expires_after = float(HOUR)
    told: ClassVar[list[Any]] = []
    has_told: ClassVar[asyncio.Event]

    async def on_destroyed(self) -> None:
        self.told.append(("hook", self.state, await self.values.items()))


@each_case("how", ["destroyed", "asleep", "expired"])
async def test_listeners_of_destroyed_run_after_the_hook_with_the_state_and_the_values(how: str) -> None:
    Watched.told.clear()
    Watched.has_told = asyncio.Event()
    store, key = MemoryStore(), ThreadKey("watched", "one")
    app = Plait(Watched, store=store)
    app._node._alarms._interval = 0.01  # type: ignore[attr-defined]

    @app.on("thread.destroyed")
    async def tell(thread: Watched) -> None:
        Watched.told.append(("listener", thread.name, thread.state, await thread.values.items()))
        Watched.has_told.set()

    @app.agent("put", thread=Watched)
    async def put(ctx: Context[Conversation]) -> None:
        await ctx.thread.values.set("a", 1)
        await ctx.thread.set_state({"n": 1})

    async with app:
        await app.run("put", thread="one")
        if how != "destroyed":
            await app.__aexit__(None, None, None)
            if how == "expired":
                async with store:
                    found = await store.find(key)
                    assert found is not None
                    last = Write(key, found.epoch, found.version, found.version, due=3, changed_at=1)
                    await submit(store, last)
            await app.__aenter__()
        if how == "expired":
            async with asyncio.timeout(10):
                await Watched.has_told.wait()
        else:
            await app.destroy(Watched, "one")
        assert Watched.told == [("hook", {"n": 1}, [("a", 1)]), ("listener", "one", {"n": 1}, [("a", 1)])]


async def test_a_thread_is_created_once_in_a_life(lab: Lab) -> None:
    told: list[str] = []
    lab.app.on("thread.created", lambda thread: told.append(thread.name))

    async def nothing(ctx: Context[Conversation]) -> None: ...

    for _ in range(3):
        await lab.do(nothing)
        await lab.sleep()
    assert told == ["one"]
    await lab.app.thread(Conversation, "two").set_state({"answer": "by hand"})
    await lab.sleep()
    assert told == ["one", "two"]
    await lab.app.destroy(Conversation, "one")
    await lab.do(nothing)
    await lab.sleep()
    assert told == ["one", "two", "one"]


async def test_each_event_comes_once_at_its_moment_and_bad_listeners_stop_nobody(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    @lab.app.on("agent.started")
    def bad(ctx: Context[Conversation]) -> None:
        raise ZeroDivisionError

    for event in ("session.started", "session.completed"):
        lab.app.on(event, lambda session, event=event: told.append((event, session.id)))
    for event in ("agent.started", "agent.completed"):
        lab.app.on(event, lambda ctx, event=event: told.append((event, ctx.agent)))

    @lab.app.on("agent.errored")
    async def errored(ctx: Context[Conversation], error: Exception) -> None:
        told.append(("agent.errored", type(error)))

    @lab.app.agent("inner", thread=Conversation)
    async def inner(ctx: Context[Conversation]) -> None:
        told.append("inner")

    async def work(ctx: Context[Conversation]) -> None:
        told.append("work")
        await ctx.run("inner")

    async def fail(ctx: Context[Conversation]) -> None:
        raise KeyError

    await lab.do(work, session_id="s1")
    await lab.values("other")  # Nothing of another thread comes in between.
    with pytest.raises(KeyError):
        await lab.do(fail, session_id="s2")
    await lab.sleep()
    assert told[:8] == [
        ("session.started", "s1"),
        ("agent.started", "do"),
        "work",
        ("agent.started", "inner"),
        "inner",
        ("agent.completed", "inner"),
        ("agent.completed", "do"),
        ("session.completed", "s1"),
    ]
    assert told[-4:] == [
        ("session.started", "s2"),
        ("agent.started", "do"),
        ("agent.errored", KeyError),
        ("session.completed", "s2"),
    ]
    assert "ZeroDivisionError" in caplog.text


async def test_what_a_listener_of_created_writes_stays_when_the_run_that_has_begun_the_thread_raises(lab: Lab) -> None:
    written = asyncio.Event()

    async def created(thread: Conversation) -> None:
        await thread.values.set("by", "listener")
        written.set()

    async def work(ctx: Context[Conversation]) -> None:
        await ctx.thread.set_state({"answer": "begun"})
        await ctx.thread.values.set("by", "run")
        await written.wait()
        raise ZeroDivisionError

    lab.app.on("thread.created", created)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(lab.do(work), 10)
    assert await lab.app.thread(Conversation, "one").part(Conversation.values).items() == [("by", "listener")]


def test_an_unknown_event_is_refused_with_the_nearest() -> None:
    app = Plait(Conversation, store="memory://")
    with pytest.raises(ValueError, match=r"did you mean 'thread\.created'"):
        app.on("thread.create", print)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="function"):
        app.on("thread.created", "no")  # type: ignore[call-overload]


async def test_threads_that_ran_once_leave_no_more_awake_than_the_limit_and_lose_nothing(tmp_path: Path) -> None:
    class Brief(Conversation):
        idle_timeout = 0.0

    app = Plait(Brief, store=f"sqlite:///{tmp_path / 'plait.db'}", limits=Limits(awake_threads=300))
    app._node._sweeper.interval = 0.01
    # How many runs have begun or were refused; those that have begun go on when all have.
    decided, may_go_on = asyncio.Semaphore(0), asyncio.Event()

    @app.agent("put", thread=Brief)
    async def put(ctx: Context[Brief], number: int) -> None:
        await ctx.thread.values.set("number", number)
        decided.release()
        await may_go_on.wait()

    @app.agent("look", thread=Brief)
    async def look(ctx: Context[Brief]) -> Any:
        return await ctx.thread.values.get("number")

    async def is_refused(number: int) -> bool:
        """Put a number into a thread of its own; return whether that was refused, as too many were awake."""
        try:
            await app.run("put", number, thread=str(number))
        except TooMany:
            decided.release()
            return True
        return False

    async with app:
        left = list(range(1200))
        while left:
            batch, left = left[:600], left[600:]
            putting = [asyncio.create_task(is_refused(number)) for number in batch]
            for _ in batch:
                await decided.acquire()
            assert len(app._node.actors) == min(len(batch), 300)
            may_go_on.set()
            left += [number for number, again in zip(batch, await asyncio.gather(*putting), strict=True) if again]
            may_go_on.clear()
            async with asyncio.timeout(10):
                while app._node.actors:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert [await app.run("look", thread=str(number)) for number in range(0, 1200, 100)] == [*range(0, 1200, 100)]
