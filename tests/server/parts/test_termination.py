"""Threads that take no new work, and runs that a part begins."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.parts.workshop import FlakyStore, Workshop, open_workshop, until

from plait.actor.connection import Connection
from plait.actor.events import Events
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.agents.agent import Agent
from plait.agents.context import Context
from plait.agents.runs import Runs
from plait.errors import Busy, NotFound, StoreError, Terminated, Unavailable, is_outage
from plait.parts.attempts import Uncounted
from plait.parts.schedule.effects import effect
from plait.parts.schedule.schedule import Schedule
from plait.parts.values import Values
from plait.store.thread_rows import ThreadKey


class Task(Thread[int]):
    """Works until it is terminated."""

    initial_state = 0
    values = Values()
    schedule = Schedule()
    seen: list[str]

    @effect
    async def work(self) -> None:
        self.seen.append("work")
        try:
            await self.values.set("worked", 1)
            await asyncio.Event().wait()
        finally:
            self.seen.append("end")

    @effect
    async def finish(self) -> None:
        await self.values.set("finished", 1)
        await self.terminate()
        self.seen.append("finished")

    @rpc
    def add(self) -> int:
        self.set_state(lambda state: state + 1)
        return self.state

    def on_terminated(self) -> None:
        self.seen.append(f"terminated {self.terminated_at is not None}")

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.seen.append(f"error {error}")


@pytest.fixture(autouse=True)
def fresh() -> None:
    Task.seen = []


def make_runs(agent: Any, **options: Any) -> Runs:
    runs = Runs(Events())
    runs.add(Agent("do", agent, Task._kind, **options))
    return runs


async def begin(shop: Workshop) -> "asyncio.Future[tuple[BaseException | None, bool]]":
    ended: asyncio.Future[tuple[BaseException | None, bool]] = asyncio.get_running_loop().create_future()
    actor = await shop.actor(Task)

    def end(is_interrupted: bool | None, error: BaseException | None) -> None:
        is_uncounted = isinstance(error, Uncounted)
        cause = error.__cause__ if error is not None and is_uncounted else error
        ended.set_result((cause, is_uncounted or bool(is_interrupted) or (error is not None and is_outage(error))))

    actor.begin("run", partial(actor.run_agent, "do"), end)
    return ended


async def idle(ctx: Context[Task]) -> None:
    """Write a value, then wait until the run is interrupted."""
    await ctx.thread.values.set("run", 1)
    Task.seen.append("run")
    while True:
        await ctx.thread.values.get("run")
        await asyncio.sleep(0)


# Termination


async def test_one_write_marks_the_thread_and_removes_its_schedules(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task) as shop:
        task = await shop.thread(Task)
        await task.schedule.after(60, "work")
        await task.schedule.every(60, "work")
        assert task.terminated_at is None
        before = len(store.writes)
        await task.terminate()
        assert len(store.writes) == before + 1
        assert task.terminated_at == clock.now
        assert await task.schedule.list() == []
        assert await shop.due() == {}
        await until(lambda: task.seen == ["terminated True"])


async def test_a_terminated_thread_stays_so_takes_no_new_work_and_can_be_read(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task) as shop:
        task = await shop.thread(Task)
        await task.values.set("a", 1)
        await task.terminate()
    at = clock.now
    clock.move(60)
    runs = make_runs(idle)
    async with open_workshop(store, Task, runs=runs) as shop:
        task = await shop.thread(Task)
        await task.terminate()  # Again.
        assert task.terminated_at == at
        for call in (
            lambda: task.schedule.after(1, "work"),
            lambda: task.schedule.every(1, "work"),
            lambda: task.schedule.queue("work"),
        ):
            with pytest.raises(Terminated, match="task/one was terminated") as caught:
                call()
        assert (caught.value.code, caught.value.status) == ("terminated", 409)
        error, is_cut = await (await begin(shop))
        assert isinstance(error, Terminated)
        assert is_cut
        assert await task.values.get("a") == 1
        assert await shop.handle(Task).add() == 1
        assert await shop.handle(Task).schedule.list() == []
        assert await task.schedule.cancel("x") is False
        assert Task.seen == ["terminated True"]


async def test_a_handle_terminates_only_a_thread_that_there_is(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task) as shop:
        with pytest.raises(NotFound):
            await shop.handle(Task).terminate()
        await shop.handle(Task).add()
        await shop.handle(Task).terminate()
        assert (await shop.thread(Task)).terminated_at == clock.now


async def test_what_runs_is_cancelled_and_leaves_nothing(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task) as shop:
        task = await shop.thread(Task)
        await task.schedule.after(0, "work")
        await until(lambda: task.seen == ["work"])
        await task.terminate()
        await until(lambda: {"end", "terminated True"} <= {*task.seen})
        assert await task.values.get("worked") is None
        clock.move(3600)
        assert "error" not in " ".join(task.seen)


async def test_an_effect_that_terminates_its_thread_goes_on_and_its_writes_stay(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Task) as shop:
        task = await shop.thread(Task)
        await task.schedule.after(0, "finish")
        await until(lambda: "finished" in task.seen)
        await until(lambda: _is(task, "finished", 1))
        assert task.terminated_at == clock.now
        assert await task.schedule.list() == []


async def _is(task: Task, key: str, value: Any) -> bool:
    return bool(await task.values.get(key) == value)


async def test_a_run_that_a_part_began_is_interrupted_and_leaves_nothing(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task, runs=make_runs(idle)) as shop:
        task = await shop.thread(Task)
        ended = await begin(shop)
        await until(lambda: task.seen == ["run"])
        waiting = await begin(shop)
        (queue,) = shop.node._runs._queues.values()
        await until(lambda: len(queue._waiting) == 1)
        await task.terminate()
        error, is_cut = await ended
        assert isinstance(error, Unavailable)
        assert is_cut
        assert await _is(task, "run", None)
        error, is_cut = await waiting
        assert isinstance(error, Terminated)
        assert is_cut


async def test_a_run_that_terminates_its_thread_is_not_interrupted(store: FlakyStore, clock: Clock) -> None:
    async def do(ctx: Context[Task]) -> None:
        await ctx.thread.terminate()
        await ctx.thread.values.set("last", 1)
        ctx.thread.schedule.cancel("x")
        with pytest.raises(Terminated):
            ctx.thread.schedule.after(1, "work")

    async with open_workshop(store, Task, runs=make_runs(do)) as shop:
        task = await shop.thread(Task)
        assert await (await begin(shop)) == (None, False)
        assert await _is(task, "last", 1)


async def test_what_a_run_has_scheduled_is_dropped_if_the_thread_is_terminated_before_it_ends(
    store: FlakyStore, clock: Clock
) -> None:
    gate = asyncio.Event()

    async def do(ctx: Context[Task]) -> None:
        ctx.thread.schedule.after(1, "work")
        Task.seen.append("scheduled")
        await gate.wait()

    async with open_workshop(store, Task, runs=make_runs(do)) as shop:
        task = await shop.thread(Task)
        ended = await begin(shop)
        await until(lambda: task.seen == ["scheduled"])
        await task.terminate()
        gate.set()
        await ended
        assert await task.schedule.list() == []
        assert await shop.due() == {}


async def test_a_transaction_that_raises_terminates_nothing(store: FlakyStore, clock: Clock) -> None:
    def fail(task: Task) -> None:
        with task.transaction():
            task.terminate()
            assert task.terminated_at is not None
            raise KeyError

    async with open_workshop(store, Task) as shop:
        task = await shop.thread(Task)
        id = await task.schedule.after(60, "work")
        with pytest.raises(KeyError):
            fail(task)
        assert task.terminated_at is None
        assert [each.id for each in await task.schedule.list()] == [id]
        assert [*await shop.due()] == [ThreadKey("task", "one")]
        assert task.seen == []


# Runs that a part begins


async def test_a_begun_run_tells_its_end_and_what_it_raised(store: FlakyStore, clock: Clock) -> None:
    outcomes: list[BaseException | None] = [None, RuntimeError("x"), StoreError("away"), Busy("not now")]

    async def do(ctx: Context[Task]) -> None:
        await ctx.thread.values.push("runs", len(outcomes))
        if (error := outcomes.pop(0)) is not None:
            raise error

    async with open_workshop(store, Task, runs=make_runs(do)) as shop:
        found = [await (await begin(shop)) for _ in range(4)]
        assert [(type(error).__name__, is_cut) for error, is_cut in found] == [
            ("NoneType", False),
            ("RuntimeError", False),
            ("StoreError", True),
            ("Busy", False),
        ]
        assert await (await shop.thread(Task)).values.get("runs") == [4]


async def test_a_begun_run_that_could_not_begin_says_nothing_about_its_agent(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task, runs=make_runs(idle, multitask="reject")) as shop:
        first = await begin(shop)
        await until(lambda: Task.seen == ["run"])
        error, is_cut = await (await begin(shop))
        assert isinstance(error, Busy)
        assert is_cut
        shop.node._runs.interrupt(ThreadKey("task", "one"))
        assert await first == (None, True)


async def test_a_begun_run_of_an_agent_that_streams_is_read_to_its_end(store: FlakyStore, clock: Clock) -> None:
    async def do(ctx: Context[Task]) -> AsyncIterator[int]:
        for number in range(3):
            await ctx.thread.values.push("chunks", number)
            yield number

    async with open_workshop(store, Task, runs=make_runs(do)) as shop:
        assert await (await begin(shop)) == (None, False)
        assert await (await shop.thread(Task)).values.get("chunks") == [0, 1, 2]


async def test_a_run_that_a_shutdown_cuts_off_says_nothing_about_its_agent(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task, runs=make_runs(idle)) as shop:
        ended = await begin(shop)
        await until(lambda: Task.seen == ["run"])
        await shop.node.drain(0.01)
        assert (await ended)[1]


async def test_a_run_of_an_agent_that_there_is_not_is_refused_at_once(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Task) as shop:
        actor = await shop.actor(Task)
        with pytest.raises(ValueError, match="there is no agent 'do'"):
            actor.run_agent("do")
