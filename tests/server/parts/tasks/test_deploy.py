"""Runs that began with one version of the code and go on with another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.server.parts.tasks.desk import records
from tests.server.parts.workshop import FlakyStore, open_workshop, until

from plait import Step, TaskRun, Tasks, Thread, Values, task


class Before(Thread[Any]):
    """The code that begins the runs: they wait for an event after two steps."""

    kind = "desk"
    values = Values()
    tasks = Tasks()
    seen: list[str]

    async def note(self, name: str) -> str:
        self.seen.append(name)
        await self.values.push("log", name)
        return name

    @task
    async def work(self, step: Step) -> list[str]:
        found = [await step.do(name, lambda name=name: self.note(name)) for name in ("first", "second")]
        await step.event("go")
        return [*found, await step.do("last", lambda: self.note("last"))]


@pytest.fixture(autouse=True)
def fresh() -> None:
    Before.seen = []


async def begin(store: FlakyStore) -> str:
    """Begin a run, and end the process when it waits."""
    async with open_workshop(store, Before) as shop:
        desk = await shop.thread(Before)
        run = await desk.tasks.run("work")
        await until(lambda: Before.seen == ["first", "second"])
        await desk._actor.state.wait_until_durable()
        await shop.crash()
    Before.seen = []
    return run.id


@asynccontextmanager
async def deployed(store: FlakyStore, cls: type[Before]) -> AsyncIterator[Before]:
    async with open_workshop(store, cls) as shop:
        yield await shop.thread(cls)


async def finish(store: FlakyStore, id: str, cls: type[Before]) -> TaskRun:
    """Send the event with other code, and return how the run ends."""
    async with deployed(store, cls) as desk:
        assert await desk.tasks.send(id, "go")
        return await desk.tasks.wait(id)


async def test_a_step_that_was_added_runs_and_the_finished_ones_do_not(store: FlakyStore) -> None:
    class After(Before):
        kind = "desk"

        @task
        async def work(self, step: Step) -> list[str]:
            names = ("first", "between", "second")
            found = [await step.do(name, lambda name=name: self.note(name)) for name in names]
            await step.event("go")
            return [*found, await step.do("last", lambda: self.note("last"))]

    ended = await finish(store, await begin(store), After)
    assert (ended.status, ended.result) == ("done", ["first", "between", "second", "last"])
    assert Before.seen == ["between", "last"]


async def test_a_step_with_another_name_runs_and_the_record_of_the_old_one_goes_with_the_run(store: FlakyStore) -> None:
    class After(Before):
        kind = "desk"

        @task
        async def work(self, step: Step) -> list[str]:
            found = [await step.do(name, lambda name=name: self.note(name)) for name in ("first", "renamed")]
            await step.event("go")
            return found

    id = await begin(store)
    ended = await finish(store, id, After)
    assert (ended.status, ended.result) == ("done", ["first", "renamed"])
    assert Before.seen == ["renamed"]
    async with deployed(store, After) as desk:
        assert await records(desk, "j/") == []


async def test_steps_in_another_order_are_found_by_their_names(store: FlakyStore) -> None:
    class After(Before):
        kind = "desk"

        @task
        async def work(self, step: Step) -> list[str]:
            await step.event("go")
            return [await step.do(name, lambda name=name: self.note(name)) for name in ("second", "first")]

    ended = await finish(store, await begin(store), After)
    assert (ended.status, ended.result) == ("done", ["second", "first"])
    assert Before.seen == []


@pytest.mark.parametrize("name", ["first", "go"])
async def test_a_name_that_is_another_kind_of_step_fails_the_run_and_the_error_names_both(
    name: str, store: FlakyStore
) -> None:
    class After(Before):
        kind = "desk"

        @task
        async def work(self, step: Step) -> list[str]:
            await step.sleep(name, 3600)
            return []

    ended = await finish(store, await begin(store), After)
    assert ended.status == "failed"
    was = "event" if name == "go" else "do"
    assert ended.error is not None
    assert ended.error.startswith("ReplayDiverged: ")
    assert all(word in ended.error for word in (repr(name), was, "sleep"))


async def test_a_name_twice_fails_the_run_and_the_error_names_it(store: FlakyStore) -> None:
    class Twice(Before):
        kind = "desk"

        @task
        async def work(self, step: Step) -> list[str]:
            return [await step.do("first", lambda: self.note(name)) for name in ("first", "again")]  # noqa: B023

    async with deployed(store, Twice) as desk:
        ended = await desk.tasks.wait((await desk.tasks.run("work")).id)
    assert (ended.status, Before.seen) == ("failed", ["first"])
    assert ended.error is not None
    assert "'first'" in ended.error


async def test_runs_of_a_method_that_is_gone_are_listed_and_go_on_when_it_is_back(store: FlakyStore) -> None:
    class Gone(Before):
        kind = "desk"
        work = None  # type: ignore[assignment]

    id = await begin(store)
    async with deployed(store, Gone) as desk:
        assert [(run.id, run.name, run.ended_at) for run in await desk.tasks.list()] == [(id, "work", None)]
        found = await desk.tasks.get(id)
        assert found is not None
        assert await desk.tasks.send(id, "go")
        with pytest.raises(ValueError, match="work"):
            desk.tasks.run("work")
    ended = await finish_again(store, id)
    assert (ended.status, ended.result) == ("done", ["first", "second", "last"])
    assert Before.seen == ["last"]


async def test_a_run_of_a_method_that_is_gone_can_be_cancelled(store: FlakyStore) -> None:
    class Gone(Before):
        kind = "desk"
        work = None  # type: ignore[assignment]

    id = await begin(store)
    async with deployed(store, Gone) as desk:
        assert await desk.tasks.cancel(id)
        found = await desk.tasks.get(id)
        assert found is not None
        assert found.status == "cancelled"


async def finish_again(store: FlakyStore, id: str) -> TaskRun:
    async with deployed(store, Before) as desk:
        return await desk.tasks.wait(id)
