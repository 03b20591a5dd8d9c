"""A store in an SQL database: one connection that writes, with group commit, and a few that read.

`batches.py` decides which writes share a transaction. If it fails, it is repeated for one thread at a time, so that
only the writes of the thread that caused the failure are refused. If its answer is lost, the store asks whether it
is stored.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.store.protocol import (
    ALL_THREADS,
    DueThread,
    StoredThread,
    ThreadHeader,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    ThreadView,
)
from plait.store.remote import RemoteStore
from plait.store.sql import listing, reads
from plait.store.sql.commits import BatchCommitter
from plait.store.sql.db import Db
from plait.store.sql.dialect import Dialect
from plait.store.sql.pool import Readers, Writer
from plait.store.sql.rows import ClaimedHead, Known
from plait.store.sql.tables import SCHEMAS, Tables
from plait.store.sql.upkeep import SqlUpkeep
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange
from plait.store.whole import StoredSchema

__all__ = ["SqlStore"]

# How often a claim is tried again because the server is another one.
_CLAIMS: Final = 5

P = ParamSpec("P")
T = TypeVar("T")


class SqlStore(RemoteStore[ClaimedHead]):
    """Stores threads in the database of a URL. `readonly=True` only reads. A subclass has the dialect of an engine."""

    _make_dialect: ClassVar[Callable[..., Dialect]]

    def __init__(self, url: Any, *, readonly: bool = False) -> None:
        super().__init__(url, readonly=readonly)
        self.engine = self._dialect = dialect = self._make_dialect(url, self._on_loss)
        self._errors: tuple[type[Exception], ...] = (*dialect.errors, OverflowError, TypeError, ValueError)
        self._known = Known()
        self._heads = self._known.heads
        self._begin()

    def _begin(self) -> None:
        """Create the objects that live from open to close."""
        self._writer = Writer(self._dialect)
        self._readers = Readers(self._dialect, None if self._readonly else self._writer.wait)
        self._commit = BatchCommitter(self._dialect, self._writer, self._known).commit
        self._upkeep = SqlUpkeep(self._dialect, self._known, self._writer, self._readers, self._batches.has_writes)

    @property
    def durability(self) -> str:
        return self._dialect.durability

    async def _open(self) -> None:
        self._begin()
        db = await self._dialect.connect()
        try:
            await self._dialect.prepare(db, readonly=self._readonly)
        except BaseException:
            db.terminate()
            raise
        self._readers.open(*((db,) if self._readonly else ()))
        if not self._readonly:
            await self._writer.open(db)
            self._upkeep.start()
            self._batches.open()

    def _explain(self, error: BaseException) -> str | None:
        return self._dialect.explain(error) if isinstance(error, self._errors) else super()._explain(error)

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        return await self._read(key, reads.load, key, version, records)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        return await self._read(key, reads.find, key)

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._read(key, reads.load_changes, key, after, limit=limit, size=size)

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._read(key, reads.load_changes, key, version, limit=limit, size=size, before=True)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        return await self._read(key, reads.load_client, key, client)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        return await self._read(key, reads.load_record, key, part, name)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        return await self._read(key, reads.load_records, key, wanted)

    async def record_of_each(self, keys: Sequence[ThreadKey], part: str, name: str) -> list[bytes | None]:
        with self._telling("records cannot be read"):
            rows = await self._readers.run(lambda db: self._dialect.load_each(db, keys, part, name))
        return [value for (value,) in rows]

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        async with self._readers.view() as db:
            with self._telling(f"{key} cannot be read"):
                stored = await reads.load(db, self._dialect.tables, key, None)

            async def read(after: tuple[str, str], limit: int, size: int) -> list[Record]:
                with self._telling(f"{key} cannot be read"):
                    return await reads.load_page(db, self._dialect.tables, key, after=after, limit=limit, size=size)

            yield None if stored is None else ThreadView(stored, read)

    async def schema(self, kind: str, hash: str) -> bytes | None:
        return await self._read("a schema", reads.load_schema, kind, hash)

    async def schemas(self) -> list[StoredSchema]:
        return await self._read("the schemas", reads.load_schemas)

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        with self._telling("a schema could not be written"):
            row = kind.encode(), hash.encode(), schema
            await self._readers.run(lambda db: self._dialect.upsert(db, SCHEMAS, [row]))

    async def _probe(self, *, writes: bool) -> None:
        sql = self._dialect.tables.fill("UPDATE {format} SET format = format") if writes else "SELECT 1"
        with self._telling("the store cannot be written"):
            async with self._writer.use() as db:
                await db.execute(sql)

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        with self._telling("the list of threads cannot be read"):
            await self._upkeep.save()
        return await self._read("the list of threads", listing.load_threads, query)

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        return await self._read("the list of due threads", listing.load_due, until=until, after=after, limit=limit)

    # Inside

    def _is_trouble(self, cause: BaseException) -> bool:
        return self._dialect.is_trouble(cause)

    async def _read(
        self,
        what: object,
        function: Callable[Concatenate[Db, Tables, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        with self._telling(f"{what} cannot be read"):
            return await self._readers.run(lambda db: function(db, self._dialect.tables, *args, **kwargs))

    async def _list_snapshots(self, key: ThreadKey) -> list[int]:
        return await self._read(key, reads.list_snapshots, key)

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        return await self._read(key, reads.load_clients, key, after, limit)

    async def _list_records(self, key: ThreadKey, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        return await self._read(key, reads.load_page, key, after=after, limit=limit, size=size)

    async def _claim_head(
        self, key: ThreadKey, ranges: Sequence[RecordRange] | None
    ) -> tuple[ClaimedHead, StoredThread | None]:
        with self._telling(f"{key} cannot be claimed"):
            for _ in range(_CLAIMS):
                head, found = await self._readers.run(lambda db: self._dialect.claim(db, key, ranges))
                if head is not None:
                    return head, found
                # The connection leads to another server, or its server was promoted.
                await self._readers.run(self._dialect.identify)
            raise Unreachable("each connection leads to another server, or the timeline of the database is lost")

    async def _close(self) -> None:
        await self._upkeep.stop()
        await self._writer.close()
        await self._readers.close()

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Make other errors StoreErrors that say what has failed."""
        try:
            yield
        except Unreachable as error:
            raise Unreachable(f"{what}: {error}") from error
        except self._errors as error:
            raise StoreError(f"{what}: {self._dialect.explain(error)}") from error
