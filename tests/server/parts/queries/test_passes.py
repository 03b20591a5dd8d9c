"""When queries run, and what other work does in between."""

import asyncio
from functools import partial
from time import thread_time
from typing import Any

from tests.server.parts.queries.readers import Desk, Following
from tests.server.rooms import open_house
from tests.server.session.guests import PATIENCE, joined

from plait.parts.queries.passes import QueryPasses


def work_for(seconds: float) -> None:
    """Use processor time."""
    end = thread_time() + seconds
    while thread_time() < end:
        pass


async def call_all(passes: QueryPasses, count: int, seconds: float) -> list[float]:
    """Add work that takes some seconds each; return the times of the loop at which it began."""
    loop, began, is_done = asyncio.get_running_loop(), list[float](), asyncio.Event()

    def run() -> None:
        began.append(loop.time())
        work_for(seconds)
        if len(began) == count:
            is_done.set()

    for _ in range(count):
        passes.add(None, run, for_change=False)
    async with asyncio.timeout(PATIENCE):
        await is_done.wait()
    return began


async def test_queries_run_for_5_ms_at_once_and_then_rest_three_times_as_long() -> None:
    passes = QueryPasses()
    began = await call_all(passes, 7, 0.002)
    passes.close()
    # Of four that begin one after the other, at least two are in different passes.
    assert min(fourth - first for first, fourth in zip(began, began[3:], strict=False)) >= 3 * 0.005


async def test_other_work_has_its_turn_between_two_long_queries() -> None:
    passes, turns = QueryPasses(), list[int]()

    async def work() -> None:
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    task = asyncio.create_task(work())
    await call_all(passes, 2, 0.01)
    task.cancel()
    passes.close()
    assert len(turns) > 2


async def test_a_thread_with_many_queries_does_not_hold_up_another() -> None:
    passes, called = QueryPasses(), list[str]()
    for thread in ("one", "one", "one", "other"):
        passes.add(thread, partial(called.append, thread), for_change=False)
    await call_all(passes, 1, 0.0)
    passes.close()
    assert called[:2] == ["one", "other"]


async def test_work_for_changes_waits_for_others_and_a_new_reader_for_none() -> None:
    passes, called = QueryPasses(), list[str]()
    passes.interval = 3_600.0
    await call_all(passes, 1, 0.0)
    passes.add(None, lambda: called.append("change"), for_change=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert called == []
    await call_all(passes, 1, 0.0)
    passes.close()
    assert called == ["change"]


async def test_a_reader_that_comes_after_a_change_does_not_wait_for_others() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        actor.use_service(QueryPasses).interval = 3_600.0
        desk: Any = actor.thread
        orders = Following(await joined(actor, "a"), "orders")
        await orders.next()
        before = Desk.runs
        desk.add("tea")
        later = Following(await joined(actor, "b"), "orders")
        assert await later.next() == [{"id": 1, "item": "tea"}]
        assert await orders.next() == [{"id": 1, "item": "tea"}]
        assert Desk.runs == before + 1
