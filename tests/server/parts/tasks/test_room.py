"""A run is never too large to begin, to fail or to be cancelled."""

from contextlib import suppress
from typing import Any

import pytest
from tests.server.holding import MOST_HELD, measure_held
from tests.server.parts.tasks.desks import Desk, open_desk
from tests.server.parts.workshop import FlakyMemory, FlakyStore

from plait import Step, TooLarge, TooMany

MOST = 1024 * 1024


async def test_a_run_with_the_largest_arguments_begins_and_fails(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        raise ValueError("x" * 10_000)

    async with open_desk(store, script) as (_, desk):
        id = (await desk.tasks.run("keep", "a" * find_most(desk))).id
        ended = await desk.tasks.wait(id)
        assert (ended.status, ended.error) == ("failed", "ValueError: " + "x" * 3_988)
        await desk.tasks.retry(id)
        assert (await desk.tasks.wait(id)).status == "failed"


def find_most(desk: Desk) -> int:
    """Return how long an argument of a run may be, of two lengths."""
    with suppress(TooLarge):
        desk.tasks._make_row("keep", ["a" * (MOST - 200)], None)
        return MOST - 200
    return MOST * 15 // 16 - 200


async def test_a_status_leaves_room_for_the_end_of_its_run(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        with pytest.raises(TooLarge, match="the limit is 983,040"):
            step.status("v" * (MOST - 400))
        step.status("v" * 900_000)
        raise ValueError("x" * 4_000)

    async with open_desk(store, script) as (_, desk):
        ended = await desk.tasks.wait((await desk.tasks.run("work")).id)
        assert (ended.status, ended.error) == ("failed", "ValueError: " + "x" * 3_988)


async def test_a_result_that_does_not_fit_fails_its_run(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> Any:
        step.status("v" * 700_000)
        return "r" * 700_000

    async with open_desk(store, script) as (_, desk):
        ended = await desk.tasks.wait((await desk.tasks.run("work")).id)
        assert ended.status == "failed"
        assert "TooLarge" in str(ended.error)


async def test_the_names_of_events_do_not_keep_a_run_from_ending(store: FlakyStore) -> None:
    async def script(desk: Desk, step: Step) -> None:
        await step.event("go")

    async with open_desk(store, script) as (_, desk):
        id = desk.tasks.run("keep", "a" * 980_000).id
        with pytest.raises(TooLarge):  # noqa: PT012
            for number in range(1_000):
                desk.tasks.send(id, f"{number:0400}")
        assert await desk.tasks.cancel(id)
        assert (await desk.tasks.wait(id)).status == "cancelled"


async def test_the_arguments_of_all_runs_have_a_limit(store: FlakyStore) -> None:
    async def wait(desk: Desk, step: Step) -> None:
        await step.event("go")

    async with open_desk(store, wait) as (_, desk):
        runs = [(await desk.tasks.run("keep", "a" * 900_000)).id for _ in range(9)]
        with pytest.raises(TooMany, match="arguments have 8,388,608 bytes"):
            await desk.tasks.run("keep", "a" * 900_000)
        await desk.tasks.run("work")
        assert await desk.tasks.cancel(runs[0])
        await desk.tasks.run("keep", "a" * 900_000)


async def test_large_arguments_hold_the_loop_for_less_than_60_ms() -> None:
    rows = [[1]] * 200_000
    async with FlakyMemory() as store, open_desk(store) as (_, desk):

        async def run() -> None:
            receipt = desk.tasks.run("total", rows)
            assert (await desk.tasks.wait(receipt.id)).result == len(rows)

        assert await measure_held(run) < MOST_HELD
