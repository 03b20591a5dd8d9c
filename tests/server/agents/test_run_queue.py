"""The queue of the runs of a thread."""

import asyncio

import pytest

from plait.agents.run_queue import RunQueue

PATIENCE = 10.0


async def test_a_run_that_is_cancelled_as_it_is_let_in_leaves_its_place_to_the_next() -> None:
    queue: RunQueue[str] = RunQueue()
    await queue.enter("first", max_waiting=5, timeout=PATIENCE)
    second, third = [
        asyncio.create_task(queue.enter(name, max_waiting=5, timeout=PATIENCE)) for name in ("second", "third")
    ]
    await asyncio.sleep(0)
    queue.leave()
    assert queue.current == "second"
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await asyncio.wait_for(third, PATIENCE)
    assert queue.current == "third"
    queue.leave()
    assert queue.is_empty
