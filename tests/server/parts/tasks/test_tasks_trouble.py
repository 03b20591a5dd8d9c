"""Tasks when processes end, the store fails, and runs are cancelled."""

import asyncio
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from tests.clocks import Clock
from tests.server.parts.tasks.desks import Desk, find_row, keys, open_desk, rest_at_once, sleeps
from tests.server.parts.workshop import FlakyMemory, FlakyStore, open_workshop, until

from plait.actor.events import Events
from plait.actor.thread import Thread
from plait.agents.agent import Agent
from plait.agents.context import Context
from plait.agents.runs import Runs
from plait.errors import Unavailable
from plait.parts.tasks import waits
from plait.parts.tasks.step import Step
from plait.parts.tasks.task import task
from plait.parts.tasks.thread_tasks import Tasks
from plait.parts.values import Values
from plait.store.thread_rows import Record, RecordRange, ThreadKey
from plait_schemas.codec import encode_json


async def hang(desk: Desk, step: Step) -> None:
    async def work() -> None:
        desk.seen.append("work")
        await asyncio.Event().wait()

    await step.do("work", work)


async def wait_for_go(desk: Desk, step: Step) -> Any:
    desk.seen.append("begin")
    return await step.event("go")


# Events


class SlowStore(FlakyMemory):
    """A store whose reads of journals wait when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.reads = 0

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        found = await super().records(key, wanted)
        if wanted.prefix.startswith("j/"):
            self.reads += 1
            await self.gate.wait()
        return found


async def test_an_event_that_comes_while_the_journal_is_read_is_not_lost() -> None:
    async with SlowStore() as store, open_desk(store, wait_for_go) as (_, desk):
        store.gate.clear()
        id = (await desk.tasks.run("work")).id
        await until(lambda: store.reads == 1)
        assert await desk.tasks.send(id, "go", 1)
        store.gate.set()
        assert (await desk.tasks.wait(id)).result == 1
        assert desk.seen == ["begin"]


async def test_an_event_that_comes_while_the_run_leaves_the_memory_continues_it(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> Any:
        try:
            return await step.event("go")
        finally:
            desk.seen.append("finally")
            await gate.wait()

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.seen == ["finally"])
        assert await desk.tasks.send(id, "go", 1)
        gate.set()
        assert (await desk.tasks.wait(id)).result == 1
        assert desk.seen == ["finally"] * 2


async def test_a_method_that_catches_being_cancelled_does_not_end_its_run(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> Any:
        try:
            return await step.event("go")
        except asyncio.CancelledError:
            return "swallowed"

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        await desk.tasks.send(id, "go", 1)
        assert (await desk.tasks.wait(id)).result == 1


async def test_a_run_that_waits_for_an_event_is_not_due(store: FlakyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rest_at_once(monkeypatch)
    async with open_desk(store, wait_for_go) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        runner = desk.tasks._runner
        due = find_row(desk, id).due
        assert due > 0
        assert runner.times == (due, due)
        assert desk.seen == ["begin"]


# Crashes


async def test_crashes_without_progress_are_counted_and_the_tenth_gives_up_the_run(store: FlakyStore) -> None:
    async with open_desk(store, hang) as (shop, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.seen == ["work"])
        await shop.crash()
    for crashes in range(1, 10):
        async with open_desk(store) as (shop, desk):
            await until(lambda crashes=crashes: len(Desk.seen) == crashes + 1)
            assert find_row(desk, id).crashes == crashes
            await shop.crash()
    async with open_desk(store) as (_, desk):
        ended = await desk.tasks.wait(id)
        what = "the task work has ended the process 10 times, and this run is not tried again"
        assert (ended.status, ended.error) == ("failed", f"RuntimeError: {what}")
        await until(lambda: desk.errors == [f"RuntimeError: {what}"])
        assert desk.ended == [ended]


async def test_a_finished_step_sets_the_crashes_to_0_in_its_own_write(store: FlakyStore) -> None:
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> None:
        await step.do("wait", gate.wait)
        await hang(desk, step)

    async with open_desk(store, script) as (shop, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: find_row(desk, id).process != "")
        await shop.crash()
    async with open_desk(store) as (shop, desk):
        await until(lambda: find_row(desk, id).process != "")
        assert find_row(desk, id).crashes == 1
        gate.set()
        await until(lambda: desk.seen == ["work"])
        assert find_row(desk, id).crashes == 0
        (write,) = (each for each in store.writes if any("/s/wait" in record.key for record in each.records))
        assert {record.key[0] for record in write.records} == {"j", "r"}
        await shop.crash()
    async with open_desk(store) as (_, desk):
        await until(lambda: desk.seen == ["work"] * 2)
        assert find_row(desk, id).crashes == 1


async def test_a_crash_while_a_run_waits_in_memory_does_not_count(store: FlakyStore) -> None:
    async with open_desk(store, wait_for_go) as (shop, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: find_row(desk, id).is_resting)
        assert find_row(desk, id).status == "running"
        await shop.crash()
    async with open_desk(store) as (_, desk):
        assert find_row(desk, id).crashes == 0
        await desk.tasks.send(id, "go")
        assert (await desk.tasks.wait(id)).status == "done"


# The store


async def test_a_step_that_could_not_be_stored_is_repeated(store: FlakyStore, clock: Clock) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        async def work() -> int:
            desk.seen.append("work")
            store.refuses = lambda write: len(desk.seen) == 1
            await desk.values.push("log", 1)
            return len(desk.seen)

        return await step.do("work", work)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.seen == ["work"] and not desk.tasks._runner.has(id))
        store.refuses = lambda _: False
        clock.move(400)
        assert (await desk.tasks.wait(id)).result == 2
        assert await desk.values.get("log") == [1]
        assert desk.errors == []


async def test_an_end_that_could_not_be_stored_is_stored_later(store: FlakyStore, clock: Clock) -> None:
    async def script(desk: Desk, step: Step) -> str:
        desk.seen.append(await step.do("work", lambda: "work"))
        store.refuses = lambda write: len(desk.seen) == 1
        return "end"

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.seen == ["work"] and not desk.tasks._runner.has(id))
        store.refuses = lambda _: False
        clock.move(400)
        assert (await desk.tasks.wait(id)).result == "end"
        await until(lambda: [run.id for run in desk.ended] == [id])


# Cancelled and failed runs


async def test_a_cancelled_run_ends_and_what_it_awaits_is_cancelled(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        try:
            await hang(desk, step)
        finally:
            desk.seen.append("cancelled")

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.seen == ["work"])
        assert await desk.tasks.cancel(id)
        assert not await desk.tasks.cancel(id)
        ended = await desk.tasks.wait(id)
        assert (ended.status, ended.error) == ("cancelled", None)
        await until(lambda: desk.seen == ["work", "cancelled"] and not desk.tasks._runner.has(id))
        assert desk.errors == []
        assert desk.ended == [ended]


async def test_a_run_that_has_left_the_memory_is_cancelled(store: FlakyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rest_at_once(monkeypatch)
    async with open_desk(store, wait_for_go) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert await desk.tasks.cancel(id)
        assert not await desk.tasks.send(id, "go")
        assert (await desk.tasks.wait(id)).status == "cancelled"


async def test_a_run_that_cancels_itself_goes_no_further(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        await desk.values.set("written", True)
        with desk.transaction():
            desk.tasks.cancel(step.id)
        await step.do("late", lambda: desk.seen.append("late"))

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        assert (await desk.tasks.wait(id)).status == "cancelled"
        await until(lambda: not desk.tasks._runner.has(id))
        assert (desk.seen, desk.errors) == ([], [])
        assert await desk.values.get("written") is None


async def test_retry_begins_a_failed_run_again_without_its_finished_steps(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        def refuse() -> int:
            desk.seen.append("refuse")
            if len(desk.seen) < 3:
                raise ValueError("not yet")
            return 2

        await step.event("go")
        one = await step.do("count", lambda: desk.seen.append("count") or 1)
        return [one, await step.do("refuse", refuse, attempts=1)]

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work", key="k")).id
        await desk.tasks.send(id, "go")
        assert (await desk.tasks.wait(id)).error == "StepFailed: ValueError: not yet"
        assert await keys(store) == ["e", "failed", "j/e/go", "j/s/count", "j/s/refuse", "x"]
        assert await desk.tasks.retry(id)
        assert not await desk.tasks.retry(id)
        ended = await desk.tasks.wait(id)
        assert (ended.status, ended.result, ended.key) == ("done", [1, 2], "k")
        assert desk.seen == ["count", "refuse", "refuse"]
        assert await keys(store) == ["e", "x"]
        assert not await desk.tasks.retry(id)
        assert not await desk.tasks.retry("none")


async def test_a_run_whose_key_another_one_has_is_not_begun_again(store: FlakyStore) -> None:
    async with open_desk(store, wait_for_go) as (_, desk):
        id = (await desk.tasks.run("work", key="k")).id
        await desk.tasks.cancel(id)
        await desk.tasks.run("work", key="k")
        assert not await desk.tasks.retry(id)


async def test_a_run_that_takes_longer_than_its_timeout_fails_also_while_it_sleeps(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)
    async with open_desk(store, wait_for_go) as (_, desk):
        id = (await desk.tasks.run("hurry")).id
        await sleeps(desk, id)
        assert find_row(desk, id).due == clock.now + 60_000_000
        clock.move(61)
        ended = await desk.tasks.wait(id)
        assert (ended.status, ended.error) == ("failed", "TurnTimeout: the run has taken longer than 60 s")
        await until(lambda: desk.errors == [ended.error])
        assert await desk.tasks.retry(id)
        await desk.tasks.send(id, "go", "late")
        assert (await desk.tasks.wait(id)).result == "late"


async def test_terminating_the_thread_cancels_all_runs(store: FlakyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rest_at_once(monkeypatch)
    async with open_desk(store, wait_for_go) as (_, desk):
        a = (await desk.tasks.run("work")).id
        await sleeps(desk, a)
        b = (await desk.tasks.run("work")).id
        await desk.terminate()
        assert {run.id: run.status for run in await desk.tasks.list()} == {a: "cancelled", b: "cancelled"}
        assert desk.tasks._runner.times == (0, 0)
        assert not desk.tasks._runner.keeps


async def test_a_run_that_terminates_its_thread_is_cancelled_and_goes_on_to_its_next_step(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        await desk.terminate()
        desk.seen.append("after")
        await step.do("late", lambda: desk.seen.append("late"))

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        assert (await desk.tasks.wait(id)).status == "cancelled"
        await until(lambda: not desk.tasks._runner.has(id))
        assert (desk.seen, desk.errors) == (["after"], [])


# Runs that begin others


async def test_what_a_step_does_to_other_runs_is_stored_with_its_result_or_not_at_all(store: FlakyStore) -> None:
    found: list[str] = []

    async def script(desk: Desk, step: Step) -> Any:
        async def begin() -> str:
            run = await desk.tasks.run("add", 1, key="k")
            assert (await desk.tasks.run("add", 1, key="k")).id == run.id
            assert await desk.tasks.get(run.id) == run
            found.append(run.id)
            if len(found) < 2:
                raise ConnectionError
            return run.id

        return await step.do("begin", begin, base=0.001)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("work")).id
        assert (await desk.tasks.wait(id)).result == found[1]
        assert (await desk.tasks.wait(found[1])).result == 11
        assert await desk.tasks.get(found[0]) is None
        writes = [{record.key for record in write.records} for write in store.writes]
        assert any({f"r/{found[1]}", f"j/{id}/s/begin"} <= keys for keys in writes)


async def test_a_run_of_an_agent_begins_tasks_and_sends_events_when_it_commits(store: FlakyStore) -> None:
    class Host(Thread[int]):
        initial_state = 0
        tasks = Tasks()
        values = Values()

        @task
        async def ask(self, step: Step) -> Any:
            return await step.event("go")

    ids: list[str] = []

    async def agent(ctx: Context) -> None:
        host = ctx.thread
        assert isinstance(host, Host)
        first = await host.tasks.run("ask")
        assert await host.tasks.send(first.id, "go", 1)
        second = await host.tasks.run("ask")
        assert await host.tasks.cancel(second.id)
        assert len(host.tasks._runner.agenda) == 0
        ids.extend((first.id, second.id))

    runs = Runs(Events())
    runs.add(Agent("agent", agent, Host._kind))
    async with open_workshop(store, Host, runs=runs) as shop:
        host, ended = await shop.thread(Host), asyncio.Event()
        actor = await shop.actor(Host)
        actor.begin("run", partial(actor.run_agent, "agent"), lambda *_: ended.set())
        await ended.wait()
        assert (await host.tasks.wait(ids[0])).result == 1
        assert (await host.tasks.wait(ids[1])).status == "cancelled"


# Callers


async def test_a_handle_has_all_methods_but_those_for_frames(store: FlakyStore) -> None:
    async with open_desk(store, wait_for_go) as (shop, _):
        tasks = shop.handle(Desk).tasks
        run = await tasks.run("work", key="k")
        assert await tasks.send(run.id, "go", [1])
        ended = await tasks.wait(run.id)
        assert (ended.status, ended.result) == ("done", [1])
        assert await tasks.get(run.id) == ended
        assert await tasks.list(status="done") == [ended]
        assert not await tasks.cancel(run.id)
        assert not await tasks.retry(run.id)
        with pytest.raises(AttributeError, match=r"tasks\.watch can only be used inside of the thread"):
            tasks.watch(print)


async def test_waiting_ends_when_the_thread_stops(store: FlakyStore) -> None:
    async with open_desk(store, wait_for_go) as (shop, desk):
        id = (await desk.tasks.run("work")).id
        waiting = asyncio.create_task(shop.handle(Desk).tasks.wait(id))
        await until(lambda: len(desk.tasks._waiting) == 1)
    with pytest.raises(Unavailable):
        await waiting


async def test_rows_of_tasks_that_the_class_no_longer_has_are_listed(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rest_at_once(monkeypatch)

    async with open_desk(store, wait_for_go) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        row = replace(find_row(desk, id), id="1", effect="gone")
        await desk._actor.records.write([Record("tasks", "r/1", encode_json(row))])
    async with open_desk(store) as (_, desk):
        assert {run.name for run in await desk.tasks.list()} == {"work", "gone"}
        assert "there are no tasks with these names: gone" in caplog.text


async def test_runs_that_only_wait_do_not_keep_others_from_beginning(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_REST", 3600.0)
    async with open_desk(store, wait_for_go) as (_, desk):
        ids = [(await desk.tasks.run("work")).id for _ in range(70)]
        await until(lambda: len(desk.seen) == 70)
        for id in ids:
            await desk.tasks.send(id, "go")
        await until(lambda: len(desk.ended) == 70)
        assert desk.tasks._runner._resting == 0


async def test_a_fork_leaves_the_runs_behind(store: FlakyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rest_at_once(monkeypatch)
    async with open_desk(store, wait_for_go) as (_, desk):
        id = (await desk.tasks.run("work")).id
        await sleeps(desk, id)
        assert [record.key for record in Desk.tasks.leave_work(desk._actor)] == [f"r/{id}", "x/00000000"]
        assert desk.tasks._runner.times == (0, 0)
