"""What becomes of the turns, runs and sockets of the awake threads when the server shuts down."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from plait.actor.actor import Actor
from plait.agents.runs import Runs
from plait.errors import Unavailable
from plait.node.ending import SHUTTING_DOWN
from plait_schemas.codes import GOING_AWAY

__all__ = ["drain_threads"]

log = logging.getLogger("plait.node")

# Seconds for agents that are interrupted as the server shuts down.
_GRACE: Final = 1.0


async def drain_threads(awake: Mapping[Any, Actor], ending: Collection[Actor], runs: Runs, timeout: float) -> None:
    """Give the turns and changes of threads, and of those that are `ending`, time to end, then close the sockets.

    What runs may wake other threads, which are waited for, too.
    """

    def find_busy() -> list[Actor]:
        return [actor for actor in (*awake.values(), *ending) if not actor.is_idle]

    for actor in list(awake.values()):
        actor.connections.close(Unavailable(SHUTTING_DOWN))
        for connection in actor.connections:
            connection.stop_reading()
    if not await _wait_until_idle(find_busy, timeout):
        # Agents may end in their own way, and their threads are marked.
        runs.cut_off()
        if not await _wait_until_idle(find_busy, _GRACE if runs.is_running else 0):
            log.warning("cancelling the turns that have not ended after %g s", timeout)
            for actor in find_busy():
                actor.cancel_turns()
    for actor in list(awake.values()):
        for connection in actor.connections:
            connection.leave(GOING_AWAY, SHUTTING_DOWN)


async def _wait_until_idle(find_busy: Callable[[], list[Actor]], timeout: float) -> bool:
    """Wait until no turn runs and all changes are durable; return whether that was so in time."""
    try:
        async with asyncio.timeout(timeout):
            while busy := find_busy():
                for actor in busy:
                    await actor.wait_until_idle()
    except TimeoutError:
        return False
    return True
