"""A store in PostgreSQL: one connection that writes, with group commit, and a few that read.

`batches.py` decides which writes share a transaction. If it fails, it is repeated for one thread at a time, so that
only the writes of the thread that caused the failure are refused. If its answer is lost, the store asks whether it
is stored.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import asyncpg

from plait.errors import StoreError
from plait.store.base import EngineStore
from plait.store.batches import Batches, WriteGroup
from plait.store.outcomes import Outcome, Unreachable
from plait.store.postgres import listing, reads
from plait.store.postgres.commits import BatchCommitter
from plait.store.postgres.engine import DRIVER_ERRORS, Db, Engine, explain, is_lost
from plait.store.postgres.exporting import export
from plait.store.postgres.heads import CLAIM, ClaimedHead, claim_values
from plait.store.postgres.pool import Readers, Writer
from plait.store.postgres.schema import Tables, prepare
from plait.store.postgres.upkeep import Upkeep
from plait.store.postgres.url import PostgresUrl
from plait.store.protocol import (
    ALL_THREADS,
    DueThread,
    StoredThread,
    ThreadHeader,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    ThreadView,
    Write,
)
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange
from plait.store.whole import StoredSchema

__all__ = ["PostgresStore"]

log = logging.getLogger("plait.store")

P = ParamSpec("P")
T = TypeVar("T")

_ERRORS = (*DRIVER_ERRORS, OverflowError, TypeError, ValueError)


class PostgresStore(EngineStore):
    """Stores threads in the database of a URL. `readonly=True` only reads."""

    def __init__(self, url: PostgresUrl, *, readonly: bool = False) -> None:
        self.url = url
        self._readonly = readonly
        self._tables = Tables(url)
        self._engine = Engine(url, self._on_loss)
        batches = Batches(self._write, self._next_fence, is_trouble=_is_trouble)
        super().__init__(batches, title=f"the store {url}")
        self._begin()

    def _begin(self) -> None:
        """Create the objects that live from open to close."""
        self._writer = Writer(self._engine)
        self._readers = Readers(self._engine, None if self._readonly else self._writer.wait)
        self._committer = BatchCommitter(self._engine, self._writer, self._tables)
        self._upkeep = Upkeep(self._committer, self._readers, self._tables, self._batches.has_writes)

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def durability(self) -> str:
        if not self._engine.syncs:
            return "changes survive a crash of the process, but not of PostgreSQL's machine (its fsync is off)"
        if not self.url.is_synchronous:
            return (
                "changes survive a crash of the process; a crash of PostgreSQL loses those of about the last second "
                "(synchronous_commit=off)"
            )
        if not self.url.has_standby:
            return "changes survive crashes of the processes and machines, but a failover may lose the last ones"
        return "changes survive crashes of the processes and machines, and a failover (standby=synchronous)"

    def reader(self) -> "PostgresStore":
        """Return a read-only store of the same database."""
        return PostgresStore(self.url, readonly=True)

    async def _open(self) -> None:
        self._begin()
        db = await self._engine.connect()
        try:
            await self._engine.check_session(db)
            await prepare(db, self._tables, readonly=self._readonly)
        except BaseException:
            db.terminate()
            raise
        self._readers.open(*((db,) if self._readonly else ()))
        if not self._readonly:
            await self._writer.open(db)
            self._upkeep.start()
            self._batches.open()

    def _explain(self, error: BaseException) -> str | None:
        return explain(error) if isinstance(error, _ERRORS) else super()._explain(error)

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        return await self._read(key, reads.load, key, version, records)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        return await self._read(key, reads.find, key)

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._read(key, reads.load_changes, key, after=after, limit=limit, size=size)

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._read(key, reads.load_changes_before, key, version=version, limit=limit, size=size)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        return await self._read(key, reads.load_client, key, client)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        return await self._read(key, reads.load_record, key, part, name)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        return await self._read(key, reads.load_records, key, wanted)

    async def record_of_each(self, keys: Sequence[ThreadKey], part: str, name: str) -> list[bytes | None]:
        return await self._read("records", reads.load_record_of_each, keys, part, name)

    async def export(self, key: ThreadKey) -> AsyncIterator[Write]:
        with _telling(f"{key} cannot be read"):
            async with self._readers.view() as db:
                async for write in export(db, self._tables, key):
                    yield write

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        async with self._readers.view() as db:
            with _telling(f"{key} cannot be read"):
                stored = await reads.load(db, self._tables, key, None)

            async def read(after: tuple[str, str], limit: int, size: int) -> list[Record]:
                with _telling(f"{key} cannot be read"):
                    return await reads.load_page(db, self._tables, key, after=after, limit=limit, size=size)

            yield None if stored is None else ThreadView(stored, read)

    async def claim_and_load(
        self, key: ThreadKey, *, records: Sequence[RecordRange] = ()
    ) -> tuple[int, StoredThread | None]:
        found: StoredThread | None = None
        is_read = False

        async def claim(key: ThreadKey) -> int:
            nonlocal found, is_read
            head, found = await self._claim(key, partial(_claim_and_load, ranges=records))
            is_read = not self._batches.has_writes(key)
            return head.fence

        fence = await self._batches.claim(key, claim)
        if not is_read:
            found = await self.load(key, records=records)
        return fence, found

    def release(self, key: ThreadKey, fence: int) -> None:
        super().release(key, fence)
        self._upkeep.release(key, fence)

    async def schema(self, kind: str, hash: str) -> bytes | None:
        return await self._read("a schema", reads.load_schema, kind, hash)

    async def schemas(self) -> list[StoredSchema]:
        return await self._read("the schemas", reads.load_schemas)

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        sql = "INSERT INTO {schemas} (kind, hash, schema) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
        with _telling("a schema could not be written"):
            values = kind.encode(), hash.encode(), schema
            await self._readers.run(lambda db: db.execute(self._tables.fill(sql), *values))

    async def _probe(self, *, writes: bool) -> None:
        sql = self._tables.fill("UPDATE {format} SET format = format") if writes else "SELECT 1"
        with _telling("the store cannot be written"):
            async with self._writer.use() as db:
                await db.execute(sql)

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        with _telling("the list of threads cannot be read"):
            await self._upkeep.save()
        return await self._read("the list of threads", listing.load_threads, query)

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        return await self._read("the list of due threads", listing.load_due, until=until, after=after, limit=limit)

    # Inside

    async def _read(
        self,
        what: object,
        function: Callable[Concatenate[Db, Tables, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        with _telling(f"{what} cannot be read"):
            return await self._readers.run(lambda db: function(db, self._tables, *args, **kwargs))

    async def _next_fence(self, key: ThreadKey) -> int:
        head, _ = await self._claim(key, _claim)
        return head.fence

    async def _claim(self, key: ThreadKey, work: "_Claim") -> tuple[ClaimedHead, StoredThread | None]:
        if self._readonly:
            raise StoreError("the store is read-only")
        with _telling(f"{key} cannot be claimed"):
            while True:
                head, timeline, found = await self._readers.run(
                    lambda db: work(db, self._tables, key, claim_values(self._engine, key))
                )
                if timeline == self._engine.timeline:
                    break
                # A pooler may have switched the connection to another server.
                await self._readers.run(self._engine.identify)
        self._committer.heads[key] = head
        return head, found

    def _on_loss(self) -> None:
        self._committer.heads.clear()
        self._lose_claims()

    def submit(self, write: Write) -> asyncio.Future[int]:
        return self._batches.submit(write)

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        return asyncio.get_running_loop().create_task(self._commit(batch), context=Context())

    async def _commit(self, batch: Sequence[WriteGroup]) -> Sequence[Outcome]:
        outcomes = await self._committer.commit(batch)
        self._upkeep.wake()
        return outcomes

    async def _close(self) -> None:
        await self._upkeep.stop()
        await self._writer.close()
        await self._readers.close()


_Claim = Callable[[Db, Tables, ThreadKey, tuple[Any, ...]], Awaitable[tuple[ClaimedHead, int, StoredThread | None]]]


async def _claim(db: Db, tables: Tables, key: ThreadKey, values: tuple[Any, ...]) -> tuple[ClaimedHead, int, None]:
    row = await db.fetchrow(tables.fill(CLAIM), *values)
    assert row is not None
    return ClaimedHead.read(row), row["timeline"], None


async def _claim_and_load(
    db: Db, tables: Tables, key: ThreadKey, values: tuple[Any, ...], *, ranges: Sequence[RecordRange]
) -> tuple[ClaimedHead, int, StoredThread | None]:
    return await reads.claim_and_load(db, tables, key, values, ranges)


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Make other errors StoreErrors that say what has failed."""
    try:
        yield
    except Unreachable as error:
        raise Unreachable(f"{what}: {error}") from error
    except _ERRORS as error:
        raise StoreError(f"{what}: {explain(error)}") from error


def _is_trouble(cause: BaseException) -> bool:
    """Whether the cause of a failed write concerns the whole database, such as a full disk."""
    if isinstance(cause, asyncpg.PostgresError):
        return (cause.sqlstate or "")[:2] in ("08", "25", "53", "57", "58")
    return isinstance(cause, StoreError) or is_lost(cause)
