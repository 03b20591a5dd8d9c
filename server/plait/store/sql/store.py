"""A store in an SQL database: one connection that writes, with group commit, and a few that read.

`batches.py` decides which writes share a transaction. If it fails, it is repeated for one thread at a time, so that
only the writes of the thread that caused the failure are refused. If its answer is lost, the store asks whether it
is stored.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from plait.store.outcomes import Unreachable
from plait.store.protocol import (
    StoredThread,
    ThreadKey,
)
from plait.store.remote import RemoteStore
from plait.store.sql.commits import Commits
from plait.store.sql.dialect import Dialect
from plait.store.sql.pool import Readers, Writer
from plait.store.sql.reads import Reads
from plait.store.sql.rows import ClaimedHead, Known
from plait.store.sql.tables import SCHEMAS
from plait.store.sql.upkeep import SqlUpkeep
from plait.store.thread_rows import RecordRange

__all__ = ["SqlStore"]

# How often a claim is tried again because the server is another one.
_CLAIMS: Final = 5


class SqlStore(Commits, Reads, RemoteStore[ClaimedHead]):
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

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        with self._telling("a schema", "could not be written"):
            row = kind.encode(), hash.encode(), schema
            await self._readers.run(lambda db: self._dialect.upsert(db, SCHEMAS, [row]))

    async def _probe(self, *, writes: bool) -> None:
        sql = self._dialect.tables.fill("UPDATE {format} SET format = format") if writes else "SELECT 1"
        with self._telling("the store", "cannot be written"):
            async with self._writer.use() as db:
                await db.execute(sql)

    # Inside

    def _is_trouble(self, cause: BaseException) -> bool:
        return self._dialect.is_trouble(cause)

    async def _claim_head(
        self, key: ThreadKey, ranges: Sequence[RecordRange] | None
    ) -> tuple[ClaimedHead, StoredThread | None]:
        with self._telling(key, "cannot be claimed"):
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
