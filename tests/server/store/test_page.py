"""Orders of rows."""

import asyncio
import random

from plait.store.page import sort_in_steps

MANY = 30_000


def make(number: int) -> str | None:
    return str(number) if number % 3 else None


async def test_rows_are_sorted_by_their_places_without_those_that_are_left_out() -> None:
    numbers = random.Random(1).sample(range(MANY), MANY)
    for count in (0, 1, 3, 5_000, 5_001, MANY):
        some = numbers[:count]
        entries = [str(number) for number in some if number % 3]
        assert await sort_in_steps(some, make, str) == sorted(entries)
        assert await sort_in_steps(some, make, int) == sorted(entries, key=int)


async def test_other_tasks_run_while_many_rows_are_sorted() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    await sort_in_steps(range(MANY), make, int)
    task.cancel()
    assert turns >= 5
