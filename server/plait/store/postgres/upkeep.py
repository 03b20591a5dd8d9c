"""Saves the times of changes after their commits, and removes rows that are not needed."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from plait.errors import StoreError
from plait.store.postgres.commits import BatchCommitter
from plait.store.postgres.engine import DRIVER_ERRORS, Db, explain
from plait.store.postgres.pool import Readers
from plait.store.postgres.schema import Tables
from plait.store.postgres.writes import columns
from plait.store.protocol import ThreadKey

__all__ = ["Upkeep"]

log = logging.getLogger("plait.store")

# Seconds between two rounds, while there is something to do.
_INTERVAL: Final = 1.0
# Seconds after which a round that failed is repeated.
_RETRY_AFTER: Final = 60.0
# The most threads and rows that one transaction removes.
_THREADS: Final = 100
_ROWS: Final = 1000

_SAVE: Final = """
UPDATE {threads} t SET changed_at = w.at FROM (
    SELECT t.id, w.at FROM {threads} t JOIN unnest($1::bigint[], $2::bigint[]) w (id, at) ON t.id = w.id
    WHERE created_at IS NOT NULL ORDER BY t.id FOR UPDATE OF t
) w WHERE t.id = w.id
"""
# If the number is still that of the owner who has released it, there is no other owner.
_FORGET: Final = """
DELETE FROM {threads} t USING unnest($1::bigint[], $2::bigint[]) w (id, fence)
WHERE t.id = w.id AND t.fence = w.fence AND t.created_at IS NULL
"""
_REMOVED: Final = "SELECT thread FROM {removed} ORDER BY thread LIMIT $1 FOR UPDATE SKIP LOCKED"
_REMOVE_ROWS: Final = """
DELETE FROM {%s} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {%s} WHERE thread = ANY ($1) LIMIT $2))
"""
_TABLES: Final = ("changes", "snapshots", "clients", "records")


class Upkeep:
    """Works in a task of its own, once a second while there is something to do."""

    def __init__(
        self, committer: BatchCommitter, readers: Readers, tables: Tables, is_writing: Callable[[ThreadKey], bool]
    ) -> None:
        self._committer = committer
        self._readers = readers
        self._tables = tables
        self._is_writing = is_writing
        # The threads that were released, with the numbers of their owners.
        self._released: dict[ThreadKey, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    def start(self) -> None:
        """Begin; rows of threads that were deleted before a crash may be left."""
        self._committer.has_removed = True
        self._is_due.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="plait postgres upkeep")

    async def stop(self) -> None:
        """End, after saving what is known."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            try:
                await self.save()
                await self._forget()
            except (StoreError, *DRIVER_ERRORS) as error:
                log.warning("the times of the last changes could not be saved: %s", explain(error))

    def wake(self) -> None:
        """Begin a round soon, as there may be something to do."""
        self._is_due.set()

    def release(self, key: ThreadKey, fence: int) -> None:
        """Forget the head of a thread that was released, and remove its row if no thread is stored."""
        self._released[key] = fence
        self._is_due.set()

    async def save(self) -> None:
        """Save when threads have changed. Raises StoreError, and what the driver raises."""
        changed, self._committer.changed = self._committer.changed, {}
        if not changed:
            return
        values = columns(list(changed.items()), 2)
        try:
            await self._readers.run(lambda db: db.execute(self._tables.fill(_SAVE), *values))
        except BaseException:
            self._committer.changed = changed | self._committer.changed
            raise

    # Inside

    async def _run(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                while self._committer.has_removed:
                    self._committer.has_removed = False
                    while await self._readers.run(self._remove):
                        pass
                await asyncio.sleep(_INTERVAL)
                await self.save()
                await self._forget()
            except (StoreError, *DRIVER_ERRORS) as error:
                log.warning("rows that are not needed could not be removed yet: %s", explain(error))
                self._committer.has_removed = True
                self._is_due.set()
                await asyncio.sleep(_RETRY_AFTER)

    async def _remove(self, db: Db) -> bool:
        """Remove some rows of deleted threads, and return whether more are left."""
        async with db.transaction():
            await db.execute("SET LOCAL synchronous_commit TO off")
            threads = [id for (id,) in await db.fetch(self._tables.fill(_REMOVED), _THREADS)]
            if not threads:
                return False
            left = _ROWS
            for table in _TABLES:
                sql = self._tables.fill(_REMOVE_ROWS.replace("%s", table))
                left -= int((await db.execute(sql, threads, left)).split()[-1])
                if left <= 0:
                    return True
            await db.execute(self._tables.fill("DELETE FROM {removed} WHERE thread = ANY ($1)"), threads)
            return len(threads) == _THREADS

    async def _forget(self) -> None:
        heads, empty = self._committer.heads, list[tuple[int, int]]()
        for key, fence in list(self._released.items()):
            if self._is_writing(key):
                self._is_due.set()
                continue
            del self._released[key]
            if (head := heads.get(key)) is not None and head.fence == fence:
                del heads[key]
                if head.version is None:
                    empty.append((head.id, head.fence))
        if empty:
            values = columns(empty, 2)
            await self._readers.run(lambda db: db.execute(self._tables.fill(_FORGET), *values))
