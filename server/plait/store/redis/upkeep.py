"""Saves the times of changes after their commits, and removes heads that are not needed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from plait.errors import StoreError
from plait.store.protocol import ThreadKey
from plait.store.redis.commits import BatchCommitter
from plait.store.redis.engine import DRIVER_ERRORS, explain
from plait.store.redis.layout import Keys, name_thread
from plait.store.redis.scripts import FORGET, SAVE

__all__ = ["Upkeep"]

log = logging.getLogger("plait.store")

# Seconds between two rounds, while there is something to do.
_INTERVAL: Final = 1.0
# The most threads of one command.
_MOST: Final = 1000


class Upkeep:
    """Works in a task of its own, once a second while there is something to do."""

    def __init__(
        self,
        run: Callable[..., Awaitable[list[Any]]],
        keys: Keys,
        committer: BatchCommitter,
        is_writing: Callable[[ThreadKey], bool],
    ) -> None:
        self._run = run
        self._keys = keys
        self._committer = committer
        self._is_writing = is_writing
        # The threads that were released, with the numbers of their owners.
        self._released: dict[ThreadKey, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="plait redis upkeep")

    async def stop(self) -> None:
        """End, after saving what is known."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        await self._try()

    def wake(self) -> None:
        """Begin a round soon, as there may be something to do."""
        self._is_due.set()

    def release(self, key: ThreadKey, fence: int) -> None:
        """Forget the head of a thread that was released, and remove it if no thread is stored."""
        self._released[key] = fence
        self._is_due.set()

    async def save(self) -> None:
        """Save when threads have changed. Raises StoreError, and what the driver raises."""
        changed, self._committer.changed = self._committer.changed, {}
        rows = [
            (self._keys("h", name_thread(key)), epoch, name_thread(key), at) for key, (epoch, at) in changed.items()
        ]
        try:
            for some in _split(rows):
                await self._run(("EVAL", SAVE, 1, self._keys("changed"), *some))
        except BaseException:
            self._committer.changed = changed | self._committer.changed
            raise

    # Inside

    async def _work(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            await asyncio.sleep(_INTERVAL)
            await self._try()

    async def _try(self) -> None:
        try:
            await self.save()
            await self._forget()
        except (StoreError, *DRIVER_ERRORS) as error:
            log.warning("the times of the last changes could not be saved yet: %s", explain(error))
            self._is_due.set()

    async def _forget(self) -> None:
        heads, empty = self._committer.heads, list[tuple[bytes, int]]()
        for key, fence in list(self._released.items()):
            if self._is_writing(key):
                self._is_due.set()
                continue
            del self._released[key]
            if (head := heads.get(key)) is not None and head.fence == fence:
                del heads[key]
                if head.version is None:
                    empty.append((self._keys("h", name_thread(key)), head.fence))
        for some in _split(empty):
            await self._run(("EVAL", FORGET, 0, *some))


def _split(rows: list[Any]) -> list[list[Any]]:
    """Return the values of rows for several commands."""
    return [[value for row in rows[at : at + _MOST] for value in row] for at in range(0, len(rows), _MOST)]
