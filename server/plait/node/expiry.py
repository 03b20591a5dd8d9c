"""Finds the threads that have expired: idle for as long as their class's `expires_after`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from plait.actor.kind import Kind
from plait.clock import read_wall_clock
from plait.errors import PlaitError, StoreError, operator_message
from plait.store.protocol import IdleThread, Store, ThreadKey, Write

__all__ = ["Expiry", "mark_idle_since"]

log = logging.getLogger("plait.node")

# Maximum number of threads that are destroyed at the same time, so that their writes share transactions.
_AT_ONCE: Final = 100


class Expiry:
    """Asks the store for expired threads every `interval` seconds, and calls `expire` for each.

    `expire` also gets the time since which the thread must be idle. `rest` is called for a thread whose idle time could
    not be stored, until it returns True. `owns` tells which threads are this node's; `may_mark`, which threads of a
    shared store it may mark as idle.

    A thread is idle since its last socket or turn. The store keeps that time while the thread is asleep.
    """

    def __init__(
        self,
        kinds: Iterable[Kind],
        store: Store,
        expire: Callable[[ThreadKey, int], Awaitable[object]],
        rest: Callable[[ThreadKey], Awaitable[bool]],
        *,
        owns: Callable[[ThreadKey], bool] = lambda key: True,
        may_mark: Callable[[ThreadKey], bool] = lambda key: True,
        interval: float,
    ) -> None:
        # The seconds after which threads expire, by kind.
        self._kinds = {kind.name: kind.expires_after for kind in kinds if kind.expires_after is not None}
        self._store = store
        self._expire = expire
        self._rest = rest
        self._owns = owns
        self._may_mark = may_mark if store.is_shared else None
        # Whether this node owns threads since the last look that may have been awake when another one was killed.
        self._has_gained = False
        # Sleeping threads whose idle time could not be stored.
        self._unmarked: set[ThreadKey] = set()
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        # Stores an idle time for the threads that have none.
        self._marking: asyncio.Task[None] | None = None

    def has(self, kind: str) -> bool:
        """Whether threads of a kind expire."""
        return kind in self._kinds

    def start(self) -> None:
        """Begin to look for expired threads, if any can expire."""
        self._marking = None
        if self._kinds:
            self._task = asyncio.create_task(self._run(), name="plait expiry")

    async def stop(self) -> None:
        """Stop looking for expired threads, without waiting for the ones that are being destroyed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def remember(self, key: ThreadKey) -> None:
        """Store later that a thread is idle, unless it is used before."""
        if self.has(key.kind):
            self._unmarked.add(key)

    def gain(self) -> None:
        """Start the idle clock of threads that have no stored idle time, as this node has got shards."""
        self._has_gained = True

    async def prepare(self) -> None:
        """Start the idle clock of threads that have no stored idle time. Raises StoreError.

        They were awake when a server was killed, or `expires_after` of their class is new. It is done once, before any
        thread wakes.
        """
        marking = self._marking
        if marking is None or (marking.done() and (marking.cancelled() or marking.exception() is not None)):
            marking = self._marking = asyncio.create_task(self._mark(), name="plait idle threads")
        await asyncio.shield(marking)

    # Inside

    async def _mark(self) -> None:
        for kind in self._kinds:
            await self._store.mark_idle(kind, read_wall_clock(), self._may_mark)

    async def _run(self) -> None:
        while True:
            try:
                await self.prepare()
                if self._has_gained:
                    self._has_gained = False
                    try:
                        await self._mark()
                    except StoreError:
                        self._has_gained = True
                        raise
                await self._mark_unmarked()
                for kind, seconds in self._kinds.items():
                    await self._expire_due(kind, read_wall_clock() - int(seconds * 1e6))
            except StoreError as error:
                log.error("expired threads are not destroyed: %s", operator_message(error))
            await asyncio.sleep(self._interval)

    async def _mark_unmarked(self) -> None:
        failure: StoreError | None = None
        for key in tuple(self._unmarked):
            try:
                if await self._rest(key):
                    self._unmarked.discard(key)
            except StoreError as error:
                failure = error
        if failure is not None:
            count = len(self._unmarked)
            log.error("the idle times of %d threads could not be stored: %s", count, operator_message(failure))

    async def _expire_due(self, kind: str, until: int) -> None:
        after: IdleThread | None = None
        while due := await self._store.idle_threads(kind, until=until, after=after, limit=_AT_ONCE):
            keys = [key for each in due if self._owns(key := ThreadKey(kind, each.name))]
            outcomes = await asyncio.gather(*(self._expire(key, until) for key in keys), return_exceptions=True)
            for key, outcome in zip(keys, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    what = operator_message(outcome) if isinstance(outcome, PlaitError) else repr(outcome)
                    log.error("%s has expired, but could not be destroyed: %s", key, what)
            after = due[-1]


def mark_idle_since(key: ThreadKey, epoch: str, version: int, fence: int, *, idle_since: int) -> Write:
    """Return the write that stores since when a thread is idle, in microseconds since the epoch; 0 if it is used."""
    return Write(key, epoch, version, version, fence=fence, idle_since=idle_since)
