"""The cells of a cluster's directory in an SQL database, in a table beside those of the store."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from plait.errors import StoreError
from plait.store.cells import Cell, Reading
from plait.store.sql.db import Connector, Db

__all__ = ["SqlCells"]

T = TypeVar("T")


class SqlCells:
    """The cells over a connection that is replaced when it is lost. A subclass has the statements of an engine."""

    def __init__(self, dialect: Connector) -> None:
        self._dialect = dialect
        self._db: Db | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    async def confirm(self) -> None:
        await self._use(self._dialect.identify, None)

    async def read(self, former: Reading | None = None) -> Reading:
        cells = {} if former is None else dict(former.cells)
        rows = await self._use(lambda db: self._read(db, [each.revision for each in cells.values()]), None)
        if rows is None:
            return Reading(0, {})
        timeline, count = rows[0][:2]
        cells |= {cell: Cell(revision, value) for _, _, cell, revision, value in rows if cell is not None}
        if former is not None and (timeline != former.timeline or len(cells) > count):  # Some have been removed.
            return await self.read()
        return Reading(timeline, cells)

    async def swap(self, cell: str, revision: int, value: bytes | None, *, timeline: int) -> int | None:
        if timeline == 0:
            await self._use(self._create, None)
            return None
        new = secrets.randbits(62) + 1  # None that a failover has lost is given out again.
        values: tuple[Any, ...]
        if value is None:
            sql, values = self._remove, (cell, timeline, revision)
        elif revision == 0:
            sql, values = self._make, (cell, timeline, new, value)
        else:
            sql, values = self._replace, (cell, timeline, new, value, revision)
        return new if await self._use(lambda db: self._swap(db, sql, values), False) else None

    # For subclasses

    # The statements of swaps; the values are the name, the timeline, the new revision and value, and the former one.
    _make: str
    _replace: str
    # Its third value is the former revision.
    _remove: str

    async def _begin(self, db: Db) -> None:
        """Have the commits of a new connection wait for the disk, unless they do."""

    async def _create(self, db: Db) -> None:
        """Make the table, unless it is there."""
        raise NotImplementedError

    async def _read(self, db: Db, known: Sequence[int]) -> Sequence[Any]:
        """Return a row for each cell whose revision is not known, or one without a cell if all are known.

        Its values are the timeline, the number of all cells, and the name, revision and value of the cell.
        """
        raise NotImplementedError

    async def _swap(self, db: Db, sql: str, values: Sequence[Any]) -> bool:
        """Execute a statement of a swap, and return whether it has found the revision and the timeline."""
        raise NotImplementedError

    def _is_missing(self, error: Exception) -> bool:
        """Whether a statement has failed because the table is not there. Raises StoreError if it is another one."""
        raise NotImplementedError

    # Inside

    async def _use(self, work: Callable[[Db], Awaitable[T]], missing: T) -> T:
        """Do work; `missing` is its result if the table is not there, as no node has joined yet."""
        try:
            if self._db is None or self._db.is_closed():
                self._db = await self._dialect.connect()
                await self._begin(self._db)
            return await work(self._db)
        except self._dialect.errors as error:
            if self._is_missing(error):
                return missing
            self._drop()
            raise StoreError(self._dialect.explain(error)) from error
        except BaseException:
            self._drop()  # A statement may be under way.
            raise

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.terminate()
