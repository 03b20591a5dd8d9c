"""Writes that begin when they are called."""

import asyncio
import gc
from typing import Any

import pytest

from plait.actor.begun import Begun


async def fail(gate: asyncio.Event) -> None:
    await gate.wait()
    raise LookupError("lost")


async def test_the_error_of_work_whose_caller_was_cancelled_is_not_logged() -> None:
    gate, told = asyncio.Event(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    begun = [Begun(fail(gate))]

    async def wait() -> None:
        await begun[0]

    caller = asyncio.create_task(wait())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    await asyncio.wait([begun[0]._task])
    begun.clear()
    gc.collect()
    assert told == []
