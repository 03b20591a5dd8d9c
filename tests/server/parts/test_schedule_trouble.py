"""Schedules when the store fails, processes end, servers shut down, and agents run."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.fakes import TroubledStore
from tests.server.parts.workshop import SECOND, SOON, FlakyStore, Workshop, open_workshop, until

from plait.actor.connection import Connection
from plait.actor.events import Events
from plait.actor.thread import Thread
from plait.agents.agent import Agent
from plait.agents.context import Context
from plait.agents.runs import Runs
from plait.errors import Destroyed, RolledBack, StoreError, TooMany, Unavailable
from plait.parts.attempts import CRASHES
from plait.parts.messages.thread_messages import Messages
from plait.parts.schedule.effects import effect
from plait.parts.schedule.schedule import MOST_ROWS, Schedule, Scheduled
from plait.parts.values import Values
from plait.store.protocol import Write
from plait.store.thread_rows import RecordRange, ThreadKey

KEY = ThreadKey("worker", "one")


class Worker(Thread[int]):
    """Does what the test tells it to."""

    initial_state = 0
    values = Values()
    schedule = Schedule()
    gate = asyncio.Event()
    began: list[str]
    errors: list[str]

    @effect(attempts=2, base=10.0)
    async def work(self, name: str = "") -> None:
        self.began.append(name)
        await self.values.push("done", name)
        await self.gate.wait()

    @effect
    def raise_(self, error: str) -> None:
        errors = {"outage": StoreError, "shutdown": Unavailable, "mistake": RolledBack, "gone": Destroyed}
        raise errors[error](error)

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.errors.append(str(error))


class Scribe(Thread[int]):
    """Answers in messages."""

    initial_state = 0
    messages = Messages()
    schedule = Schedule()

    def __init__(self) -> None:
        self.taken: list[str | None] = []
        self.is_well = False
        self.gate, self.opened = asyncio.Event(), asyncio.Event()
        self.late: asyncio.Task[None]

    @effect
    async def answer(self) -> None:
        self.taken += [each.content for each in await self.messages.take()]
        async with self.messages.stream() as m:
            m.append("whole" if self.is_well else "half")
        if not self.is_well:
            raise RuntimeError("it failed")
        await self.gate.wait()

    @effect
    async def leave(self) -> None:
        self.late = asyncio.create_task(self.write())
        await self.opened.wait()

    async def write(self) -> None:
        async with self.messages.stream() as m:
            m.append("late")
            self.opened.set()
            await self.gate.wait()


@pytest.fixture(autouse=True)
def fresh() -> None:
    Worker.gate, Worker.began, Worker.errors = asyncio.Event(), [], []


async def rows(worker: Worker) -> list[Scheduled]:
    return await worker.schedule.list()


def is_done(worker: Worker, *names: str) -> Any:
    async def check() -> bool:
        return bool(await worker.values.get("done", []) == [*names]) and await rows(worker) == []

    return check


def touches_schedule(write: Write) -> bool:
    return any(record.part == "schedule" for record in write.records)


# The store


async def test_what_could_not_be_stored_is_not_scheduled(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        kept = await worker.schedule.after(60, "work", "kept")
        store.refuses = touches_schedule
        for call in (
            lambda: worker.schedule.after(0, "work", "lost"),
            lambda: worker.schedule.every(60, "work"),
            lambda: worker.schedule.cancel(kept),
            worker.terminate,
        ):
            with pytest.raises(StoreError, match="disk is full"):
                await call()
            assert [each.id for each in await rows(worker)] == [kept]
        store.refuses = lambda _: False
        assert worker.terminated_at is None
        worker.gate.set()
        await worker.values.set("other", 1)  # It tells the store again when the thread is due.
        assert await shop.due() == {KEY: clock.now + 60 * SECOND}
        clock.move(60)
        await until(is_done(worker, "kept"))


async def test_an_outage_of_the_store_does_not_count_as_an_attempt(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        worker.gate.set()
        await worker.schedule.after(0, "work", "a")
        tried = 0

        def refuses(write: Write) -> bool:
            nonlocal tried
            tried += touches_schedule(write)
            return touches_schedule(write)

        store.refuses = refuses
        await until(lambda: tried > 0)
        await asyncio.sleep(6 * SOON)
        assert tried <= 2  # It rests, though that cannot be stored, either.
        clock.move(300)
        for _ in range(8):  # More often than it has attempts; it rests for longer each time.
            before = tried
            await until(lambda before=before: tried > before)
            clock.move(300)
        store.refuses = lambda _: False

        async def is_over() -> bool:
            clock.move(10)
            return bool(await is_done(worker, "a")())

        await until(is_over)
        assert worker.errors == []


@pytest.mark.parametrize("error", ["outage", "shutdown"])
async def test_an_effect_that_raises_an_outage_is_tried_again_without_end(
    error: str, store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        await worker.schedule.after(0, "raise_", error)
        rests = []
        for _ in range(12):
            before = clock.now
            await until(lambda: _is_after(worker, clock))
            (found,) = await rows(worker)
            rests.append((found.due - before) / SECOND)
            assert (found.attempt, found.status) == (1, "pending")
            clock.set(found.due)
        assert rests[:3] == [1, 2, 4]
        assert rests[-2:] == [300, 300]
        assert worker.errors == []


async def _is_after(worker: Worker, clock: Clock) -> bool:
    return all(each.due > clock.now for each in await rows(worker))


@pytest.mark.parametrize("error", ["mistake", "gone"])
async def test_a_mistake_and_the_end_of_another_thread_count(error: str, store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        await worker.schedule.after(0, "raise_", error)
        await until(lambda: _is_attempt(worker, 2))


async def _is_attempt(worker: Worker, attempt: int) -> bool:
    return [each.attempt for each in await rows(worker)] == [attempt]


async def test_an_effect_whose_end_could_not_be_stored_leaves_nothing_and_runs_again(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        worker.gate.set()
        await worker.schedule.after(0, "work", "a")
        store.refuses = lambda write: any(record.part == "values" for record in write.records)
        await until(lambda: _is_after(worker, clock))
        store.refuses = lambda _: False
        assert worker.began == ["a"]
        assert await worker.values.get("done") is None
        clock.move(1)
        await until(is_done(worker, "a"))
        assert worker.began == ["a", "a"]


async def test_an_effect_that_raises_releases_what_it_took_and_fails_what_it_was_writing(
    store: FlakyStore, clock: Clock
) -> None:
    async with open_workshop(store, Scribe) as shop:
        scribe = await shop.thread(Scribe)
        await scribe.messages.queue("a")
        await scribe.schedule.after(0, "answer")
        await until(lambda: _is_failed(scribe, "half"))
        clock.move(10)
        scribe.is_well = True
        await until(lambda: scribe.taken == ["a", "a"])


async def test_what_was_taken_is_released_when_the_write_of_a_cancelled_effect_fails(clock: Clock) -> None:
    store: Any = TroubledStore()
    async with store, open_workshop(store, Scribe) as shop:
        scribe, actor = await shop.thread(Scribe), await shop.actor(Scribe)
        scribe.is_well = True
        await scribe.messages.queue("a")
        await scribe.schedule.after(0, "answer")
        await until(lambda: scribe.taken == ["a"])
        store.is_held = True
        scribe.gate.set()
        await until(lambda: len(store.waiting) == 1)
        actor.turns.cancel()
        await asyncio.sleep(0)
        store.fail_next()
        store.resume()
        await actor.wait_until_idle()
        assert [each.content for each in await scribe.messages.take()] == ["a"]


async def test_a_message_that_ends_after_its_effect_is_failed(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Scribe) as shop:
        scribe = await shop.thread(Scribe)
        await scribe.schedule.after(0, "leave")
        await until(lambda: _has_left(scribe))
        scribe.gate.set()
        await scribe.late
        assert await _is_failed(scribe, "late")


async def _is_failed(scribe: "Scribe", content: str) -> bool:
    found = (await scribe.messages.list()).messages
    return [(each.content, each.status) for each in found if each.status != "pending"] == [(content, "failed")]


async def _has_left(scribe: "Scribe") -> bool:
    return await scribe.schedule.list() == []


async def test_a_shutdown_while_the_end_of_a_run_is_stored_does_not_repeat_it(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store: Any = TroubledStore()
    async with store, open_workshop(store, Worker) as shop:
        worker, actor = await shop.thread(Worker), await shop.actor(Worker)
        await worker.schedule.every(3600, "work", "a")
        clock.move(3600)
        await until(has_begun(1))
        store.is_held = True
        worker.gate.set()
        await until(lambda: len(store.waiting) == 1)
        draining = asyncio.ensure_future(shop.node.drain(0.001))
        await until(lambda: "cancelling the turns" in caplog.text)
        store.resume()
        await draining
        await actor.wait_until_idle()
        assert [each.due for each in await rows(worker)] == [clock.now + 3600 * SECOND]


# Processes


async def test_an_attempt_is_stored_before_the_code_begins(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        await worker.schedule.after(0, "work", "a")
        await until(lambda: worker.began == ["a"])
        (record,) = await store.records(KEY, RecordRange("schedule"))
        assert record.value is not None
        assert b'"process"' in record.value
        assert await shop.due() == {KEY: (await rows(worker))[0].due}
        worker.gate.set()


@pytest.mark.parametrize("recurs", [False, True])
async def test_what_ends_its_process_three_times_is_given_up(store: FlakyStore, clock: Clock, recurs: bool) -> None:
    begin = clock.now
    for number in range(CRASHES):
        async with open_workshop(store, Worker) as shop:
            worker = await shop.thread(Worker)
            if number == 0:
                await (worker.schedule.every(60, "work", "a") if recurs else worker.schedule.after(0, "work", "a"))
                clock.move(60)
            await until(has_begun(number + 1))
            assert [each.attempt for each in await rows(worker)] == [number + 1]
            await shop.crash()
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        await until(lambda: len(worker.errors) == 1)
        assert worker.errors == ["the effect work has ended the process 3 times, and this run is not tried again"]
        assert worker.began == ["a"] * 3
        assert await shop.due() == ({KEY: begin + 420 * SECOND} if recurs else {})
        left = await rows(worker)
        assert [(each.due, each.attempt) for each in left] == ([(begin + 420 * SECOND, 1)] if recurs else [])


async def test_what_recurs_goes_on_after_crashes_and_is_given_up_after_one_more_until_it_ends(
    store: FlakyStore, clock: Clock
) -> None:
    begin = clock.now

    async def due_is(seconds: int) -> bool:
        return await shop.due() == {KEY: begin + seconds * SECOND}

    for number in range(CRASHES + 1):
        async with open_workshop(store, Worker) as shop:
            worker = await shop.thread(Worker)
            if number == 0:
                await worker.schedule.every(60, "work", "a")
                clock.move(60)
            if number == CRASHES:
                await until(partial(due_is, 420))
                clock.move(360)
            await until(has_begun(number + 1))
            assert shop.node._host.suspects.locked() == (number >= CRASHES - 1)
            await shop.crash()
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        await until(partial(due_is, 1080))
        once_more = "the effect work has ended the process once more, and this run is not tried again"
        await until(lambda: worker.errors[-1:] == [once_more])
        clock.move(660)
        await until(has_begun(CRASHES + 2))
        worker.gate.set()
        await until(partial(due_is, 1140))  # A run has ended.


async def test_neighbours_of_what_ends_the_process_are_not_given_up_with_it(store: FlakyStore, clock: Clock) -> None:
    names = ["killer", "b", "c"]
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        with worker.transaction():
            for name in names:
                worker.schedule.after(60, "work", name)
    clock.move(60)
    for _ in range(CRASHES - 1):
        async with open_workshop(store, Worker) as shop:
            worker = await shop.thread(Worker)
            worker.began.clear()
            await until(has_begun(3))
            await shop.crash()
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        worker.began.clear()
        await until(lambda: worker.began == ["killer"])
        for _ in range(20):  # The others wait for its end.
            await asyncio.sleep(0.001)
        assert worker.began == ["killer"]
        await shop.crash()
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        worker.gate.set()
        await until(is_done(worker, "b", "c"))
        await until(lambda: len(worker.errors) == 1)


async def test_a_shutdown_does_not_count(store: FlakyStore, clock: Clock) -> None:
    for number in range(1, 5):
        async with open_workshop(store, Worker) as shop:
            worker = await shop.thread(Worker)
            if number == 1:
                await worker.schedule.after(0, "work", "a")
            await until(has_begun(number))
            assert [each.attempt for each in await rows(worker)] == [1]
            await shop.node.drain(0.001)
        clock.move(1)
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        worker.gate.set()
        await until(is_done(worker, "a"))
        assert worker.errors == []


async def test_nothing_begins_while_the_server_shuts_down(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        await worker.schedule.after(0, "work", "a")
        await until(has_begun(1))
        draining = shop.node.drain(5)
        await worker.schedule.after(1, "work", "late")
        clock.move(1)
        await asyncio.sleep(4 * SOON)
        worker.gate.set()
        await draining
        assert worker.began == ["a"]
    async with open_workshop(store, Worker) as shop:
        await until(is_done(await shop.thread(Worker), "a", "late"))


def has_begun(count: int) -> Callable[[], bool]:
    return lambda: len(Worker.began) == count


async def test_a_thread_that_was_taken_over_by_another_process_finishes_there(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        await worker.schedule.after(0, "work", "a")
        await until(lambda: worker.began == ["a"])
        await shop.node._alarms.stop()
        async with open_workshop(store, Worker) as other:
            again = await other.thread(Worker)
            await until(lambda: worker.began == ["a", "a"])
            assert await _is_attempt(again, 2)
            worker.gate.set()
            await until(is_done(again, "a"))


# Runs of agents


def make_runs(agent: Any) -> Runs:
    runs = Runs(Events())
    runs.add(Agent("do", agent, Worker._kind))
    return runs


async def run(shop: Workshop) -> BaseException | None:
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    actor = await shop.actor(Worker)
    actor.begin("run", partial(actor.run_agent, "do"), lambda _, error: ended.set_result(error))
    return await ended


async def test_what_a_run_schedules_is_stored_with_the_run(store: FlakyStore, clock: Clock) -> None:
    paused, resumed = asyncio.Event(), asyncio.Event()

    async def do(ctx: Context[Worker]) -> None:
        schedule = ctx.thread.schedule
        (kept,) = await schedule.list()
        first = await schedule.after(0, "work", "a", key="k")
        assert await schedule.after(5, "work", "b", key="k") == first
        extra = await schedule.after(0, "work", "c")
        assert await schedule.cancel(extra) is True
        assert await schedule.cancel(extra) is False
        assert await schedule.cancel(kept.id) is True
        assert [each.id for each in await schedule.list()] == [first]
        paused.set()
        await resumed.wait()

    runs = make_runs(do)
    async with open_workshop(store, Worker, runs=runs) as shop:
        worker = await shop.thread(Worker)
        worker.gate.set()
        await worker.schedule.after(60, "work", key="kept")
        running = asyncio.create_task(run(shop))
        await paused.wait()
        assert [each.key for each in await rows(worker)] == ["kept"]
        resumed.set()
        assert await running is None
        await until(is_done(worker, "a"))


@pytest.mark.parametrize("raises", [False, True])
async def test_what_a_run_replaces_is_replaced_with_the_run(store: FlakyStore, clock: Clock, raises: bool) -> None:
    replaced, resumed = asyncio.Event(), asyncio.Event()

    async def do(ctx: Context[Worker]) -> None:
        schedule = ctx.thread.schedule
        ids = [await schedule.after(seconds, "work", "b", key="k", replace=True) for seconds in (30, 40, 50)]
        assert [each.id for each in await schedule.list()] == ids[-1:]
        replaced.set()
        await resumed.wait()
        if raises:
            raise RuntimeError("it failed")

    async with open_workshop(store, Worker, runs=make_runs(do)) as shop:
        worker = await shop.thread(Worker)
        first = await worker.schedule.after(60, "work", "a", key="k")
        running = asyncio.create_task(run(shop))
        await replaced.wait()
        assert [each.id for each in await rows(worker)] == [first]
        resumed.set()
        await running
        expected = (["a"], clock.now + 60 * SECOND) if raises else (["b"], clock.now + 50 * SECOND)
        assert [(each.args, each.due) for each in await rows(worker)] == [expected]


async def test_what_could_not_be_replaced_still_waits(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Worker) as shop:
        worker = await shop.thread(Worker)
        first = await worker.schedule.after(60, "work", "a", key="k")
        store.refuses = touches_schedule
        with pytest.raises(StoreError):
            await worker.schedule.after(90, "work", "b", key="k", replace=True)
        store.refuses = lambda _: False
        worker = await shop.thread(Worker)
        assert [each.id for each in await rows(worker)] == [first]


async def test_a_run_schedules_as_many_as_a_thread_may_have(store: FlakyStore, clock: Clock) -> None:
    counted, kept = list[int](), list[str]()

    async def do(ctx: Context[Worker]) -> None:
        schedule = ctx.thread.schedule
        ids = [schedule.after(60, "work", "a", key=f"{number}").id for number in range(MOST_ROWS - 1)]
        for refused in ("after", "queue"):
            with pytest.raises(TooMany):
                schedule.after(60, "work", "b") if refused == "after" else schedule.queue("work", "b")
        assert [schedule.after(60, "work", "a", key=f"{number}").id for number in range(MOST_ROWS - 1)] == ids
        assert all(schedule.cancel(id).value for id in ids[1:])
        assert schedule.cancel(kept[0]).value
        schedule.after(60, "work", "a", key="1")
        counted.append(len(await schedule.list()))

    async with open_workshop(store, Worker, runs=make_runs(do)) as shop:
        worker = await shop.thread(Worker)
        kept.append(await worker.schedule.after(60, "work", key="kept"))
        assert await run(shop) is None
        assert counted == [2]
        assert {each.key for each in await rows(worker)} == {"0", "1"}


async def test_what_is_staged_in_a_write_that_failed_is_staged_again(store: FlakyStore, clock: Clock) -> None:
    async def do(ctx: Context[Worker]) -> None:
        schedule = ctx.thread.schedule
        await schedule.cancel((await schedule.list())[0].id)
        first = await schedule.after(60, "work", "a", key="a")
        await schedule.after(60, "work", "b", key="b")
        store.refuses = touches_schedule
        with pytest.raises(StoreError):
            await ctx.flush()
        store.refuses = lambda _: False
        assert await schedule.cancel(first)
        assert not await schedule.cancel(first)
        assert [each.key for each in await schedule.list()] == ["b"]

    async with open_workshop(store, Worker, runs=make_runs(do)) as shop:
        worker = await shop.thread(Worker)
        await worker.schedule.after(60, "work", key="gone")
        await run(shop)
        assert {each.key for each in await rows(worker)} == {"b"}


async def test_what_others_have_scheduled_by_the_end_of_a_run_is_not_scheduled_twice(
    store: FlakyStore, clock: Clock
) -> None:
    paused, resumed = asyncio.Event(), asyncio.Event()

    async def do(ctx: Context[Worker]) -> None:
        ctx.thread.schedule.every(60, "work")
        ctx.thread.schedule.after(60, "work", "run", key="k")
        paused.set()
        await resumed.wait()

    async with open_workshop(store, Worker, runs=make_runs(do)) as shop:
        worker = await shop.thread(Worker)
        running = asyncio.create_task(run(shop))
        await paused.wait()
        others = [await worker.schedule.every(60, "work"), await worker.schedule.after(60, "work", "other", key="k")]
        resumed.set()
        assert await running is None
        assert [each.id for each in await rows(worker)] == others


async def test_a_run_that_raises_schedules_nothing(store: FlakyStore, clock: Clock) -> None:
    async def do(ctx: Context[Worker]) -> None:
        ctx.thread.schedule.after(0, "work", "a")
        ctx.thread.schedule.every(60, "work", "a")
        with ctx.thread.transaction():
            ctx.thread.schedule.after(60, "work", "in a transaction")
        raise RuntimeError("it failed")

    runs = make_runs(do)
    async with open_workshop(store, Worker, runs=runs) as shop:
        worker = await shop.thread(Worker)
        assert str(await run(shop)) == "it failed"
        assert [each.args for each in await rows(worker)] == [["in a transaction"]]
        assert worker.began == []
