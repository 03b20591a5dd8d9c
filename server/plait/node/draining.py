"""Ends the work of threads, when they move to another node and when the server shuts down."""

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from plait.actor.actor import Actor, AgentRuns
from plait.errors import PlaitError, Unavailable
from plait.node.alarms import Alarms
from plait.node.threads import SHUTTING_DOWN, Phase, ThreadTable
from plait.store.protocol import ThreadKey
from plait_schemas.codes import GOING_AWAY

__all__ = ["drain", "end_work", "leave", "refuse_clients"]

log = logging.getLogger("plait.node")

# Seconds that interrupted agents have to end.
_GRACE: Final = 1.0


async def drain(threads: ThreadTable, runs: AgentRuns, alarms: Alarms, timeout: float) -> None:
    """Refuse sockets, give turns and changes `timeout` seconds to end, cancel the others, then close all sockets."""
    await alarms.stop()
    for actor in threads.actors(Phase.AWAKE):
        refuse_clients(actor, Unavailable(SHUTTING_DOWN))
    until = asyncio.get_running_loop().time() + timeout
    if not await end_work(partial(_find_busy, threads), runs, until, grace=_GRACE):
        log.warning("cancelling the turns that have not ended after %g s", timeout)
    for actor in threads.actors(Phase.AWAKE):
        leave(actor, GOING_AWAY, SHUTTING_DOWN)


def refuse_clients(actor: Actor, error: PlaitError) -> None:
    """Refuse new sockets of a thread that ends, and read nothing more from those it has."""
    actor.timer.stop()
    actor.sockets.close(error)
    for connection in actor.sockets:
        connection.stop_reading()


def leave(actor: Actor, code: int, reason: str) -> None:
    """Close the sockets of a thread."""
    for connection in actor.sockets:
        connection.leave(code, reason)


async def end_work(
    find_busy: Callable[[], Collection[Actor]],
    runs: AgentRuns,
    until: float,
    *,
    grace: float,
    thread: ThreadKey | None = None,
) -> bool:
    """Wait for the turns and changes of busy threads, then interrupt the runs, then cancel the turns.

    The threads are one `thread`, or all. `until` is a time of the loop, and interrupted runs have `grace` seconds.
    Return whether no turn had to be cancelled.
    """
    if await _wait_until_idle(find_busy, until):
        return True
    runs.cut_off(thread)  # Agents may handle the interrupt, and their threads are marked.
    now = asyncio.get_running_loop().time()
    if await _wait_until_idle(find_busy, now + (grace if runs.has_run(thread) else 0)):
        return True
    for actor in find_busy():
        actor.turns.cancel()
    return False


async def _wait_until_idle(find_busy: Callable[[], Collection[Actor]], until: float) -> bool:
    """Wait until no turn runs and all changes are durable; return False at `until`.

    It also waits for threads that running turns wake.
    """
    try:
        async with asyncio.timeout_at(until):
            while busy := find_busy():
                for actor in busy:
                    await actor.wait_until_idle()
    except TimeoutError:
        return False
    return True


def _find_busy(threads: ThreadTable) -> list[Actor]:
    found = (*threads.actors(Phase.AWAKE, Phase.ENDING), *threads.destroyed)
    return [actor for actor in found if not actor.is_idle]
