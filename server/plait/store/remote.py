"""The store of an engine on a server: it claims and loads in one round trip, and writes one batch at a time."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from typing import Any, Generic, Self, TypeVar

from plait.errors import StoreError
from plait.store.base import EngineStore
from plait.store.batches import Batches, WriteGroup
from plait.store.outcomes import Outcome
from plait.store.protocol import StoredThread, ThreadKey
from plait.store.thread_rows import RecordRange
from plait.store.upkeep import Head, HeadUpkeep

__all__ = ["RemoteStore"]

H = TypeVar("H", bound=Head)


class RemoteStore(EngineStore, Generic[H]):
    """A store that several processes may have open. A subclass makes its attributes when it is opened."""

    # Of the threads that this store has claimed.
    _heads: dict[ThreadKey, H]
    _upkeep: HeadUpkeep[H, Any]

    def __init__(self, url: Any, *, readonly: bool = False) -> None:
        self.url = url
        self._readonly = readonly
        super().__init__(Batches(self._write, self._next_fence, is_trouble=self._is_trouble), title=f"the store {url}")

    @property
    def is_shared(self) -> bool:
        return True

    def reader(self) -> Self:
        """Return a read-only store of the same data."""
        return type(self)(self.url, readonly=True)

    async def claim_and_load(
        self, key: ThreadKey, *, records: Sequence[RecordRange] = ()
    ) -> tuple[int, StoredThread | None]:
        found: StoredThread | None = None
        is_read = False

        async def claim(key: ThreadKey) -> int:
            nonlocal found, is_read
            fence, found = await self._claim(key, records)
            is_read = not self._batches.has_writes(key)
            return fence

        fence = await self._batches.claim(key, claim)
        try:
            return fence, found if is_read else await self.load(key, records=records)
        except BaseException:
            self.release(key, fence)
            raise

    def release(self, key: ThreadKey, fence: int) -> None:
        super().release(key, fence)
        self._upkeep.release(key, fence)

    # For subclasses

    def _is_trouble(self, cause: BaseException) -> bool:
        """Whether the cause of a failed write concerns the whole engine, such as a full disk."""
        raise NotImplementedError

    async def _claim_head(self, key: ThreadKey, ranges: Sequence[RecordRange] | None) -> tuple[H, StoredThread | None]:
        """Become the owner of a thread, and load it with the records of ranges, if these are given."""
        raise NotImplementedError

    async def _commit(self, batch: Sequence[WriteGroup]) -> Sequence[Outcome]:
        """Write a batch, and return the outcome of each group."""
        raise NotImplementedError

    def _on_loss(self) -> None:
        """End all claims, as the server may have lost durable writes."""
        self._heads.clear()
        self._lose_claims()

    # Inside

    async def _next_fence(self, key: ThreadKey) -> int:
        fence, _ = await self._claim(key, None)
        return fence

    async def _claim(self, key: ThreadKey, ranges: Sequence[RecordRange] | None) -> tuple[int, StoredThread | None]:
        if self._readonly:
            raise StoreError("the store is read-only")
        head, found = await self._claim_head(key, ranges)
        if key not in self._heads or self._heads[key].fence < head.fence:
            self._heads[key] = head
        return head.fence, found

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        return asyncio.get_running_loop().create_task(self._commit_and_wake(batch), context=Context())

    async def _commit_and_wake(self, batch: Sequence[WriteGroup]) -> Sequence[Outcome]:
        outcomes = await self._commit(batch)
        self._upkeep.wake()
        return outcomes
