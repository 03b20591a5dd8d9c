"""Runs in the life of their threads: asleep, moved, forked, exported, expired, terminated, given up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.parts.tasks.desk import Desk, records
from tests.server.parts.workshop import FlakyStore, open_workshop, until

from plait import MemoryStore, Plait, Step, TaskRun, Tasks, Thread, Values, rpc, task
from plait.errors import Terminated
from plait.parts.tasks.ended import KEPT_DAYS
from plait.testing import Served, serve

DAY = 86_400.0


class Clerk(Thread[dict[str, Any]]):
    """Its runs note what they do in the values."""

    initial_state = {"n": 0}  # noqa: RUF012
    idle_timeout = 5.0
    values = Values()
    tasks = Tasks()
    ends: list[TaskRun]
    awake: set[str]

    def on_start(self) -> None:
        self.awake.add(self.name)

    def on_stop(self) -> None:
        self.awake.discard(self.name)

    def on_task_end(self, run: TaskRun) -> None:
        self.ends.append(run)

    @task
    async def wait(self, step: Step, names: list[str]) -> list[Any]:
        """Do a step, and wait for a time, or for events."""
        await step.do("first", partial(self.values.push, "log", "first"))
        if not names:
            await step.sleep("long", 2 * DAY)
        found = [await step.event(name) for name in names]
        await step.do("last", partial(self.values.push, "log", "last"))
        return found

    @task
    async def many(self, step: Step, count: int) -> int:
        """Take many steps, with a checkpoint every three."""
        done = step.value or 0
        for number in range(done, count):
            await step.do(f"step {number % 3}", self.add)
            if number % 3 == 2:
                step.checkpoint(number + 1)
        return done

    def add(self) -> None:
        self.set_state({"n": self.state["n"] + 1})

    @rpc
    async def begin(self, name: str, args: list[Any]) -> str:
        return (await self.tasks.run(name, *args)).id


@pytest.fixture(autouse=True)
def none_awake() -> None:
    Clerk.ends, Clerk.awake = [], set()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """`plait.testing` runs on asyncio's own loop."""
    return "asyncio", {"use_uvloop": False}


@asynccontextmanager
async def serving(cls: type[Clerk] = Clerk) -> AsyncIterator[Served]:
    async with serve(Plait(cls, store=MemoryStore(), secret="test")) as t:
        yield t


# Time


async def test_the_clock_of_tests_drives_a_run_that_sleeps_and_its_thread_sleeps_too() -> None:
    async with serving() as t:
        clerk = t.app.thread(Clerk, "x")
        id = await clerk.call(Clerk.begin, "wait", [[]])
        await t.clock.advance(60)
        assert Clerk.awake == set()
        await t.clock.advance(2 * DAY - 120)
        assert Clerk.ends == []
        await t.clock.advance(120)
        assert [(run.id, run.status) for run in Clerk.ends] == [(id, "done")]
        assert await clerk.part(Clerk.values).get("log") == ["first", "last"]


async def test_the_clock_of_tests_drives_retries_and_timeouts() -> None:
    tried: list[float] = []

    class Trying(Clerk):
        @task
        async def work(self, step: Step) -> str:
            await step.do("weak", self.fail, attempts=4, base=60, most=3600)
            try:
                await step.event("never", timeout=DAY)
            except TimeoutError:
                return "late"
            return "in time"

        async def fail(self) -> None:
            tried.append(t.clock.now)
            if len(tried) < 4:
                raise ValueError("again")

    async with serving(Trying) as t:
        await t.app.thread(Trying, "x").call(Clerk.begin, "work", [])
        await t.clock.advance(DAY / 2)
        pauses = [after - before for before, after in pairwise(tried)]
        assert [60 * 2**n >= pause >= 30 * 2**n - 0.01 for n, pause in enumerate(pauses)] == [True] * 3
        assert Clerk.ends == []
        await t.clock.advance(DAY)
        assert [run.result for run in Clerk.ends] == ["late"]


@pytest.mark.parametrize("hours", [24, -24])
async def test_a_clock_that_jumps_ends_no_sleep_early_and_none_late(
    hours: int, store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.parts.tasks.waits._REST", 0.01)
    async with open_workshop(store, Clerk) as shop:
        clerk = await shop.thread(Clerk)
        id = (await clerk.tasks.run("wait", [])).id

        async def is_asleep() -> bool:
            found = await clerk.tasks.get(id)
            return found is not None and found.status == "sleeping"

        await until(is_asleep)
        clock.jump(hours * 3600)
        clock.move(2 * DAY - (86_400 if hours > 0 else 0) - 60)
        await asyncio.sleep(0.05)
        assert await is_asleep()
        clock.move(120)
        assert (await clerk.tasks.wait(id)).status == "done"


# Checkpoints


async def test_1200_steps_by_checkpoints_leave_at_most_20_records(store: FlakyStore) -> None:
    most = 0
    async with open_workshop(store, Clerk) as shop:
        clerk = await shop.thread(Clerk)
        run = await clerk.tasks.run("many", 1200)
        while clerk.state["n"] < 1200:
            most = max(most, len(await records(clerk)))
            await asyncio.sleep(0)
        assert (await clerk.tasks.wait(run.id)).result == 0
        assert 2 <= most <= 20


async def test_a_run_that_crashed_goes_on_from_its_last_checkpoint_and_takes_each_step_once(store: FlakyStore) -> None:
    ended = None
    for crash_at in (100, 250, 251, 252, 0):
        async with open_workshop(store, Clerk) as shop:
            clerk = await shop.thread(Clerk)
            id = (await clerk.tasks.run("many", 400, key="k")).id
            await until(lambda: clerk.state["n"] >= crash_at)  # noqa: B023
            if crash_at:
                await shop.crash()
            else:
                ended = await clerk.tasks.wait(id)
                assert clerk.state["n"] == 400
    assert ended is not None
    assert ended.status == "done"
    assert ended.result >= 249


# Ended runs


async def test_what_is_over_is_kept_for_7_days() -> None:
    async with serving() as t:
        clerk = t.app.thread(Clerk, "x")
        id = await clerk.call(Clerk.begin, "wait", [["go"]])
        failed = await clerk.call(Clerk.begin, "wait", [["other"]])
        await clerk.part(Clerk.tasks).cancel(failed)
        await clerk.part(Clerk.tasks).send(id, "go")
        await t.clock.settle()
        await t.clock.advance(KEPT_DAYS * DAY - 60)
        assert {run.status for run in await clerk.part(Clerk.tasks).list()} == {"done", "cancelled"}
        await t.clock.advance(120)
        assert Clerk.awake == set() or await clerk.part(Clerk.tasks).list() == []
        assert await clerk.part(Clerk.tasks).get(id) is None
        actor = await t.app._node.actor(clerk._key)
        assert await records(actor.thread) == []
        assert await t.app._store.due_threads(until=2**62) == []


# Threads that end, move, and are copied


async def test_a_thread_that_moves_to_another_node_takes_its_waiting_run_along(store: FlakyStore) -> None:
    async with open_workshop(store, Clerk) as shop:
        clerk = await shop.thread(Clerk)
        id = (await clerk.tasks.run("wait", ["go", "more"])).id
        await until(lambda: _has_log(clerk))
        await shop.node._alarms.stop()
        async with open_workshop(store, Clerk) as other:
            moved = await other.thread(Clerk)
            assert await moved.tasks.send(id, "go", 1)
            await moved.tasks.send(id, "more", 2)
            assert (await moved.tasks.wait(id)).result == [1, 2]
            assert await moved.values.get("log") == ["first", "last"]


async def _has_log(clerk: Clerk) -> bool:
    return await clerk.values.get("log", []) == ["first"]


async def test_a_fork_leaves_the_runs_behind_and_keeps_the_ended_ones() -> None:
    async with serving() as t:
        clerk = t.app.thread(Clerk, "x")
        over = await clerk.call(Clerk.begin, "many", [3])
        await t.clock.advance(60)
        id = await clerk.call(Clerk.begin, "wait", [["go"]])
        await t.clock.advance(60)
        copy = await t.app.fork_thread(Clerk, "x", "y")
        assert [run.id for run in await copy.part(Clerk.tasks).list()] == [over]
        assert not await copy.part(Clerk.tasks).send(id, "go")
        assert await clerk.part(Clerk.tasks).send(id, "go")
        await t.clock.advance(60)
        assert [run.id for run in Clerk.ends] == [over, id]
        assert await copy.part(Clerk.values).get("log") == ["first"]
        await t.clock.advance(KEPT_DAYS * DAY)
        assert await records((await t.app._node.actor(copy._key)).thread) == []


async def test_an_export_takes_the_journal_along_and_the_run_goes_on_where_it_is_imported() -> None:
    async with serving() as t:
        id = await t.app.thread(Clerk, "x").call(Clerk.begin, "wait", [["go"]])
        await t.clock.advance(60)
        data = b"".join([lines async for lines in t.app.export_thread(Clerk, "x")])
    async with serving() as t:
        clerk = await t.app.import_thread(data)
        await t.clock.settle()
        assert await t.app.thread(Clerk, "x").part(Clerk.tasks).send(id, "go", 7)
        await t.clock.advance(60)
        assert [(run.id, run.result) for run in Clerk.ends] == [(id, [7])]
        assert await t.app.thread(Clerk, "x").part(Clerk.values).get("log") == ["first", "last"]
        assert clerk is not None


async def test_a_thread_does_not_expire_before_its_runs_are_over() -> None:
    class Brief(Clerk):
        kind = "clerk"
        expires_after = DAY / 4

    async with serving(Brief) as t:
        await t.app.thread(Brief, "x").call(Clerk.begin, "wait", [[]])
        await t.clock.advance(1.9 * DAY)
        assert [row.key.name async for row in t.app.threads()] == ["x"]
        await t.clock.advance(DAY / 2)
        assert [run.status for run in Clerk.ends] == ["done"]
        assert [row.key.name async for row in t.app.threads()] == []


async def test_a_terminated_thread_cancels_all_runs_and_takes_no_more(store: FlakyStore) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def do(desk: Desk, step: Step) -> None:
        await step.do("hang", hang)

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        ids = [(await desk.tasks.run("work")).id for _ in range(3)]
        await begun.wait()
        await desk.terminate()
        assert [(await desk.tasks.wait(id)).status for id in ids] == ["cancelled"] * 3
        with pytest.raises(Terminated):
            desk.tasks.run("work")
        assert not await desk.tasks.send(ids[0], "go")
        await until(lambda: len(Desk.ends) == 3)
        assert desk.tasks._runner.times == (0, 0)


# Crashes


async def test_a_run_that_ends_its_process_10_times_without_progress_is_given_up_and_tells_the_thread(
    store: FlakyStore,
) -> None:
    id = ""
    for number in range(10):
        begun = asyncio.Event()

        async def hang(begun: asyncio.Event = begun) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def do(desk: Desk, step: Step) -> None:
            await step.do("once", lambda: desk.seen.append("once"))
            await step.do("hang", hang)

        Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            if number == 0:
                id = (await desk.tasks.run("work")).id
            await asyncio.wait_for(begun.wait(), 10)
            await shop.crash()
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        ended = await desk.tasks.wait(id)
        assert ended.status == "failed"
        assert ended.error is not None
        assert "10 times" in ended.error
        await until(lambda: len(Desk.ends) == 1)
        assert Desk.ends == [ended]
        assert len(Desk.errors) == 1
        assert await desk.tasks.retry(id)
        await begun_again(desk, id)
    assert Desk.seen == ["once"]


async def begun_again(desk: Desk, id: str) -> None:
    async def do(desk: Desk, step: Step) -> str:
        await step.do("once", lambda: desk.seen.append("again"))
        return await step.do("hang", lambda: "went on")

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    await desk.tasks.cancel(id)
    assert await desk.tasks.retry(id)
    assert (await desk.tasks.wait(id)).result == "went on"


async def test_crashes_with_progress_in_between_give_up_nothing(store: FlakyStore) -> None:
    id = ""
    for number in range(25):
        reached = asyncio.Event()

        async def hang(reached: asyncio.Event = reached) -> None:
            reached.set()
            await asyncio.Event().wait()

        async def do(desk: Desk, step: Step) -> str:
            for n in range(number + 1):  # noqa: B023
                await step.do(f"step {n}", partial(desk.seen.append, n))
            if number < 24:  # noqa: B023
                await step.do("hang", hang)
            return "done"

        Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            if number == 0:
                id = (await desk.tasks.run("work")).id
            if number < 24:
                await asyncio.wait_for(reached.wait(), 10)
                await shop.crash()
            else:
                assert (await desk.tasks.wait(id)).result == "done"
    assert Desk.seen == [*range(25)]


async def test_a_run_that_waits_is_not_blamed_for_crashes(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> Any:
        desk.seen.append("begun")
        return await step.event("go")

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    id = ""
    for number in range(12):
        async with open_workshop(store, Desk) as shop:
            desk = await shop.thread(Desk)
            if number == 0:
                id = (await desk.tasks.run("work")).id
                await until(lambda: Desk.seen == ["begun"])
            await until(partial(_waits, desk, id))
            await shop.crash()
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        assert await desk.tasks.send(id, "go", 1)
        assert (await desk.tasks.wait(id)).result == 1


async def _waits(desk: Desk, id: str) -> bool:
    await desk._actor.state.wait_until_durable()
    return desk.tasks._runner.agenda.rows[id].is_resting
