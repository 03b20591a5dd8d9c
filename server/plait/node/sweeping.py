"""Finds the awake threads that have been idle for long enough."""

import asyncio
from contextlib import suppress
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from plait.actor.actor import Actor
from plait.clock import ClockWatch
from plait.node.alarms import Alarms
from plait.node.lifecycle import Lifecycle
from plait.node.threads import Phase
from plait.store.thread_rows import ThreadKey

__all__ = ["Sweeper"]

# Maximum number of threads that are checked before other tasks run.
_BATCH: Final = 1000
# Outdated times, of sleeping threads and threads that were used again, are removed once there are more than this.
_MOST_OUTDATED: Final = 1000


class Sweeper:
    """Stops the threads of `lifecycle` that have been idle for long enough, and cancels slow turns.

    At most every `interval` seconds, the sweeper checks the threads that were used since the last check, and the
    threads whose idle time may be over; without such threads, it waits. When the wall clock has jumped, it tells the
    alarms and the timers of the threads.
    """

    def __init__(self, lifecycle: Lifecycle, alarms: Alarms, *, interval: float) -> None:
        self._lifecycle = lifecycle
        self._threads = lifecycle.threads
        self._alarms = alarms
        self.interval = interval
        # The threads that were used since the last check, in order.
        self._active: list[Actor] = []
        # A heap. A time counts only if it is still the `due` of its thread.
        self._times: list[tuple[float, ThreadKey]] = []
        self._clock = ClockWatch()
        self._has_jumped = False
        # Set when a check is needed before the first of the times.
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check the threads."""
        self._clock, self._has_jumped, self._wake = ClockWatch(), False, asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="plait sweeper")

    async def stop(self) -> None:
        """Stop checking the threads."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def forget(self) -> None:
        """Forget the threads, which have all been stopped."""
        self._active.clear()

    def watch(self, actor: Actor) -> None:
        """Check a thread soon, as it is used."""
        self._active.append(actor)
        self._wake.set()

    def look_at_clock(self) -> None:
        """Notice whether the wall clock has jumped; called several times a second."""
        if self._clock.look():
            self._has_jumped = True
            self._wake.set()

    def take(self, now: float) -> list[Actor]:
        """Return the threads to check; the caller marks each one as used, passes it to `put_off`, or stops it."""
        found, self._active = self._active, []
        for each in found:
            each.usage.is_watched = False
        while self._times and self._times[0][0] <= now:
            due, key = heappop(self._times)
            actor = self._threads.find_awake(key)
            if actor is not None and actor.due == due:
                actor.due = inf
                found.append(actor)
        return found

    def put_off(self, actor: Actor, due: float) -> None:
        """Check a thread again at `due`, unless it is used before; with `inf`, only after it is used."""
        if due >= actor.due:
            return
        actor.due = due
        heappush(self._times, (due, actor.key))
        if len(self._times) > 2 * self._threads.count + _MOST_OUTDATED:
            self._times = [(each.due, each.key) for each in self._threads.actors(Phase.AWAKE) if each.due < inf]
            heapify(self._times)

    # Inside

    async def _run(self) -> None:
        while True:
            # No variable here may refer to a thread during the sleep.
            await asyncio.sleep(self.interval)
            if not self._active and not self._has_jumped:
                await self._wait()
            if self._has_jumped:
                self._has_jumped = False
                await self._follow_clock()
            await self._look()

    async def _wait(self) -> None:
        """Wait until a thread is used, or the idle time of a thread may be over."""
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._times[0][0] if self._times else None):
                await self._wake.wait()

    async def _follow_clock(self) -> None:
        self._alarms.look()
        for index, actor in enumerate(self._threads.actors(Phase.AWAKE)):
            if index % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
            actor.timer.look()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for index, actor in enumerate(self.take(loop.time())):
            if index % _BATCH == _BATCH - 1:
                await asyncio.sleep(0)
            self._look_at(actor, loop.time())

    def _look_at(self, actor: Actor, now: float) -> None:
        """Stop a thread if it has been idle for long enough, or else decide when to check it again."""
        due = actor.sweep(now)
        slot = self._threads.find(actor.key)
        if slot.phase is not Phase.AWAKE or slot.actor is not actor:
            return
        if due > now:
            self.put_off(actor, due)
        elif slot.waiters:  # Callers are about to use it.
            actor.usage.watch()
        else:
            self._lifecycle.stop(actor)
