"""Saves the times of changes after their commits, and removes rows that are not needed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from plait.store.protocol import ThreadKey
from plait.store.sql.db import Db
from plait.store.sql.dialect import Dialect
from plait.store.sql.pool import Readers, Writer
from plait.store.sql.rows import ClaimedHead, Known
from plait.store.upkeep import HeadUpkeep

__all__ = ["SqlUpkeep"]

# The most threads and rows that one transaction removes.
_THREADS: Final = 100
_ROWS: Final = 1000
_REMOVE_FROM: Final = ("changes", "snapshots", "clients", "records")
_REMOVED: Final = "SELECT thread FROM {removed} ORDER BY thread LIMIT $1 FOR UPDATE SKIP LOCKED"
_SAVE: Final = "UPDATE {threads} SET changed_at = $2 WHERE id = $1 AND created_at IS NOT NULL"
# If the number is still that of the owner who has released it, there is no other owner.
_FORGET: Final = "DELETE FROM {threads} WHERE id = $1 AND fence = $2 AND created_at IS NULL"


class SqlUpkeep(HeadUpkeep[ClaimedHead, int]):
    """The upkeep of a store in an SQL database, which also removes the rows of deleted threads."""

    def __init__(
        self,
        dialect: Dialect,
        known: Known,
        writer: Writer,
        readers: Readers,
        is_writing: Callable[[ThreadKey], bool],
    ) -> None:
        super().__init__(known.heads, known.changed, is_writing, errors=dialect.errors, explain=dialect.explain)
        self._dialect = dialect
        self._known = known
        self._writer = writer
        self._readers = readers

    def start(self) -> None:
        """Begin; rows of threads that were deleted before a crash may be left."""
        self._known.has_removed = True
        self.wake()
        super().start()

    async def _work(self) -> None:
        await super()._work()
        # Not in the last round, as it may take long.
        while self._known.has_removed and self._task is not None:
            self._known.has_removed = False
            try:
                while await self._readers.run(self._remove_rows):
                    pass
            except BaseException:
                self._known.has_removed = True
                raise

    async def _save(self, changed: Mapping[int, int]) -> None:
        # Not with another connection: the two would wait for the rows of each other.
        async with self._writer.use() as db:
            await self._dialect.run_each(db, _SAVE, sorted(changed.items()))

    async def _remove(self, heads: Sequence[tuple[ThreadKey, ClaimedHead]]) -> None:
        rows = [(head.id, head.fence) for _, head in heads]
        await self._readers.run(lambda db: self._dialect.run_each(db, _FORGET, rows))

    async def _remove_rows(self, db: Db) -> bool:
        """Remove some rows of deleted threads, and return whether more are left."""
        await db.execute("BEGIN")
        ids = [id for (id,) in await db.fetch(self._dialect.tables.fill(_REMOVED), _THREADS)]
        left = _ROWS
        for table in _REMOVE_FROM:
            if ids and left > 0:
                left -= await self._dialect.remove(db, table, ids, left)
        if left > 0:
            await self._dialect.run_each(db, "DELETE FROM {removed} WHERE thread = $1", [(id,) for id in ids])
        await db.execute("COMMIT")
        return left <= 0 or len(ids) == _THREADS
