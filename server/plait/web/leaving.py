"""What is done for a peer whose socket is not open yet, as long as it is there."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from starlette.types import Receive

__all__ = ["unless_gone"]

T = TypeVar("T")

# Seconds after which it is minded that the peer may be gone; nearly everything is over by then.
_MOMENT: Final = 0.1


async def unless_gone(work: Awaitable[T], receive: Receive) -> T | None:
    """Return what comes of `work`, or None when the peer is gone before; nothing else is received meanwhile."""
    opening = asyncio.current_task()
    assert opening is not None
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        await receive()
        opening.cancel()

    def begin() -> None:
        nonlocal watching
        watching = asyncio.create_task(watch(), name="plait opening")

    timer = asyncio.get_running_loop().call_later(_MOMENT, begin)
    try:
        return await work
    except asyncio.CancelledError:
        is_gone = watching is not None and watching.done() and not watching.cancelled()
        if not is_gone or opening.uncancel():
            raise
        return None
    finally:
        timer.cancel()
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
