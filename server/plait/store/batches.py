"""The queue of writes of a store. It decides which writes share a transaction, and who may write."""

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Final

from plait.errors import Indeterminate, StoreError
from plait.store.outcomes import Health, Outcome, Unreachable, make_fenced
from plait.store.protocol import Write
from plait.store.thread_rows import ThreadKey

__all__ = ["GroupCommitter", "WriteGroup", "find_misfit"]

log = logging.getLogger("plait.store")

# Maximum bytes of large writes in one transaction, as all other writes wait for it.
_MOST: Final = 1024 * 1024
# Writes below this size are never postponed.
_LARGE: Final = 16 * 1024
# Seconds after which a batch is late, and the seconds for which the loop then pauses after each unit.
_LATE: Final = 0.002
_PAUSE: Final = 0.00001


class WriteGroup:
    """The waiting writes of one thread, in order. Writes submitted without an `await` in between are a unit."""

    __slots__ = ("futures", "sizes", "starts", "unit", "writes")

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.futures: list[asyncio.Future[int]] = []
        # The number of the last unit.
        self.unit = -1
        # By unit: the index of its first write, and its size in bytes.
        self.starts: list[int] = []
        self.sizes: list[int] = []

    def add(self, write: Write, future: asyncio.Future[int], unit: int) -> int:
        """Add a write of the unit with this number, and return its approximate size in bytes."""
        size = 0
        for row in write.changes:
            size += len(row.ops)
        for snapshot in write.snapshots:
            size += len(snapshot.state)
        for record in write.records:
            size += len(record.key) + len(record.value or b"")
        if unit == self.unit:
            self.sizes[-1] += size
        else:
            self.unit = unit
            self.starts.append(len(self.writes))
            self.sizes.append(size)
        self.writes.append(write)
        self.futures.append(future)
        return size

    def split(self, units: int) -> tuple["WriteGroup", "WriteGroup"]:
        """Return the first units as one group, and the others as another."""
        at = self.starts[units]
        first, rest = WriteGroup(), WriteGroup()
        first.writes, rest.writes = self.writes[:at], self.writes[at:]
        first.futures, rest.futures = self.futures[:at], self.futures[at:]
        first.starts, rest.starts = self.starts[:units], [start - at for start in self.starts[units:]]
        first.sizes, rest.sizes = self.sizes[:units], self.sizes[units:]
        rest.unit = self.unit
        return first, rest

    def count_following(self, stored: tuple[str, int] | None) -> tuple[int, StoreError | None]:
        """Return how many of the writes can follow the stored epoch and version, and why the next one cannot.

        If a write of a unit cannot follow, none of the unit counts.
        """
        for index, write in enumerate(self.writes):
            if (error := find_misfit(write, stored)) is not None:
                return self.starts[bisect_right(self.starts, index) - 1], error
            stored = None if write.is_deletion else (write.epoch, write.version)
        return len(self.writes), None


def find_misfit(write: Write, stored: tuple[str, int] | None) -> StoreError | None:
    """Return why a write cannot follow the stored epoch and version; None if it can."""
    if write.after != (stored[1] if stored else None) or (stored and write.epoch != stored[0]):
        return make_fenced(write.key)
    version = write.begins_at if write.after is None else write.after
    for row in write.changes:
        version += 1
        if row.version != version:
            return StoreError(f"{write.key}: change {row.version} is not the next one")
    if write.version != version:
        return StoreError(f"{write.key}: version {write.version} is not the one after these changes")
    return None


class GroupCommitter:
    """Collects the waiting writes of an open store, has one batch at a time written, and resolves the futures.

    A store extends it. `claim`, `submit` and `release` are those of the Store protocol. If `most` is above 1, so many
    batches are written at once, none of them with writes of the same thread; each has as few threads as can be.
    """

    def __init__(self, *, most: int = 1) -> None:
        self._health = Health(self._is_trouble)
        self._most = most
        # How many more batches may be written now.
        self._free = most
        # Whether this process may write now; None if it always may.
        self._may_write: Callable[[], bool] | None = None
        # The last number of `_next_fence`.
        self._fence = 0
        # The loop of the open store; None while it is closed.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[ThreadKey, WriteGroup] = {}
        # Total size of the waiting writes.
        self._size = 0
        # The number of the current unit, and whether its end has been scheduled.
        self._unit = 0
        self._is_ending = False
        # The batch that is being written, and the time at which the last one began.
        self._writing: dict[ThreadKey, WriteGroup] = {}
        self._began = 0.0
        # Whether the last batch had large units while others waited.
        self._had_large = False
        # Done when the batch is done; None if nothing waits for it.
        self._batch_done: asyncio.Future[None] | None = None
        # The fences of the current owners. A fence is never used again.
        self._claims: dict[ThreadKey, int] = {}
        # By thread and fence: the last write that is refused when the ones before it have an outcome, and why.
        self._refused: dict[tuple[ThreadKey, int], tuple[asyncio.Future[int], StoreError]] = {}

    def submit(self, write: Write) -> asyncio.Future[int]:
        """Queue a write, as `Store.submit` does. The writes submitted in one iteration of the loop are a unit.

        The outcomes of a thread's writes come in order.
        """
        loop, key = self._loop, write.key
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if loop is None:
            self._refuse(write, future, StoreError("the store is closed"))
            return future
        if self._refused and (refused := self._refused.get((key, write.fence))) is not None:
            self._refuse(write, future, refused[1])  # It depends on the refused one.
            return future
        if self._may_write is not None and not self._may_write():
            self._refuse(write, future, Unreachable("this process is cut off from the store"))
            return future
        if write.fence != self._claims.get(key):
            self._refuse(write, future, make_fenced(key))
            return future
        group = self._waiting.get(key) or WriteGroup()
        self._size += group.add(write, future, self._unit)  # Raises TypeError for values of the wrong type.
        self._waiting[key] = group
        if not self._is_ending:
            self._is_ending = True
            loop.call_soon(self._end_unit)
        return future

    async def claim(self, key: ThreadKey) -> int:
        return await self._change_owner(key, self._next_fence)

    def release(self, key: ThreadKey, fence: int) -> None:
        """End an ownership. The owner's waiting writes are still stored."""
        if self._claims.get(key) == fence:
            del self._claims[key]

    # For subclasses

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        """Write a batch, and return a future of its outcomes. If that or the future fails, they are not known."""
        raise NotImplementedError

    async def _next_fence(self, key: ThreadKey) -> int:
        """Do the engine's part of a claim, and return a greater number each time.

        The default counts in this process, for an engine that only one process opens.
        """
        self._fence += 1
        return self._fence

    async def _change_owner(self, key: ThreadKey, next_fence: Callable[[ThreadKey], Awaitable[int]]) -> int:
        """Return the fence of a new owner, after the writes of earlier owners have ended.

        First no write of an earlier owner is left in this process, then `next_fence` gives the number, which ends the
        ownership of other processes. Of claims at the same time, the greatest number is the owner's.
        """
        self._end_claim(key)
        while key not in self._claims and self._has_writes(key):
            await self._wait_for_batch()
        fence = await next_fence(key)
        if fence > self._claims.get(key, 0):
            self._end_claim(key)
            self._claims[key] = fence
        while self._claims.get(key) == fence and self._has_writes(key):
            await self._wait_for_batch()
        return fence

    def _is_trouble(self, cause: BaseException) -> bool:
        """Whether the cause of a failed write concerns the whole store, such as a full disk."""
        return False

    @property
    def _is_open(self) -> bool:
        """Whether writes are accepted."""
        return self._loop is not None

    def _accept_writes(self) -> None:
        """Accept writes from now on."""
        self._loop = asyncio.get_running_loop()

    async def _end_writes(self) -> None:
        """Refuse further writes, and wait for the waiting ones."""
        self._loop = None
        while self._waiting or self._writing:
            await self._wait_for_batch()

    def _end_claims(self) -> None:
        """End all ownerships, and fail the owners' waiting writes."""
        for key in list(self._claims):
            self._end_claim(key)

    def _has_owner(self, key: ThreadKey) -> bool:
        """Whether a thread is owned in this process."""
        return key in self._claims

    def _has_writes(self, key: ThreadKey) -> bool:
        """Whether writes of a thread wait, or are being written."""
        return key in self._waiting or key in self._writing

    # Inside

    def _refuse(self, write: Write, future: asyncio.Future[int], error: StoreError) -> None:
        """Fail a write that is not queued, after the ones before it have their outcomes."""
        place = (write.key, write.fence)
        before: asyncio.Future[int] | None = None
        if (refused := self._refused.get(place)) is not None:
            before = refused[0]
        elif (group := self._waiting.get(write.key) or self._writing.get(write.key)) is not None:
            before = group.futures[-1]
        if before is None or before.done():
            future.set_exception(error)
            return
        self._refused[place] = future, error

        def end(_: asyncio.Future[int]) -> None:
            if self._refused.get(place) == (future, error):
                del self._refused[place]
            if not future.done():
                future.set_exception(error)

        before.add_done_callback(end, context=Context())

    def _end_claim(self, key: ThreadKey) -> None:
        """Refuse the writes of the current owner, if there is one, and fail its waiting ones."""
        owner = self._claims.pop(key, None)
        # All waiting writes have the same fence, as a claim ends when none waits. Those of a released owner are stored.
        if (group := self._waiting.get(key)) is not None and group.writes[0].fence == owner:
            self._fail_waiting(key, make_fenced(key))

    def _end_unit(self) -> None:
        self._is_ending = False
        self._unit += 1
        if self._free:
            self._begin_batch()
        elif time.monotonic() - self._began > _LATE:
            # Release the GIL: a busy loop would take it back before the store's OS thread gets it.
            time.sleep(_PAUSE)

    def _begin_batch(self) -> None:
        if self._most > 1:
            keys = [key for key in self._waiting if key not in self._writing]
            while keys and self._free:
                share = -(-len(keys) // self._free)
                batch = {key: self._waiting.pop(key) for key in keys[:share]}
                del keys[:share]
                self._size -= sum(sum(group.sizes) for group in batch.values())
                self._start(batch)
        elif self._waiting:
            self._start(self._take())
        if not self._writing and self._batch_done is not None:
            _finish(self._batch_done)
            self._batch_done = None

    def _start(self, batch: Mapping[ThreadKey, WriteGroup]) -> None:
        self._writing |= batch
        self._free -= 1
        self._began = time.monotonic()
        try:
            work = self._write(list(batch.values()))
        except Exception as error:  # Without an outcome, no later batch would begin.
            work = asyncio.get_running_loop().create_future()
            work.set_exception(error)
        work.add_done_callback(partial(self._finish_batch, batch))

    def _finish_batch(self, batch: Mapping[ThreadKey, WriteGroup], work: asyncio.Future[Sequence[Outcome]]) -> None:
        self._free += 1
        for key in batch:
            del self._writing[key]
        if (failure := work.exception()) is not None:
            log.error("the store's writer failed", exc_info=failure)
            for key, group in batch.items():
                self._fail(key, group.futures, Indeterminate(f"{key}: it is not known whether the change was stored"))
        else:
            outcomes = work.result()
            if self._health.trouble is not None or any(error for _, error in outcomes):
                sizes = [len(group.writes) for group in batch.values()]
                self._health.record(outcomes, sizes, asyncio.get_running_loop().time())
            count = sum([stored for stored, _ in outcomes])
            for (key, group), (stored, error) in zip(batch.items(), outcomes, strict=True):
                for future in group.futures[:stored] if error is not None else group.futures:
                    if not future.done():
                        future.set_result(count)
                if error is not None:
                    self._fail(key, group.futures[stored:], error)
        if self._batch_done is not None:
            _finish(self._batch_done)
            self._batch_done = None
        self._begin_batch()

    def _fail(self, key: ThreadKey, futures: Sequence[asyncio.Future[int]], error: StoreError) -> None:
        """Fail these writes of a thread, and its waiting writes, which depend on them."""
        _fail_all(futures, error)
        self._fail_waiting(key, error)

    def _fail_waiting(self, key: ThreadKey, error: StoreError) -> None:
        """Fail the waiting writes of a thread, after those that are being written have their outcomes."""
        if (group := self._waiting.pop(key, None)) is None:
            return
        self._size -= sum(group.sizes)
        before = self._writing[key].futures[-1] if key in self._writing else None
        if before is None or before.done():
            _fail_all(group.futures, error)
        else:
            before.add_done_callback(lambda _: _fail_all(group.futures, error), context=Context())

    async def _wait_for_batch(self) -> None:
        if self._batch_done is None:
            self._batch_done = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._batch_done)

    def _take(self) -> Mapping[ThreadKey, WriteGroup]:
        """Remove and return the writes of the next batch, whole units.

        If all of them are too large for one transaction, the batch has the small units, and one large unit of each
        thread in turn. After a batch with large units, small ones are written alone, if there are any.
        """
        batch, self._waiting = self._waiting, {}
        if self._size <= _MOST:
            self._size = 0
            self._had_large = False
            return batch
        takes_large = not self._had_large or all(group.sizes[0] >= _LARGE for group in batch.values())
        self._had_large = takes_large
        taken: dict[ThreadKey, WriteGroup] = {}
        # In the next batch, threads that have no large unit in this one come first.
        rest, served = dict[ThreadKey, WriteGroup](), dict[ThreadKey, WriteGroup]()
        large = 0
        for key, group in batch.items():
            units, has_large = 0, False
            for size in group.sizes:
                if size >= _LARGE:
                    if has_large or not takes_large or (large and large + size > _MOST):
                        break
                    has_large = True
                    large += size
                units += 1
            if units == len(group.sizes):
                taken[key] = group
                continue
            left = group
            if units:
                taken[key], left = group.split(units)
            (served if has_large else rest)[key] = left
        self._waiting = rest | served
        self._size = sum(sum(group.sizes) for group in self._waiting.values())
        return taken


def _fail_all(futures: Sequence[asyncio.Future[int]], error: StoreError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
