"""Wakes sleeping threads that are due, and destroys threads that have expired."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from heapq import heappop, heappush, nsmallest
from math import inf
from typing import Final

from plait.backoff import Backoff
from plait.clock import read_due_clock, read_wall_clock
from plait.cluster.owners import Owners
from plait.errors import PlaitError, StoreError, operator_message
from plait.store.outcomes import Unreachable
from plait.store.protocol import DueThread, Store, ThreadQuery
from plait.store.thread_rows import INCOMPLETE, ThreadKey

__all__ = ["Alarms"]

log = logging.getLogger("plait.node")

# Maximum number of threads that are read from the store at once, and that are woken at the same time.
_AT_ONCE: Final = 100
# Maximum number of threads in memory; the others are read from the store later.
_MOST_KNOWN: Final = 1000
# The delays before a thread is woken again, after it has failed to wake or to do its work, and before a failed read of
# the store is repeated. The delays of at most `_MOST_RESTING` threads are kept.
_BACKOFF: Final = Backoff(1.0, 300.0)
_MOST_RESTING: Final = 10_000

# A thread counts as written in the future if its time is this many microseconds ahead, as the clocks of nodes differ.
_AHEAD: Final = 60_000_000


class _Rest:
    """A thread that is woken again later."""

    __slots__ = ("count", "until")

    def __init__(self) -> None:
        self.count = 0
        # The time by the clock of the loop.
        self.until = inf


class Alarms:
    """Asks the store for due threads of some kinds, and calls `wake` for the ones that this node owns and are asleep.

    `wake` returns False for a thread that is not stored. `is_up` returns whether a thread is awake, or about to be, or
    about to sleep and to `tell`.

    The times up to a horizon, at most `interval` seconds ahead, are in memory; threads that go to sleep `tell` theirs.
    An awake thread has a timer of its own.
    """

    def __init__(
        self,
        kinds: Collection[str],
        store: Store,
        owners: Owners,
        wake: Callable[[ThreadKey], Awaitable[bool]],
        is_up: Callable[[ThreadKey], bool],
        *,
        interval: float,
    ) -> None:
        self._kinds = kinds
        self._store = store
        self._owners = owners
        self._wake = wake
        self._is_up = is_up
        self._interval = interval
        # A heap of threads to wake before the horizon, and the last thread read, if the store has more of them.
        self._known: list[DueThread] = []
        self._horizon = 0
        self._cursor: DueThread | None = None
        # Whether the current read must be repeated, and whether threads may have been written in the future.
        self._is_outdated = False
        self._may_be_ahead = True
        # The time at which the first threads were read.
        self._began = 0
        self._resting: dict[ThreadKey, _Rest] = {}
        self._rests: list[tuple[float, ThreadKey]] = []
        # The number of failed reads in a row.
        self._failures = 0
        self._changed = asyncio.Event()
        self._waking: dict[ThreadKey, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to wake threads."""
        self._known, self._horizon, self._cursor, self._may_be_ahead = [], 0, None, True
        self._resting, self._rests, self._waking = {}, [], {}
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="plait alarms")

    async def stop(self) -> None:
        """Stop waking threads; a wake that has begun continues."""
        tasks = [*self._waking.values(), *(() if self._task is None else (self._task,))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._task = None

    def read_again(self) -> None:
        """Read all due threads from the store again, as this node has got shards."""
        self._known, self._horizon, self._cursor, self._may_be_ahead = [], 0, None, True
        self._is_outdated = True
        self._changed.set()

    def look(self) -> None:
        """Look at the clock again, as it has jumped."""
        self._changed.set()

    def tell(self, key: ThreadKey, *, due: int, wakes_at: int) -> None:
        """Record that a thread has gone to sleep, with its due time and the time at which it can begin its work."""
        if wakes_at:
            self._resting.pop(key, None)
            if wakes_at <= self._horizon:
                self._know(DueThread(wakes_at, key))
        elif due:
            self._rest(key)
        else:
            self._resting.pop(key, None)

    # Inside

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            while self._rests and self._rests[0][0] <= loop.time():
                _, key = heappop(self._rests)
                if (rest := self._resting.get(key)) is not None and rest.until <= loop.time():
                    rest.until = inf
                    await self._begin(key)
            while self._known and self._known[0].due <= read_due_clock():
                key = heappop(self._known).key
                if key not in self._resting:
                    await self._begin(key)
            if not self._known or self._horizon <= read_due_clock():
                await self._read()
            await self._sleep(loop)

    async def _sleep(self, loop: asyncio.AbstractEventLoop) -> None:
        until = min(self._horizon, self._known[0].due) if self._known else self._horizon
        delay = (until - read_due_clock()) / 1e6
        if self._rests:
            delay = min(delay, self._rests[0][0] - loop.time())
        if delay > 0:
            alarm = loop.call_later(min(delay, self._interval), self._changed.set)
            try:
                await self._changed.wait()
            finally:
                alarm.cancel()

    async def _read(self) -> None:
        """Read the next threads from the store; start over when all have been read, and once in each interval."""
        now = read_due_clock()
        until = now + int(self._interval * 1e6)
        if self._cursor is None and now < self._horizon:
            return
        if self._cursor is None or now - self._began >= self._interval * 1e6:
            # Earlier threads may be due again, even if many later ones are still unread.
            self._cursor, self._began = None, now
        self._is_outdated = False
        try:
            if self._may_be_ahead:
                self._may_be_ahead = False
                await self._find_ahead()
            found = await self._store.due_threads(until=until, after=self._cursor, limit=_AT_ONCE)
        except StoreError as error:
            self._failures += 1
            self._may_be_ahead = True
            rest = min(self._interval, _BACKOFF.delay(self._failures))
            if not isinstance(error, Unreachable):  # The lease logs this outage.
                log.error("threads that are due are not woken: %s", operator_message(error))
            self._horizon = now + int(rest * 1e6)
            return
        self._failures = 0
        if self._is_outdated:
            return
        is_all = len(found) < _AT_ONCE
        self._cursor = None if is_all else found[-1]
        self._horizon = until if is_all else found[-1].due
        for each in found:
            if each.key.kind in self._kinds and each.due != INCOMPLETE and self._owners.owns(each.key):
                self._know(each)

    async def _find_ahead(self) -> None:
        """Wake threads that were written while a clock was ahead: they correct recurring work that would be late."""
        for kind in self._kinds:
            row, is_all = None, False
            while not is_all:
                rows = await self._store.threads(ThreadQuery(kind=kind, order="changed", after=row, limit=_AT_ONCE))
                is_all = len(rows) < _AT_ONCE
                for row in rows:
                    if is_all := row.changed_at <= read_wall_clock() + _AHEAD:
                        break
                    if (found := await self._store.find(row.key)) is not None and found.due > read_due_clock():
                        await self._begin(row.key)

    def _know(self, thread: DueThread) -> None:
        heappush(self._known, thread)
        if len(self._known) > _MOST_KNOWN:
            # The dropped threads are read from the store again.
            self._known = nsmallest(_MOST_KNOWN // 2, self._known)
            self._cursor = self._known[-1]
            self._horizon = self._cursor.due
        if self._known[0] == thread:
            self._changed.set()

    async def _begin(self, key: ThreadKey) -> None:
        """Begin to wake a thread that is asleep."""
        if not self._owners.owns(key):  # The thread has moved to another node, which reads it from the store.
            self._resting.pop(key, None)
            return
        if self._is_up(key):
            # If the thread fails to wake, it is read from the store again.
            self._resting.pop(key, None)
            return
        while len(self._waking) >= _AT_ONCE:
            await asyncio.wait(self._waking.values(), return_when=asyncio.FIRST_COMPLETED)
        if key not in self._waking:  # The same thread may be read again before its failure to wake is noticed.
            self._waking[key] = asyncio.create_task(self._wake_one(key), name=f"wake due {key}")

    async def _wake_one(self, key: ThreadKey) -> None:
        try:
            if not await self._wake(key):  # The thread was destroyed.
                self._resting.pop(key, None)
        except Exception as error:  # `on_start` may raise any exception.
            self._rest(key)
            what = operator_message(error) if isinstance(error, PlaitError) else repr(error)
            log.error("%s is due, but could not be woken or destroyed: %s", key, what)
        finally:
            # A callback of the task would be too late, after a rest that ends at once.
            self._waking.pop(key, None)

    def _rest(self, key: ThreadKey) -> None:
        rest = self._resting.get(key)
        if rest is None:
            if len(self._resting) >= _MOST_RESTING:
                return
            rest = self._resting[key] = _Rest()
        rest.count += 1
        rest.until = asyncio.get_running_loop().time() + _BACKOFF.delay(rest.count)
        heappush(self._rests, (rest.until, key))
        self._changed.set()
