"""Ends the work of all threads when the server shuts down."""

import asyncio
import logging
from typing import Final, Protocol

from plait.actor.actor import Actor
from plait.errors import Unavailable
from plait.node.alarms import Alarms
from plait.node.threads import SHUTTING_DOWN, Phase, Threads
from plait_schemas.codes import GOING_AWAY

__all__ = ["drain"]

log = logging.getLogger("plait.node")

# Seconds that interrupted agents have to end.
_GRACE: Final = 1.0


class Runs(Protocol):
    """The runs of agents."""

    @property
    def is_running(self) -> bool:
        """Whether an agent runs."""
        ...

    def cut_off(self) -> None:
        """Interrupt all runs."""
        ...


async def drain(threads: Threads, runs: Runs, alarms: Alarms, timeout: float) -> None:
    """Refuse sockets, give turns and changes `timeout` seconds to end, cancel the others, then close all sockets."""
    await alarms.stop()
    for actor in threads.actors(Phase.AWAKE):
        actor.timer.stop()
        actor.sockets.close(Unavailable(SHUTTING_DOWN))
        for connection in actor.sockets:
            connection.stop_reading()
    if not await _wait_until_idle(threads, timeout):
        # Agents may handle the interrupt, and their threads are marked.
        runs.cut_off()
        if not await _wait_until_idle(threads, _GRACE if runs.is_running else 0):
            log.warning("cancelling the turns that have not ended after %g s", timeout)
            for actor in _find_busy(threads):
                actor.cancel_turns()
    for actor in threads.actors(Phase.AWAKE):
        for connection in actor.sockets:
            connection.leave(GOING_AWAY, SHUTTING_DOWN)


async def _wait_until_idle(threads: Threads, timeout: float) -> bool:
    """Wait until no turn runs and all changes are durable; return False after `timeout` seconds.

    It also waits for threads that running turns wake.
    """
    try:
        async with asyncio.timeout(timeout):
            while busy := _find_busy(threads):
                for actor in busy:
                    await actor.wait_until_idle()
    except TimeoutError:
        return False
    return True


def _find_busy(threads: Threads) -> list[Actor]:
    found = (*threads.actors(Phase.AWAKE, Phase.ENDING), *threads.destroyed)
    return [actor for actor in found if not actor.is_idle]
