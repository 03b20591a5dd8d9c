"""Runs of tasks: how they begin, wait, end, and are found."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.clocks import Clock
from tests.server.parts.tasks.desks import Desk, find_row, keys, open_desk, rest_at_once, sleeps
from tests.server.parts.workshop import FlakyStore, until

from plait.errors import InvalidArguments, NotFound, RolledBack, Terminated
from plait.parts.tasks.rows import TaskRun
from plait.parts.tasks.step import Step
from plait.parts.tasks.thread_tasks import TaskReceipt


async def nothing(desk: Desk, step: Step) -> None:
    pass


async def wait_for_go(desk: Desk, step: Step) -> Any:
    return await step.event("go")


async def test_a_run_returns_the_result_of_its_method_with_its_arguments(store: FlakyStore) -> None:
    async with open_desk(store, nothing) as (_, desk):
        run = await desk.tasks.run("add", 1)
        assert (run.name, run.args, run.status, run.key) == ("add", [1], "waiting", None)
        ended = await desk.tasks.wait(run.id)
        assert (ended.id, ended.status, ended.result, ended.error, ended.due) == (run.id, "done", 11, None, 0)
        assert await desk.tasks.get(run.id) == ended
        assert await desk.tasks.list() == [ended]
        await until(lambda: desk.ended == [ended])
        assert await keys(store) == ["e", "x"]


async def test_the_receipt_has_the_id_before_the_run_is_durable(store: FlakyStore) -> None:
    async with open_desk(store, nothing) as (_, desk):
        receipt = desk.tasks.run("add", 1)
        assert receipt.id == (await receipt).id


async def test_a_run_that_cannot_begin_is_refused(store: FlakyStore) -> None:
    async with open_desk(store, nothing) as (_, desk):
        with pytest.raises(ValueError, match="there is no task 'sub'; there are: add, hurry, keep, total, work"):
            desk.tasks.run("sub")
        with pytest.raises(InvalidArguments, match="add: first"):
            desk.tasks.run("add", "one")
        with pytest.raises(InvalidArguments, match="takes 2 arguments"):
            desk.tasks.run("add", 1, 2, 3)
        with pytest.raises(NotFound):
            await desk.tasks.wait("none")
        assert await desk.tasks.get("none") is None
        await desk.terminate()
        with pytest.raises(Terminated):
            desk.tasks.run("add", 1)


async def test_a_key_or_an_id_that_cannot_be_one_is_refused(store: FlakyStore) -> None:
    async with open_desk(store) as (_, desk):
        for key in ("", "a\nb", "k" * 401):
            with pytest.raises(ValueError, match="a key must have 1 to 400 bytes"):
                desk.tasks.run("work", key=key)
        with pytest.raises(TypeError, match="id must be str, not NoneType"):
            await desk.tasks.retry(None)  # type: ignore[arg-type]


async def test_the_same_key_joins_the_run_that_has_not_ended(store: FlakyStore) -> None:
    async with open_desk(store, wait_for_go) as (_, desk):
        first = await desk.tasks.run("work", key="a")
        assert (await desk.tasks.run("work", key="a")).id == first.id
        assert (await desk.tasks.run("work", key="b")).id != first.id
        await until(lambda: find_row(desk, first.id).process != "")
        assert (await desk.tasks.run("work", key="a")).id == first.id
        await desk.tasks.send(first.id, "go")
        await desk.tasks.wait(first.id)
        assert (await desk.tasks.run("work", key="a")).id != first.id


async def test_a_run_in_a_transaction_is_a_part_of_it(store: FlakyStore) -> None:
    async with open_desk(store, nothing) as (_, desk):
        lost: list[TaskReceipt] = []
        with suppress(KeyError), desk.transaction():
            lost.append(desk.tasks.run("add", 1))
            raise KeyError
        with pytest.raises(RolledBack):
            await lost[0]
        with desk.transaction():
            kept = desk.tasks.run("add", 2)
        assert [run.id for run in await desk.tasks.list()] == [kept.id]
        assert await desk.tasks.get(lost[0].id) is None


async def test_runs_are_listed_in_order_by_name_and_status(store: FlakyStore) -> None:
    async with open_desk(store, wait_for_go) as (_, desk):
        a = await desk.tasks.run("work")
        b = await desk.tasks.run("add", 1)
        await desk.tasks.wait(b.id)
        assert [run.id for run in await desk.tasks.list()] == [a.id, b.id]
        assert [run.id for run in await desk.tasks.list("work")] == [a.id]
        assert [run.id for run in await desk.tasks.list(status="done")] == [b.id]
        assert await desk.tasks.list("work", status="done") == []


async def test_a_run_that_waits_leaves_the_memory_and_goes_on_when_it_is_due(
    store: FlakyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_at_once(monkeypatch)

    async def script(desk: Desk, step: Step) -> str:
        desk.seen.append("begin")
        try:
            await step.sleep("night", 3600)
        finally:
            desk.seen.append("finally")
        return "awake"

    async with open_desk(store, script) as (shop, desk):
        run = await desk.tasks.run("work")
        await sleeps(desk, run.id)
        assert (await shop.due()).popitem()[1] == clock.now + 3600_000_000
        found = await desk.tasks.get(run.id)
        assert found is not None
        assert (found.status, found.due) == ("sleeping", clock.now + 3600_000_000)
        assert not desk.tasks._runner._steps
        assert desk.seen == ["begin", "finally"]
        clock.move(3601)
        assert (await desk.tasks.wait(run.id)).result == "awake"
        assert desk.seen == ["begin", "finally"] * 2


async def test_a_short_wait_goes_on_in_place(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        desk.seen.append("begin")
        await step.sleep("moment", 0.005)

    async with open_desk(store, script) as (_, desk):
        run = await desk.tasks.run("work")
        await desk.tasks.wait(run.id)
        assert desk.seen == ["begin"]


async def test_a_run_goes_on_after_a_crash_without_its_finished_steps(store: FlakyStore) -> None:
    gate = asyncio.Event()

    async def script(desk: Desk, step: Step) -> list[int]:
        async def count() -> int:
            desk.seen.append("count")
            return 3

        async def hang() -> None:
            desk.seen.append("hang")
            await gate.wait()

        number = await step.do("count", count)
        await step.do("hang", hang)
        return [number, await step.do("again", lambda: number + 1)]

    async with open_desk(store, script) as (shop, desk):
        run = await desk.tasks.run("work")
        await until(lambda: desk.seen == ["count", "hang"])
        await shop.crash()
    gate.set()
    async with open_desk(store) as (_, desk):
        assert (await desk.tasks.wait(run.id)).result == [3, 4]
        assert desk.seen == ["count", "hang", "hang"]


async def test_a_method_that_raises_outside_of_steps_fails_at_once_and_tells_on_error(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        desk.seen.append("begin")
        raise ValueError("no such shop")

    async with open_desk(store, script) as (_, desk):
        run = await desk.tasks.run("work")
        ended = await desk.tasks.wait(run.id)
        assert (ended.status, ended.error, ended.result) == ("failed", "ValueError: no such shop", None)
        await until(lambda: desk.errors == ["ValueError: no such shop"] and desk.ended == [ended])
        assert desk.seen == ["begin"]


async def test_a_result_that_is_not_json_fails_the_run(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> object:
        return object()

    async with open_desk(store, script) as (_, desk):
        ended = await desk.tasks.wait((await desk.tasks.run("work")).id)
        assert ended.status == "failed"
        assert ended.error is not None
        assert ended.error.startswith("TypeError: the value 'result' is not JSON")


async def test_an_on_task_end_that_raises_is_reported_and_the_thread_goes_on(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(desk: Desk, run: TaskRun) -> None:
        raise ValueError(f"{run.name} has {run.status}")

    async with open_desk(store, nothing) as (_, desk):
        monkeypatch.setattr(Desk, "on_task_end", fail)
        assert (await desk.tasks.wait((await desk.tasks.run("add", 1)).id)).result == 11
        await until(lambda: desk.errors == ["ValueError: add has done"])
        assert (await desk.tasks.wait((await desk.tasks.run("add", 2)).id)).result == 12
