"""A store in NATS JetStream: a stream with a subject for each row, and a head for each thread.

`batches.py` decides which writes of a thread become one. Each thread has one write under way, which is compared with
its head; so writes of different threads never wait for each other.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context

from plait.errors import CorruptThread, StoreError
from plait.store.batches import WriteGroup
from plait.store.format import check_format
from plait.store.nats.api import ApiError, Lost, Publication, Requests
from plait.store.nats.cache import ContentsCache
from plait.store.nats.commits import Commits
from plait.store.nats.contents import Contents, read_head
from plait.store.nats.index import Index
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import CONFIG, FORMAT, Known, Subjects, split_chunks
from plait.store.nats.line import Line
from plait.store.nats.planning import MOST_IN_HEAD
from plait.store.nats.publishing import Publisher
from plait.store.nats.reads import Reads, keep, load_contents, telling
from plait.store.nats.server_connection import ServerConnection
from plait.store.nats.upkeep import NatsUpkeep
from plait.store.nats.url import NatsUrl
from plait.store.nats.views import View, Views
from plait.store.nats.watch import Watch
from plait.store.outcomes import Outcome, Unreachable
from plait.store.protocol import (
    ALL_THREADS,
    DueThread,
    StoredThread,
    ThreadQuery,
    ThreadRow,
    ThreadView,
    Write,
)
from plait.store.thread_rows import Record, RecordRange, ThreadKey

__all__ = ["NatsStore"]

log = logging.getLogger("plait.store")


class NatsStore(Reads, Commits):
    """Stores threads in the stream of a URL. `readonly=True` only reads.

    Small rows are kept in the heads of their threads, up to `most_in_head` bytes.
    """

    def __init__(self, url: NatsUrl, *, readonly: bool = False, most_in_head: int = MOST_IN_HEAD) -> None:
        self.url = url
        self._most_in_head = most_in_head
        self._readonly = readonly
        self._subjects = Subjects(url.stream)
        super().__init__(title=f"the store {url}", most=sys.maxsize)
        self._begin()

    def _begin(self) -> None:
        """Create the objects that live from open to close."""
        self._connection = ServerConnection(self.url, self._identify)
        self._stream = stream = JetStream(self.url, self._connection, on_suspicion=self._suspect)
        subjects = self._subjects
        # The heads of the threads that this store has claimed.
        self._heads: dict[ThreadKey, Known] = {}
        self._watch = Watch(self.url, stream, self._on_loss, readonly=self._readonly)
        self._cache = ContentsCache()
        self._views = Views()
        self._upkeep = NatsUpkeep(stream, subjects, self._heads, is_writing=self._has_writes, is_viewed=self._views.has)
        self._publisher = Publisher(stream, subjects, self._watch)
        self._index = Index(stream, subjects)

    @property
    def is_shared(self) -> bool:
        return True

    async def engine(self, requests: Requests) -> None:
        """Check the settings of the stream again, for the cells of the store."""
        await self._stream.confirm(requests)

    @property
    def durability(self) -> str:
        copies, synced = self.url.replicas, self.url.is_synced
        if copies == 1 and synced:
            return "changes survive crashes of the processes and of NATS's machine, but not the loss of its disk"
        if copies == 1:
            return (
                "changes survive a crash of the processes; a crash of NATS's machine loses those of the last minutes "
                "(replicas=1, sync=interval)"
            )
        if not synced:
            return (
                "changes survive crashes of the processes and of a minority of NATS's machines; of more at once, those "
                "of the last minutes are lost (sync=interval)"
            )
        return (
            f"changes survive crashes of all processes and machines, and the loss of {copies // 2} of {copies} disks, "
            "if the NATS servers have sync_interval: always, which plait cannot check"
        )

    def reader(self) -> "NatsStore":
        """Return a read-only store of the same stream."""
        return NatsStore(self.url, readonly=True)

    async def _open(self) -> None:
        self._begin()
        await self._connection.open()
        if not self._readonly:
            self._upkeep.start()
            self._accept_writes()
            if not (self.url.replicas > 1 and self.url.is_synced):
                log.warning("the store %s is less durable than plait's default: %s", self.url, self.durability)

    async def records_of_each(
        self, keys: Sequence[ThreadKey], *places: tuple[str, str]
    ) -> list[Sequence[bytes | None]]:
        reads = [self.record(key, *place) for key in keys for place in places]
        found = await asyncio.gather(*reads, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, CorruptThread):
                raise each
        values, count = [None if isinstance(each, BaseException) else each for each in found], len(places)
        return [values[at * count : (at + 1) * count] for at in range(len(keys))]

    async def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        if (contents := await self._read(key, keep)) is not None:
            self._cache.add(contents)  # Otherwise each page would list all names again.
            async for write in super().export(key, view=view):
                yield write
            if key not in self._heads:
                self._cache.drop(key)

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        async def make(contents: Contents) -> tuple[View, StoredThread | None]:
            return View(self._stream, contents), await load_contents(self._stream, contents, None)

        found = await self._read(key, make)
        if found is None or (stored := found[1]) is None:
            yield None
            return
        view = found[0]

        async def read(after: tuple[str, str], limit: int, size: int) -> list[Record]:
            with telling(key):
                return await view.read(after, limit, size)

        with self._views.hold(view):
            yield ThreadView(stored, read)

    def release(self, key: ThreadKey, fence: int) -> None:
        super().release(key, fence)
        self._upkeep.release(key, fence)
        self._cache.drop(key)

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        with telling("a schema", "could not be written"):
            messages = split_chunks(self._subjects.schema(kind, hash), schema, self._stream.max_payload)
            await self._stream.publish_all([Publication(*each) for each in messages])

    async def _probe(self, *, writes: bool) -> None:
        with telling("the store", "cannot be written"):
            await (self._stream.publish(self._stream.make_barrier()) if writes else self._stream.info())

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        with telling("the list of threads"):
            query.prefix.encode()  # Raises UnicodeEncodeError.
        await self._refresh("threads")
        return await self._index.threads(query)

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        await self._refresh("due threads")
        return await self._index.due(until, after, limit)

    # Inside

    async def _load_claimed(self, key: ThreadKey, records: Sequence[RecordRange]) -> StoredThread | None:
        return await self._load(key, None, records, self._heads.get(key))

    async def _refresh(self, what: str) -> None:
        with telling(f"the list of {what}"):
            await self._index.refresh()
        for known in self._index.take_unclean():
            if not self._readonly and known.head.key not in self._heads:
                self._upkeep.remove(known)

    async def _next_fence(self, key: ThreadKey) -> int:
        if self._readonly:
            raise StoreError("the store is read-only")
        with telling(key, "cannot be claimed"):
            known = self._heads.get(key) or await read_head(self._stream, self._subjects, key)
            self._heads[key] = known = await self._publisher.claim(key, known)
        return known.head.fence

    async def _identify(self, line: Line) -> None:
        """Make the stream if it is missing, and find out on a new connection what it is. Raises StoreError."""
        if not self._watch.origin:
            if not self._readonly:
                await self._stream.prepare(CONFIG, requests=line)
            check_format(await self._stream.read_format(line) or FORMAT, FORMAT)
        self._stream.max_payload = line.max_payload
        await self._watch.check(line)

    def _suspect(self) -> None:
        if self._is_entered:
            self._watch.suspect(self._connection)

    def _on_loss(self) -> None:
        self._index.reset()
        self._cache.clear()
        self._heads.clear()
        self._lose_claims()

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        return asyncio.get_running_loop().create_task(self._commit_each(batch), context=Context())

    async def _commit_each(self, batch: Sequence[WriteGroup]) -> Sequence[Outcome]:
        return [await self._commit(group) for group in batch]

    async def _close(self) -> None:
        await self._upkeep.stop()
        await self._watch.stop()
        await self._connection.close()

    def _is_trouble(self, cause: BaseException) -> bool:
        return isinstance(cause, ApiError | Unreachable | Lost)
