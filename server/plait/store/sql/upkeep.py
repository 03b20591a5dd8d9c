"""Saves the times of changes after their commits, and removes rows that are not needed."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from plait.errors import StoreError
from plait.store.protocol import ThreadKey
from plait.store.sql.dialect import Dialect
from plait.store.sql.pool import Readers, Writer
from plait.store.sql.rows import ClaimedHead, Known

__all__ = ["Upkeep"]

log = logging.getLogger("plait.store")

# Seconds between two rounds, while there is something to do.
_INTERVAL: Final = 1.0
# Seconds after which a round that failed is repeated.
_RETRY_AFTER: Final = 60.0
# The most threads and rows that one transaction removes.
_THREADS: Final = 100
_ROWS: Final = 1000


class Upkeep:
    """Works in a task of its own, once a second while there is something to do."""

    def __init__(
        self,
        dialect: Dialect,
        known: Known,
        writer: Writer,
        readers: Readers,
        is_writing: Callable[[ThreadKey], bool],
    ) -> None:
        self._dialect = dialect
        self._errors: tuple[type[Exception], ...] = (StoreError, *dialect.errors)
        self._known = known
        self._writer = writer
        self._readers = readers
        self._is_writing = is_writing
        # The threads that were released, with the numbers of their owners.
        self._released: dict[ThreadKey, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    def start(self) -> None:
        """Begin; rows of threads that were deleted before a crash may be left."""
        self._known.has_removed = True
        self._is_due.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="plait sql upkeep")

    async def stop(self) -> None:
        """End, after saving what is known."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            try:
                await self.save()
                await self._forget()
            except self._errors as error:
                log.warning("the times of the last changes could not be saved: %s", self._dialect.explain(error))

    def wake(self) -> None:
        """Begin a round soon, as there may be something to do."""
        self._is_due.set()

    def release(self, key: ThreadKey, fence: int) -> None:
        """Forget the head of a thread that was released, and remove its row if no thread is stored."""
        self._released[key] = fence
        self._is_due.set()

    async def save(self) -> None:
        """Save when threads have changed. Raises StoreError, and what the driver raises."""
        changed, self._known.changed = self._known.changed, {}
        if not changed:
            return
        try:
            # Not with another connection: the two would wait for the rows of each other.
            async with self._writer.use() as db:
                await self._dialect.save(db, changed)
        except BaseException:
            self._known.changed = changed | self._known.changed
            raise

    # Inside

    async def _run(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                while self._known.has_removed:
                    self._known.has_removed = False
                    while await self._readers.run(lambda db: self._dialect.remove(db, threads=_THREADS, rows=_ROWS)):
                        pass
                await asyncio.sleep(_INTERVAL)
                await self.save()
                await self._forget()
            except self._errors as error:
                log.warning("rows that are not needed could not be removed yet: %s", self._dialect.explain(error))
                self._known.has_removed = True
                self._is_due.set()
                await asyncio.sleep(_RETRY_AFTER)

    async def _forget(self) -> None:
        heads, empty = self._known.heads, list[tuple[ThreadKey, ClaimedHead]]()
        for key, fence in list(self._released.items()):
            if self._is_writing(key):
                self._is_due.set()
                continue
            del self._released[key]
            if (head := heads.get(key)) is not None and head.fence == fence:
                del heads[key]
                if head.version is None:
                    empty.append((key, head))
        if empty:
            await self._readers.run(lambda db: self._dialect.forget(db, empty))
