"""Costly work is done in order, one piece at a time, with iterations of the loop in between."""

import asyncio
from itertools import pairwise

import pytest
from tests.server.session.guests import until

from plait.web.fairness import AT_ONCE, FairScheduler


class Work:
    """Work that takes a time which a clock tells, and notes who has done it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[str] = []
        self.scheduler = FairScheduler()
        self.scheduler.clock = lambda: self.now

    def do(self, name: str, seconds: float) -> None:
        """Work for so long."""
        self.now += seconds
        self.done.append(name)

    def ask(self, name: str, seconds: float) -> None:
        """Work for so long when it is scheduled."""
        self.scheduler.wait(lambda: self.do(name, seconds))

    async def work(self, name: str, seconds: float) -> None:
        """Work for so long in a task."""
        await self.scheduler.wait_for_slot()
        with self.scheduler.measure():
            self.do(name, seconds)


def count_iterations(work: Work) -> list[list[str]]:
    """Return a list to which the names that have been noted are added once an iteration of the loop."""
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(list(work.done))
        if len(seen) < 1_000 and work.done[-1:] != ["last"]:
            asyncio.get_running_loop().call_soon(look)

    look()
    return seen


async def test_costly_work_is_done_one_at_a_time_in_order_and_others_come_in_between() -> None:
    work = Work()
    for name in "abc":
        work.ask(name, 2 * AT_ONCE)
    work.ask("last", 0)
    seen = count_iterations(work)
    await until(lambda: len(work.done) == 4)
    assert work.done == ["a", "b", "c", "last"]
    assert all(later[: len(earlier) + 1] == later for earlier, later in pairwise(seen))


async def test_work_that_costs_little_is_done_together() -> None:
    work = Work()
    for name in "abcdefghij":
        work.ask(name, AT_ONCE / 4)
    assert work.scheduler.is_free is False
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(work.done) >= 4
    await until(lambda: len(work.done) == 10)
    await until(lambda: work.scheduler.is_free)


async def test_after_what_took_very_long_there_is_more_than_one_iteration_for_others() -> None:
    work = Work()
    work.scheduler.spend(100 * AT_ONCE)
    work.ask("last", 0)
    assert not work.scheduler.is_free
    seen = count_iterations(work)
    await until(lambda: work.done == ["last"])
    assert seen.count([]) > 3


async def test_tasks_are_scheduled_one_at_a_time_too() -> None:
    work = Work()
    tasks = [asyncio.create_task(work.work(name, 2 * AT_ONCE)) for name in "abc"]
    seen = count_iterations(work)
    await asyncio.gather(*tasks)
    await work.work("last", 0)
    assert work.done == ["a", "b", "c", "last"]
    assert all(later[: len(earlier) + 1] == later for earlier, later in pairwise(seen))


async def test_a_task_that_is_cancelled_while_it_waits_lets_the_others_go_on() -> None:
    work = Work()
    work.scheduler.spend(5 * AT_ONCE)
    tasks = [asyncio.create_task(work.work(name, 0)) for name in "abc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    await asyncio.gather(tasks[0], tasks[2])
    assert work.done == ["a", "c"]


async def test_a_place_in_the_queue_may_be_let_go() -> None:
    work = Work()
    ticket = work.scheduler.wait(lambda: work.do("a", 0))
    work.ask("b", 0)
    ticket.cancel()
    await until(lambda: work.done == ["b"])
