"""The connections of a store: one that writes, and a few that read and claim. Lost ones are replaced."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.store.reconnecting import Reconnector, Turns
from plait.store.sql.db import Connector, Db, Queries

__all__ = ["Readers", "Writer", "extend_limit"]

# Seconds after which a statement without an answer counts as lost with its connection.
_ANSWER_TIMEOUT: Final = 10.0
# The connections that read, and how many of them views may hold.
_READERS: Final = 4
_VIEWS: Final = 2

T = TypeVar("T")


class Writer:
    """The connection that writes. A task replaces it when it is lost."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._turn = asyncio.Lock()
        self._dbs = Reconnector(self._connect, _close, lambda db: db.is_closed(), server="the database")

    async def open(self, db: Db) -> None:
        """Begin with a connection, which this closes in the end."""
        self._dbs.open(self._watch(db))

    async def close(self) -> None:
        """Close the connection."""
        await self._dbs.close()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Db]:
        """Lend the connection to one caller at a time. Raises StoreError if there is none.

        A transaction that fails is rolled back.
        """
        async with self._turn:
            db = await self.wait()
            with _limit(db):
                try:
                    yield db
                except BaseException as error:
                    if self._connector.is_lost(error):  # Its state may not be known either.
                        db.terminate()
                    elif not db.is_closed() and db.is_in_transaction():
                        await db.execute("ROLLBACK")
                    raise

    async def wait(self) -> Db:
        """Return the connection, after waiting until there is one. Raises StoreError if it is lost for too long."""
        return await self._dbs.wait()

    # Inside

    async def _connect(self) -> Db:
        return self._watch(await self._connector.connect())

    def _watch(self, db: Db) -> Db:
        db.add_termination_listener(self._dbs.replace)
        return db


class Readers:
    """A few connections that read and claim.

    Work that loses its connection is done again, once, after the writer has one, unless there is no writer.
    """

    def __init__(self, connector: Connector, writer: Writer | None = None) -> None:
        self._connector = connector
        self._writer = writer
        self._turns = Turns(_READERS)
        self._free_for_views = asyncio.Semaphore(_VIEWS)
        self._idle: list[Db] = []
        self._is_open = False

    def open(self, *connections: Db) -> None:
        """Accept work from now on; begin with some connections."""
        self._is_open = True
        self._idle += connections

    async def close(self) -> None:
        """Close the connections. Those that are in use are closed when they are given back."""
        self._is_open = False
        while self._idle:
            await _close(self._idle.pop())

    async def run(self, work: Callable[[Db], Awaitable[T]]) -> T:
        """Do work that may be done twice. Raises StoreError, and what the driver raises."""
        try:
            return await self._try(work)
        except Exception as error:
            if not isinstance(error, Unreachable) and not self._connector.is_lost(error):
                raise
        # The others have lost theirs, too.
        while self._idle:
            self._idle.pop().terminate()
        if self._writer is not None:
            await self._writer.wait()
        return await self._try(work)

    @asynccontextmanager
    async def view(self) -> AsyncIterator[Queries]:
        """Lend a connection for longer. It sees one moment of the database."""
        async with self._free_for_views, self._use() as db:
            with self._answering(db):
                await db.execute(self._connector.begin_view)
            try:
                yield _View(db)
            finally:
                if not db.is_closed():
                    with suppress(Exception), _limit(db):
                        await db.execute("ROLLBACK")

    # Inside

    async def _try(self, work: Callable[[Db], Awaitable[T]]) -> T:
        async with self._use() as db:
            with self._answering(db):
                return await work(db)

    @contextmanager
    def _answering(self, db: Db) -> Iterator[None]:
        """Limit the time of work. Raises Unreachable if its connection is lost."""
        try:
            with _limit(db):
                yield
        except self._connector.errors as error:
            if db.is_closed():
                raise Unreachable(self._connector.explain(error)) from error
            raise

    @asynccontextmanager
    async def _use(self) -> AsyncIterator[Db]:
        async with self._turns.take():
            if not self._is_open:
                raise StoreError("the store is closed")
            while self._idle and self._idle[-1].is_closed():
                self._idle.pop()
            db = self._idle.pop() if self._idle else await self._connector.connect()
            is_usable = False
            try:
                yield db
                is_usable = True
            except Exception as error:
                is_usable = not (self._connector.is_lost(error) or db.is_closed() or db.is_in_transaction())
                raise
            finally:
                if is_usable and self._is_open and not db.is_closed():
                    self._idle.append(db)
                else:
                    db.terminate()


class _View:
    """Reads on a connection, and closes it if it does not answer."""

    def __init__(self, db: Db) -> None:
        self._db = db

    async def fetch(self, query: str, /, *args: Any) -> Sequence[Any]:
        with _limit(self._db):
            return await self._db.fetch(query, *args)


class _Limit:
    """Closes a connection after some seconds, which fails its statement: cancelling ends a wait for a standby."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._timer = self._begin()

    def extend(self) -> None:
        """Begin again, as a statement has its answer."""
        self.end()
        self._timer = self._begin()

    def end(self) -> None:
        self._timer.cancel()

    def _begin(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(_ANSWER_TIMEOUT, self._db.terminate)


_limits: WeakKeyDictionary[Any, _Limit] = WeakKeyDictionary()


def extend_limit(db: Queries) -> None:
    """Give the next statement of some work on a connection as much time as the first one has."""
    if (limit := _limits.get(db)) is not None:
        limit.extend()


@contextmanager
def _limit(db: Db) -> Iterator[None]:
    """Limit the time of the next statement on a connection."""
    limit = _limits[db] = _Limit(db)
    try:
        yield
    finally:
        limit.end()
        _limits.pop(db, None)


async def _close(db: Db) -> None:
    try:
        await db.close(timeout=2.0)
    except Exception:  # It is lost.
        db.terminate()
