"""Ends the work of threads that move to another node, or of all threads when the server shuts down."""

import asyncio
import logging
from typing import Final

from plait.actor.actor import Actor, AgentRuns
from plait.errors import PlaitError, Unavailable
from plait.node.alarms import Alarms
from plait.node.threads import SHUTTING_DOWN, Phase, ThreadTable
from plait_schemas.codes import GOING_AWAY

__all__ = ["drain", "end_work", "leave", "refuse_clients"]

log = logging.getLogger("plait.node")

# Seconds that interrupted agents get to end.
_GRACE: Final = 1.0


async def drain(threads: ThreadTable, runs: AgentRuns, alarms: Alarms, timeout: float) -> None:
    """Refuse sockets, give turns and changes `timeout` seconds to end, cancel the others, then close all sockets."""
    await alarms.stop()
    for actor in threads.actors(Phase.AWAKE):
        refuse_clients(actor, Unavailable(SHUTTING_DOWN))
    until = asyncio.get_running_loop().time() + timeout
    if not await end_work(threads, runs, until, grace=_GRACE):
        log.warning("cancelling the turns that have not ended after %g s", timeout)
    for actor in threads.actors(Phase.AWAKE):
        leave(actor, GOING_AWAY, SHUTTING_DOWN)


def refuse_clients(actor: Actor, error: PlaitError) -> None:
    """Refuse new sockets of a thread that ends, and read nothing more from its open sockets."""
    actor.timer.stop()
    actor.sockets.close(error)
    for connection in actor.sockets:
        connection.stop_reading()


def leave(actor: Actor, code: int, reason: str) -> None:
    """Close the sockets of a thread."""
    for connection in actor.sockets:
        connection.leave(code, reason)


async def end_work(
    threads: ThreadTable, runs: AgentRuns, until: float, *, grace: float, actor: Actor | None = None
) -> bool:
    """Wait for the turns and changes of all threads, or of one, then interrupt the runs, then cancel the turns.

    `until` is a time of the loop, and interrupted runs get `grace` seconds. Returns False if turns had to be cancelled.
    """
    if await _wait_until_idle(threads, actor, until):
        return True
    thread = None if actor is None else actor.key
    runs.cut_off(thread)  # Agents may handle the interrupt; the cut is noted in their threads.
    now = asyncio.get_running_loop().time()
    if await _wait_until_idle(threads, actor, now + (grace if runs.has_run(thread) else 0)):
        return True
    for each in _find_busy(threads, actor):
        each.turns.cancel()
    return False


async def _wait_until_idle(threads: ThreadTable, actor: Actor | None, until: float) -> bool:
    """Wait until no turn runs and all changes are durable; return False at `until`.

    This includes threads that running turns wake.
    """
    try:
        async with asyncio.timeout_at(until):
            while busy := _find_busy(threads, actor):
                for each in busy:
                    await each.wait_until_idle()
    except TimeoutError:
        return False
    return True


def _find_busy(threads: ThreadTable, actor: Actor | None) -> list[Actor]:
    """Return the threads that are not idle, of all threads or of one."""
    found = (*threads.actors(Phase.AWAKE, Phase.ENDING), *threads.destroyed) if actor is None else (actor,)
    return [each for each in found if not each.is_idle]
