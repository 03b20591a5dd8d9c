"""How `AttemptRunner` attempts the work of a part, until it is done or given up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clocks import Clock
from tests.server.fakes import TroubledStore
from tests.server.parts.jobs import KEY, Desk, ThreadJobs, decode_job
from tests.server.parts.workshop import SECOND, FlakyStore, Workshop, open_workshop, until

from plait.errors import Indeterminate, StoreError, Unavailable
from plait.parts.attempts import CRASHES, Attempts, Uncounted
from plait.store.protocol import Write

Do = Callable[[ThreadJobs, str], Awaitable[None]]


@pytest.fixture(autouse=True)
def fresh() -> None:
    Desk.errors = []


async def open_jobs(shop: Workshop, do: Do | None = None) -> ThreadJobs:
    """Return the jobs of a thread, which do what they are told."""
    if do is not None:
        Desk.do = staticmethod(do)  # type: ignore[assignment]
    return (await shop.thread(Desk)).jobs


async def pass_(jobs: ThreadJobs, id: str) -> None:
    """Do nothing."""


async def wait_forever(jobs: ThreadJobs, id: str) -> None:
    await asyncio.Event().wait()


async def stored(store: Any, id: str = "a") -> Attempts | None:
    value = await store.record(KEY, "jobs", id)
    return None if value is None else decode_job(value)


def removes(write: Write) -> bool:
    """Whether a write removes a job."""
    return any(record.part == "jobs" and record.value is None for record in write.records)


def is_idle(jobs: ThreadJobs) -> bool:
    return not jobs.runner.running


# The begin


async def test_the_begin_of_an_attempt_is_stored_before_the_work_begins(store: FlakyStore, clock: Clock) -> None:
    found: list[Attempts | None] = []

    async def do(jobs: ThreadJobs, id: str) -> None:
        found.append(await stored(store))

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        due = clock.now
        jobs.add("a")
        await until(lambda: not jobs.jobs and is_idle(jobs))
        assert found == [Attempts(due=due, process=jobs.actor.host.process)]
        assert await stored(store) is None


async def test_the_begin_may_be_stored_with_the_work_itself(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, pass_)
        begun = Attempts(due=clock.now, process=jobs.actor.host.process)
        jobs.runner.begin("a", "job a", begun=jobs.add("a", begun))
        await until(lambda: is_idle(jobs))
        assert jobs.seen == ["begin a", "end a"]
        assert len([write for write in store.writes if write.records]) == 2  # With its end.


async def test_a_begin_that_was_rolled_back_is_none(store: FlakyStore, clock: Clock) -> None:
    def queue(jobs: ThreadJobs, thread: Desk) -> None:
        with thread.transaction():
            begun = Attempts(due=clock.now, process=jobs.actor.host.process)
            jobs.runner.begin("a", "job a", begun=jobs.add("a", begun))
            raise KeyError

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, pass_)
        jobs.add("a", waiting := Attempts(due=clock.now + SECOND, failures=1))
        with pytest.raises(KeyError):
            queue(jobs, await shop.thread(Desk))
        await until(lambda: is_idle(jobs))
        assert jobs.seen == ["end a"]
        assert jobs.jobs == {"a": waiting}
        assert Desk.errors == []


async def test_work_that_is_no_longer_due_is_not_begun(store: FlakyStore, clock: Clock) -> None:
    """As when an event that has made it due is rolled back, before the attempt begins."""
    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, pass_)
        await jobs.add("a", later := Attempts(due=clock.now + 60 * SECOND))
        jobs.runner.begin("a", "job a")
        await until(lambda: is_idle(jobs))
        assert jobs.seen == ["end a"]
        assert jobs.jobs == {"a": later}
        assert await stored(store) == later


async def test_a_begin_that_could_not_be_stored_does_not_count(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, pass_)
        await jobs.add("a", Attempts(due=clock.now + SECOND))
        store.refuses = lambda _: True
        clock.move(1)
        for pause in (1, 2, 4, 8):  # More often than it may fail. The pauses cannot be stored, either.
            began, count = clock.now, len(jobs.seen)
            await until(lambda count=count: len(jobs.seen) > count)
            assert jobs.jobs == {"a": Attempts(due=began + pause * SECOND)}
            clock.move(pause)
        store.refuses = lambda _: False
        await until(lambda: not jobs.jobs and is_idle(jobs))
        assert jobs.seen == ["end a"] * 4 + ["begin a", "end a"]
        assert Desk.errors == []


async def test_work_that_was_removed_while_its_begin_was_stored_is_not_done(clock: Clock) -> None:
    store: Any = TroubledStore()
    async with store, open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, pass_)
        await jobs.add("a", Attempts(due=clock.now + SECOND))
        store.is_held = True
        clock.move(1)
        await until(lambda: len(store.waiting) == 1)
        jobs.store("a", None)
        store.resume()
        await until(lambda: is_idle(jobs))
        assert jobs.seen == ["end a"]


# Crashes


async def test_work_that_ends_its_process_three_times_is_given_up_and_told(store: FlakyStore, clock: Clock) -> None:
    for number in range(CRASHES):
        async with open_workshop(store, Desk) as shop:
            jobs = await open_jobs(shop, wait_forever)
            if not number:
                await jobs.add("a")
            await until(lambda jobs=jobs: jobs.seen == ["begin a"])
            assert (jobs.jobs["a"].crashes, jobs.jobs["a"].failures) == (number, 0)
            await shop.crash()
    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop)
        await until(lambda: Desk.errors == ["the job a has ended the process 3 times, and this run is not tried again"])
        assert jobs.seen == ["give up a", "end a"]
        assert await stored(store) is None


async def test_crashes_count_without_progress(store: FlakyStore, clock: Clock) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        await jobs.store(id, jobs.jobs[id].progress())
        jobs.seen.append("progress")
        await asyncio.Event().wait()

    for number in range(CRASHES + 2):
        async with open_workshop(store, Desk) as shop:
            jobs = await open_jobs(shop, do)
            if not number:
                await jobs.add("a")
            await until(lambda jobs=jobs: "progress" in jobs.seen)
            await shop.crash()
    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, pass_)
        await until(lambda: is_idle(jobs) and not jobs.jobs)
        assert Desk.errors == []


async def test_an_attempt_that_fails_after_progress_counts(store: FlakyStore, clock: Clock) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        await jobs.store(id, jobs.jobs[id].progress())
        raise RuntimeError("bad")

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        jobs.add("a", Attempts(due=clock.now, crashes=1))
        await until(lambda: "end a" in jobs.seen)
        assert jobs.jobs == {"a": Attempts(due=clock.now + 10 * SECOND, failures=1)}


async def test_suspects_are_attempted_one_at_a_time_and_others_beside_them(store: FlakyStore, clock: Clock) -> None:
    gates = {id: asyncio.Event() for id in "abc"}

    async def do(jobs: ThreadJobs, id: str) -> None:
        await gates[id].wait()

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        suspect = Attempts(due=clock.now, crashes=CRASHES - 1)
        with (await shop.thread(Desk)).transaction():
            jobs.add("a", suspect)
            jobs.add("b", suspect)
            jobs.add("c")
        await until(lambda: {"begin a", "begin c"} == {*jobs.seen})
        assert jobs.jobs["b"] == suspect  # Its begin is not stored, so that a crash of the first one is not counted.
        gates["c"].set()
        await until(lambda: "end c" in jobs.seen)
        assert "begin b" not in jobs.seen
        gates["a"].set()
        await until(lambda: "begin b" in jobs.seen)
        assert jobs.seen.index("end a") < jobs.seen.index("begin b")
        gates["b"].set()
        await until(lambda: is_idle(jobs))


# Outages and failures


@pytest.mark.parametrize(
    "error",
    [
        StoreError("away"),
        Indeterminate("?"),
        Unavailable("stopping"),
        Uncounted(),
        ExceptionGroup("of a task group", [StoreError("away"), Unavailable("stopping")]),
    ],
)
async def test_an_outage_does_not_count(store: FlakyStore, clock: Clock, error: Exception) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        raise error

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        await jobs.add("a")
        for pause in (1, 2, 4, 8):
            began = clock.now
            await until(lambda: is_idle(jobs) and jobs.jobs["a"].due > clock.now)
            assert await stored(store) == Attempts(due=began + pause * SECOND)
            clock.move(pause)
        assert Desk.errors == []


async def test_a_failure_counts_and_the_last_one_is_given_up_and_told(
    store: FlakyStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        raise RuntimeError("bad")

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        await jobs.add("a")
        for number, pause in enumerate((10, 20), start=1):
            began = clock.now
            await until(lambda number=number: is_idle(jobs) and jobs.jobs["a"].failures == number)
            assert await stored(store) == Attempts(due=began + pause * SECOND, failures=number)
            assert f"the job a has failed, attempt {number} of 3, and is tried again in {pause} s" in caplog.text
            clock.move(pause)
        await until(lambda: Desk.errors == ["bad"])
        await until(lambda: is_idle(jobs))
        assert jobs.seen == ["begin a", "end a"] * 2 + ["begin a", "give up a", "end a"]


async def test_a_counted_attempt_ends_a_row_of_outages(store: FlakyStore, clock: Clock) -> None:
    errors: list[Exception] = [StoreError("away"), StoreError("away"), RuntimeError("bad"), StoreError("away")]

    async def do(jobs: ThreadJobs, id: str) -> None:
        raise errors.pop(0)

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        await jobs.add("a")
        for pause in (1, 2, 10, 1):
            began = clock.now
            await until(lambda: is_idle(jobs) and jobs.jobs["a"].due > clock.now)
            assert jobs.jobs["a"].due == began + pause * SECOND
            clock.move(pause)
            Desk.do = staticmethod(do) if errors else staticmethod(pass_)  # type: ignore[assignment]
        await until(lambda: not jobs.jobs)


async def test_giving_up_is_told_only_when_it_is_stored(store: FlakyStore, clock: Clock) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        raise RuntimeError("bad")

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        store.refuses = removes
        await jobs.add("a", Attempts(due=clock.now, failures=2))
        await until(lambda: "end a" in jobs.seen)
        assert Desk.errors == []
        # The next attempt is made after a pause, and has another chance.
        assert jobs.jobs == {"a": Attempts(due=clock.now + SECOND, failures=2)}
        store.refuses = lambda _: False
        clock.move(1)
        await until(lambda: Desk.errors == ["bad"])
        assert await stored(store) is None


async def test_no_other_attempt_begins_before_the_end_of_one_is_stored(clock: Clock) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        store.is_held = True
        raise RuntimeError("bad")

    store: Any = TroubledStore()
    async with store, open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        await jobs.add("a")
        await until(lambda: len(store.waiting) == 1)
        assert jobs.jobs["a"].failures == 1
        clock.move(10)
        jobs.actor.timer.look()
        assert [*jobs.runner.running] == ["a"]
        Desk.do = staticmethod(pass_)  # type: ignore[assignment]
        store.resume()
        await until(lambda: not jobs.jobs and jobs.seen == ["begin a", "end a"] * 2)


# Ends


async def test_work_whose_end_is_being_stored_when_its_turn_is_cancelled_is_not_repeated(clock: Clock) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        store.is_held = True
        await jobs.store(id, replace(jobs.jobs[id], process="", due=clock.now + 60 * SECOND))  # It recurs.

    store: Any = TroubledStore()
    async with store, open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        await jobs.add("a")
        await until(lambda: len(store.waiting) == 1)
        jobs.runner.cancel(jobs.runner.running)
        store.resume()
        await until(lambda: is_idle(jobs))
        assert jobs.jobs == {"a": Attempts(due=clock.now + 60 * SECOND)}


async def test_work_whose_end_was_lost_is_done_again(store: FlakyStore, clock: Clock) -> None:
    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, pass_)
        store.refuses = removes
        await jobs.add("a")
        await until(lambda: "end a" in jobs.seen)
        assert await stored(store) == Attempts(due=clock.now + SECOND)
        store.refuses = lambda _: False
        clock.move(1)
        await until(lambda: not jobs.jobs and is_idle(jobs))
        assert jobs.seen == ["begin a", "end a"] * 2
        assert Desk.errors == []


async def test_an_error_after_the_end_is_told_and_repeats_nothing(store: FlakyStore, clock: Clock) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        await jobs.store(id, None)
        raise RuntimeError("late")

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        await jobs.add("a")
        await until(lambda: Desk.errors == ["late"])
        assert jobs.seen == ["begin a", "end a"]


async def test_cancelling_an_attempt_leaves_the_others_and_counts_for_none(store: FlakyStore, clock: Clock) -> None:
    gate = asyncio.Event()

    async def do(jobs: ThreadJobs, id: str) -> None:
        await gate.wait()

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        jobs.add("a")
        jobs.add("b")
        await until(lambda: jobs.seen == ["begin a", "begin b"])
        jobs.runner.cancel(["b", "c"])
        await until(lambda: "end b" in jobs.seen)
        assert jobs.jobs["b"] == Attempts(due=clock.now + SECOND)
        gate.set()
        await until(lambda: is_idle(jobs))
        assert [*jobs.jobs] == ["b"]


async def test_an_end_that_the_part_cannot_store_is_logged_and_leaves_the_work_to_be_done(
    store: FlakyStore, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def do(jobs: ThreadJobs, id: str) -> None:
        raise RuntimeError("bad")

    async with open_workshop(store, Desk) as shop:
        jobs = await open_jobs(shop, do)
        monkeypatch.setattr(jobs, "retries", lambda id: 1 / 0)
        with caplog.at_level(logging.ERROR):
            await jobs.add("a")
            await until(lambda: "end a" in jobs.seen)
        assert "ZeroDivisionError" in caplog.text
        assert jobs.jobs == {"a": Attempts(due=clock.now + SECOND)}
