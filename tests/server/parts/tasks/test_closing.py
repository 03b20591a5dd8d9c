"""The calls of a run end with it, also those that its method does not await."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.server.parts.tasks.desk import Desk, run
from tests.server.parts.workshop import FlakyStore, open_workshop, until

from plait import GiveUp, Step


def refuse() -> None:
    raise GiveUp("no")


def find_step_tasks() -> list[str]:
    """Return the names of the coroutines of steps that have not ended."""
    coroutines = (each.get_coro() for each in asyncio.all_tasks())
    return [name for each in coroutines if "Step." in (name := getattr(each, "__qualname__", ""))]


async def test_a_step_that_waits_for_its_next_attempt_is_not_done_after_the_end_of_its_run(store: FlakyStore) -> None:
    def flaky(desk: Desk) -> None:
        desk.count()
        desk.seen.append("flaky")
        if len(desk.seen) == 1:
            raise ValueError

    async def do(desk: Desk, step: Step) -> None:
        waits = asyncio.create_task(step.do("flaky", partial(flaky, desk), base=1.0))
        await until(lambda: desk.seen == ["flaky"])
        if not desk.ends:
            await step.do("bad", refuse)
        await waits

    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        ended = await run(shop, do)
        assert ended.status == "failed"
        await until(lambda: find_step_tasks() == [] and desk.ends == [ended])
        assert desk.state == {"count": 0}
        Desk.do = staticmethod(partial(only_step, "flaky", flaky))  # type: ignore[assignment]
        assert await desk.tasks.retry(ended.id)
        assert (await desk.tasks.wait(ended.id)).status == "done"
        assert desk.state == {"count": 1}


async def only_step(name: str, function: Any, desk: Desk, step: Step) -> None:
    await step.do(name, partial(function, desk))


async def test_the_function_of_a_step_is_cancelled_at_the_end_of_its_run(store: FlakyStore) -> None:
    gate = asyncio.Event()

    async def slow(desk: Desk, step: Step) -> None:
        desk.seen.append("begun")
        try:
            await gate.wait()
        finally:
            desk.seen.append("over")
        with step.transaction():
            desk.count()

    async def do(desk: Desk, step: Step) -> None:
        await asyncio.gather(step.do("slow", partial(slow, desk, step)), step.do("bad", refuse))

    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        ended = await run(shop, do)
        assert ended.status == "failed"
        await until(lambda: desk.seen == ["begun", "over"])
        assert desk.state == {"count": 0}


@pytest.mark.parametrize("waits", ["event", "sleep"])
async def test_what_a_run_waits_for_is_forgotten_at_its_end(waits: str, store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> None:
        wait = step.event("never") if waits == "event" else step.sleep("long", 3600)
        await asyncio.gather(wait, step.do("bad", refuse))

    async with open_workshop(store, Desk) as shop:
        assert (await run(shop, do)).status == "failed"
        await until(lambda: find_step_tasks() == [])


async def test_a_step_that_cancels_its_own_run_ends_what_the_method_waits_for(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> None:
        def cancel() -> None:
            desk.count()
            desk.tasks.cancel(step.id)

        cancelling = asyncio.create_task(step.do("cancel", cancel))
        try:
            await step.event("never")
        finally:
            desk.seen.append("ended")
            await cancelling

    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        assert (await run(shop, do)).status == "cancelled"
        await until(lambda: desk.seen == ["ended"] and not desk.tasks._runner.busy)
        assert desk.state == {"count": 1}
    assert desk.errors == []


async def test_a_method_that_catches_its_end_again_and_again_does_not_hold_the_loop(store: FlakyStore) -> None:
    async def do(desk: Desk, step: Step) -> None:
        for _ in range(20):
            try:
                await step.event("go")
            except asyncio.CancelledError:
                desk.seen.append("caught")

    Desk.do = staticmethod(do)  # type: ignore[assignment, method-assign]
    async with open_workshop(store, Desk) as shop:
        desk = await shop.thread(Desk)
        id = (await desk.tasks.run("work")).id
        await until(lambda: desk.tasks._runner._resting == 1)
        await desk.tasks.cancel(id)
        await until(lambda: desk.seen != [])
        assert len(desk.seen) < 20
        await until(lambda: not desk.tasks._runner.busy)
