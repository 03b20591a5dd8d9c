"""A store that consists of several stores. Each keeps the threads of some shards."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from heapq import merge
from itertools import islice
from types import TracebackType
from typing import Self

from plait.errors import StoreError
from plait.store.page import PLACES
from plait.store.protocol import (
    ALL_THREADS,
    DueThread,
    StoredThread,
    ThreadHeader,
    ThreadQuery,
    ThreadRow,
    ThreadView,
    Write,
)
from plait.store.shards import find_file
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange, ThreadKey
from plait.store.whole import StoredSchema, WholeStore

__all__ = ["ShardedStore"]


class ShardedStore:
    """The stores of some or all of `count` files, by number. Each has every schema.

    What concerns one thread goes to the store of its file, and raises StoreError if that is not among `stores`.
    Listings are merged from all of `stores`.
    """

    def __init__(self, stores: Mapping[int, WholeStore], count: int) -> None:
        # The first one is opened last: new files are made in this order.
        self._stores = {number: stores[number] for number in sorted(stores, reverse=True)}
        self._count = count
        self._is_open = False
        # Whether the store is open, being opened or being closed.
        self._is_entered = False

    @property
    def is_shared(self) -> bool:
        return all(store.is_shared for store in self._stores.values())

    @property
    def durability(self) -> str:
        return next(iter(self._stores.values())).durability

    def reader(self) -> "ShardedStore":
        """Return a read-only store of the same files, which a server may have open."""
        return ShardedStore({number: store.reader() for number, store in self._stores.items()}, self._count)

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise StoreError("the store is already open: open it once, or give each app its own store")
        self._is_entered = True
        try:
            async with AsyncExitStack() as stack:
                for store in self._stores.values():
                    await stack.enter_async_context(store)
                stack.pop_all()
                self._is_open = True
        except BaseException:
            self._is_entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        try:
            await asyncio.gather(*(store.__aexit__(kind, error, trace) for store in self._stores.values()))
        finally:
            self._is_entered = False

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        return await self._find(key).load(key, version=version, records=records)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        return await self._find(key).find(key)

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._find(key).changes(key, after=after, limit=limit, size=size)

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._find(key).changes_before(key, version, limit=limit, size=size)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        return await self._find(key).client(key, client)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        return await self._find(key).record(key, part, name)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        return await self._find(key).records(key, wanted)

    async def records_of_each(
        self, keys: Sequence[ThreadKey], *places: tuple[str, str]
    ) -> list[Sequence[bytes | None]]:
        found: dict[ThreadKey, Sequence[bytes | None]] = {}
        for number, store in self._stores.items():
            own = [key for key in keys if find_file(key, self._count) == number]
            found |= zip(own, await store.records_of_each(own, *places) if own else [], strict=True)
        return [found.get(key, [None] * len(places)) for key in keys]

    def view(self, key: ThreadKey) -> AbstractAsyncContextManager[ThreadView | None]:
        return self._find(key).view(key)

    def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        return self._find(key).export(key, view=view)

    async def claim(self, key: ThreadKey) -> int:
        return await self._find(key).claim(key)

    async def claim_and_load(
        self, key: ThreadKey, *, records: Sequence[RecordRange] = ()
    ) -> tuple[int, StoredThread | None]:
        return await self._find(key).claim_and_load(key, records=records)

    def watch_claims(self, on_lost: Callable[[], None], may_write: Callable[[], bool] | None = None) -> None:
        for store in self._stores.values():
            store.watch_claims(on_lost, may_write)

    def release(self, key: ThreadKey, fence: int) -> None:
        self._find(key).release(key, fence)

    def submit(self, write: Write) -> asyncio.Future[int]:
        if self._is_open:
            return self._find(write.key).submit(write)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(StoreError("the store is closed"))
        return future

    async def check_writes(self) -> None:
        for store in self._stores.values():
            await store.check_writes()

    async def schema(self, kind: str, hash: str) -> bytes | None:
        for store in self._stores.values():
            if (found := await store.schema(kind, hash)) is not None:
                return found
        return None

    async def schemas(self) -> list[StoredSchema]:
        found = {schema[:2]: schema for store in self._stores.values() for schema in await store.schemas()}
        return sorted(found.values())

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        for store in self._stores.values():
            await store.add_schema(kind, hash, schema)

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        pages = [await store.threads(query) for store in self._stores.values()]
        return list(islice(merge(*pages, key=PLACES[query.order], reverse=query.order != "name"), query.limit))

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        pages: Iterable[list[DueThread]] = [
            await store.due_threads(until=until, after=after, limit=limit) for store in self._stores.values()
        ]
        return list(islice(merge(*pages), limit))

    def _find(self, key: ThreadKey) -> WholeStore:
        """Return the store of a thread's file."""
        number = find_file(key, self._count)
        if (store := self._stores.get(number)) is None:
            raise StoreError(f"{key} is in file {number} of the store, which is not open here")
        return store
