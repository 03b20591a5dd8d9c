"""Ends the use of threads whose shards move from this node to another one."""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from typing import Any, Final

from plait.actor.actor import Actor, AgentRuns
from plait.actor.logs import about
from plait.cluster.owners import NotOwner
from plait.node.draining import end_work, leave, refuse_clients
from plait.node.lifecycle import Lifecycle
from plait.node.threads import Phase, Slot
from plait.store.shards import find_shard

__all__ = ["Moving"]

log = logging.getLogger("plait.node")

_MOVED: Final = "the thread moves to another process"
# Seconds for an agent that handles the interrupt of its run, and for `on_stop`.
_GRACE: Final = 2.0


class Moving:
    """Stops threads that move, with `on_stop`, after their turns and runs; the clients join at the new owner."""

    def __init__(self, lifecycle: Lifecycle, runs: AgentRuns) -> None:
        self._lifecycle = lifecycle
        self._runs = runs
        self._tasks: set[asyncio.Task[object]] = set()
        # The time of the loop at which all moves must have ended, if this node is stopping.
        self._deadline: float | None = None

    def set_deadline(self, timeout: float) -> None:
        """Give all later moves together this many seconds, as this node stops."""
        self._deadline = asyncio.get_running_loop().time() + timeout

    def find_busy(self) -> frozenset[int]:
        """Return the shards of threads that have turns or runs or are being imported or forked."""
        slots = self._lifecycle.threads.slots()
        busy = (slot.key for slot in slots if slot.phase is Phase.FILLING or _is_working(slot.actor))
        return frozenset(find_shard(key) for key in (*self._runs.threads, *busy))

    def keep(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work in a task that `stop` cancels."""
        task = asyncio.get_running_loop().create_task(work, name="plait moved threads")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel the tasks that `keep` has begun."""
        self._deadline = None
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def vacate(self, shards: Collection[int], timeout: float) -> None:
        """Stop the threads of shards in which no thread wakes any longer; after `timeout` seconds, cancel their work.

        Afterwards all writes of these threads are durable, or lost.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout if self._deadline is None else self._deadline
        left: set[Actor] = set()
        while slots := [slot for slot in self._lifecycle.threads.slots() if find_shard(slot.key) in shards]:
            moving = [self._move(slot, left, until) for slot in slots if _is_ready(slot)]
            if moving:
                await asyncio.gather(*moving)
            elif tasks := [task for slot in slots for task in slot.tasks]:
                rest = max(until - loop.time(), _GRACE)
                done, late = await asyncio.wait(tasks, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    await _cancel(late)
            else:  # Wait for the callers of a thread that has just woken to resume.
                await asyncio.sleep(0)

    # Inside

    async def _move(self, slot: Slot, left: set[Actor], until: float) -> None:
        """Stop a thread that is awake: its clients leave after its turns."""
        actor = slot.actor
        assert actor is not None
        refuse_clients(actor, NotOwner(_MOVED))
        threads, key = self._lifecycle.threads, actor.key
        if actor not in left and not await end_work(threads, self._runs, until, grace=_GRACE, actor=actor):
            log.warning("this thread's turns are cancelled, as it moves to another node", extra=about(key))
        left.add(actor)
        leave(actor, NotOwner.close_code, _MOVED)
        if slot.phase is Phase.AWAKE and slot.actor is actor:
            self._lifecycle.stop(actor)
            rest = max(until - asyncio.get_running_loop().time(), _GRACE)
            await asyncio.wait(slot.tasks, timeout=rest)


async def _cancel(tasks: Collection[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _is_working(actor: Actor | None) -> bool:
    return actor is not None and not actor.turns.is_idle


def _is_ready(slot: Slot) -> bool:
    return slot.phase is Phase.AWAKE and not slot.waiters
