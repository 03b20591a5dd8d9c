"""Rows in one table of an SQL database: one connection writes, and a few read."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Final, TypeVar

from plait.errors import StoreError
from plait.store.outcomes import Unreachable, describe, retell
from plait.store.rows.engine import Owner, Reader, ReadPlan, Row, Span
from plait.store.rows.running import await_reads
from plait.store.rows.server import Failure, Guarded, ServerEngine
from plait.store.sql.db import Db, Queries
from plait.store.sql.dialect import Dialect
from plait.store.sql.pool import Readers, Writer, extend_limit
from plait.store.thread_rows import ThreadKey

__all__ = ["SqlRows"]

T = TypeVar("T")

# How often a claim is tried again because the server is another one.
_CLAIMS: Final = 5


class SqlRows(ServerEngine[Db]):
    """The rows of a database, in the SQL of a dialect."""

    def __init__(self, dialect: Dialect, *, readonly: bool) -> None:
        self.dialect = self.connector = dialect
        self.errors = (*dialect.errors, OverflowError, TypeError, ValueError)
        self._readonly = readonly
        self._begin()

    def _begin(self) -> None:
        """Create the connections that live from open to close."""
        self._writer = Writer(self.dialect)
        self._readers = Readers(self.dialect, None if self._readonly else self._writer)

    @property
    def title(self) -> str:
        return f"the store {self.dialect.url}"

    @property
    def durability(self) -> str:
        return self.dialect.durability

    @property
    def origin(self) -> str:
        return self.dialect.origin

    async def open(self) -> bool:
        self._begin()
        db = await self.dialect.connect()
        try:
            await self.dialect.prepare(db, readonly=self._readonly)
        except BaseException:
            db.terminate()
            raise
        self._readers.open(*((db,) if self._readonly else ()))
        if not self._readonly:
            await self._writer.open(db)
        return False

    async def close(self) -> None:
        await self._writer.close()
        await self._readers.close()

    async def probe(self, *, writes: bool) -> None:
        try:
            with self._telling():
                async with self._writer.use() as db:
                    await self.dialect.probe(db, writes=writes)
        except StoreError as error:
            raise retell(error, f"the store cannot be written: {error}") from error

    def explain(self, error: BaseException) -> str | None:
        return self.dialect.explain(error) if isinstance(error, self.errors) else None

    def is_trouble(self, cause: BaseException) -> bool:
        return self.dialect.is_trouble(cause)

    def may_have_lost(self, origin: str) -> bool:
        return self.dialect.may_have_lost(origin)

    async def claim(self, key: ThreadKey, owner: Owner) -> None:
        for _ in range(_CLAIMS):
            if await self._run(lambda db: self.dialect.claim(db, key, owner.ask())):
                return
            # The connection leads to another server, or its server was promoted.
            await self._run(self.dialect.identify)
        raise Unreachable("each connection leads to another server, or the timeline of the database is lost")

    # Reading

    async def read(self, plan: ReadPlan[T], /) -> T:
        return await self._run(lambda db: self._read(db, plan))

    async def read_owned(self, plan: ReadPlan[T], /) -> T:
        return await self._run(lambda db: await_reads(plan, self._fetcher(db)))

    @asynccontextmanager
    async def view(self) -> AsyncIterator[Reader]:
        async with self._readers.view() as db:

            async def read(plan: ReadPlan[T], /) -> T:
                with self._telling():
                    return await await_reads(plan, self._fetcher(db))

            yield read

    # Inside

    async def _read(self, db: Db, plan: ReadPlan[T]) -> T:
        """Read what one statement finds; if that is not all, read all of one moment."""
        steps = 0

        async def fetch_once(spans: Sequence[Span]) -> list[list[Row]]:
            nonlocal steps
            if (steps := steps + 1) > 1:
                raise _More
            return await self._fetcher(db)(spans)

        try:
            return await await_reads(plan, fetch_once)
        except _More:
            await db.execute(self.dialect.begin_view)
            found = await await_reads(plan, self._fetcher(db))
            await db.execute("COMMIT")
            return found

    def _fetcher(self, db: Queries) -> Callable[[Sequence[Span]], Awaitable[list[list[Row]]]]:
        async def fetch(spans: Sequence[Span]) -> list[list[Row]]:
            if not spans:
                return []
            select = self.dialect.select(spans)
            found = await db.fetch(select.sql, *select.values)
            extend_limit(db)
            return select.sort(found)

        return fetch

    async def _run(self, work: Callable[[Db], Awaitable[T]]) -> T:
        with self._telling():
            return await self._readers.run(work)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell an error of the driver, and of text without a form. Raises StoreError."""
        try:
            yield
        except self.dialect.errors as error:
            raise StoreError(self.dialect.explain(error)) from error
        except UnicodeEncodeError as error:
            raise StoreError(describe(error)) from error

    def _use(self) -> AbstractAsyncContextManager[Db]:
        return self._writer.use()

    async def _commit(self, line: Db, changes: Sequence[Guarded]) -> Sequence[bool | StoreError]:
        return await self.dialect.commit(line, changes)

    def _judge(self, error: Exception, line: Db) -> Failure:
        if not self.dialect.is_lost(error, is_closed=line.is_closed()):
            return "refused"
        return "lost" if self.dialect.was_sent(error) else "unsent"

    def _is_lost(self, error: Exception) -> bool:
        return self.dialect.is_lost(error)


class _More(Exception):
    """Not all can be read by one statement."""
