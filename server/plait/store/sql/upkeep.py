"""Saves the times of changes after their commits, and removes rows that are not needed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from plait.store.protocol import ThreadKey
from plait.store.sql.dialect import Dialect
from plait.store.sql.pool import Readers, Writer
from plait.store.sql.rows import ClaimedHead, Known
from plait.store.upkeep import HeadUpkeep

__all__ = ["SqlUpkeep"]

# The most threads and rows that one transaction removes.
_THREADS: Final = 100
_ROWS: Final = 1000


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
                while await self._readers.run(lambda db: self._dialect.remove(db, threads=_THREADS, rows=_ROWS)):
                    pass
            except BaseException:
                self._known.has_removed = True
                raise

    async def _save(self, changed: Mapping[int, int]) -> None:
        # Not with another connection: the two would wait for the rows of each other.
        async with self._writer.use() as db:
            await self._dialect.save(db, changed)

    async def _remove(self, heads: Sequence[tuple[ThreadKey, ClaimedHead]]) -> None:
        await self._readers.run(lambda db: self._dialect.forget(db, heads))
