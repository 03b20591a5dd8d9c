"""Measures for how long work holds the event loop."""

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from plait import PlaitError

__all__ = ["MOST_HELD", "measure_held"]

MOST_HELD = 0.06
YARDSTICK = 0.006
ROWS = [[1]] * 20_000


async def measure_held(work: Callable[[], Awaitable[object]], *, rounds: int = 3) -> float:
    """Return the most processor time for which some work holds the loop, in seconds; it may raise.

    What the machine does beside it can only add to that: the least of some rounds is its own. Where the yardstick
    takes longer than on an idle machine, before and after a round, the round counts that much less.
    """
    return min([await _measure_round(work) for _ in range(rounds)])


async def _measure_round(work: Callable[[], Awaitable[object]]) -> float:
    before = _measure_yardstick()
    held = await _measure_once(work)
    return held * min(1.0, YARDSTICK / min(before, _measure_yardstick()))


def _measure_yardstick() -> float:
    start = time.thread_time()
    json.loads(json.dumps(ROWS))
    return time.thread_time() - start


async def _measure_once(work: Callable[[], Awaitable[object]]) -> float:
    held = 0.0

    async def watch() -> None:
        nonlocal held
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            held = max(held, time.thread_time() - before)

    gc.collect()
    gc.freeze()  # The garbage collector leaves out what is there, as it does in a server.
    watching = asyncio.create_task(watch())
    try:
        await asyncio.sleep(0)
        with suppress(PlaitError, ValueError):
            await work()
        await asyncio.sleep(0.003)  # It looks once more.
    finally:
        watching.cancel()
        gc.unfreeze()
    return held
