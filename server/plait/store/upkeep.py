"""Works after the writes of a store: saves the times of changes, and removes what is not needed."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from plait.backoff import Backoff
from plait.errors import StoreError
from plait.store.outcomes import Unreachable
from plait.store.protocol import ThreadKey

__all__ = ["Head", "HeadUpkeep", "Upkeep"]

log = logging.getLogger("plait.store")

# Seconds before a round, which grow with the rounds that fail one after the other.
_PAUSES: Final = Backoff(1.0, 60.0)


class Upkeep:
    """Works in rounds, in a task of its own, while there is something to do. A subclass has `_work`, one round.

    A round that fails with one of `errors` is repeated.
    """

    def __init__(
        self, *, errors: tuple[type[Exception], ...] = (), explain: Callable[[BaseException], str] = str
    ) -> None:
        self._errors: tuple[type[Exception], ...] = (StoreError, *errors)
        self._explain = explain
        # The threads that were released, with the numbers of their owners.
        self._released: dict[ThreadKey, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._repeat(), name="plait store upkeep")

    async def stop(self) -> None:
        """End, after one more round."""
        if self._task is not None:
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

    # For subclasses

    async def _work(self) -> None:
        raise NotImplementedError

    # Inside

    async def _repeat(self) -> None:
        failures = 0
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            await asyncio.sleep(_PAUSES.delay(failures + 1))
            failures = 0 if await self._try() else failures + 1

    async def _try(self) -> bool:
        try:
            await self._work()
        except self._errors as error:
            if not isinstance(error, Unreachable):  # The lease tells of it.
                log.warning("what is left to do after writes could not be done yet: %s", self._explain(error))
            self._is_due.set()
            return False
        return True


class Head(Protocol):
    """The number of a claimed thread's owner, and its version; None if no thread is stored."""

    @property
    def fence(self) -> int: ...
    @property
    def version(self) -> int | None: ...


H = TypeVar("H", bound=Head)
K = TypeVar("K")


class HeadUpkeep(Upkeep, Generic[H, K]):
    """Saves when threads have `changed`, and removes the `heads` of those that are not stored, after their release.

    `is_writing` tells whether writes of a thread are not stored yet.
    """

    def __init__(
        self,
        heads: dict[ThreadKey, H],
        changed: dict[K, Any],
        is_writing: Callable[[ThreadKey], bool],
        *,
        errors: tuple[type[Exception], ...],
        explain: Callable[[BaseException], str],
    ) -> None:
        super().__init__(errors=errors, explain=explain)
        self._heads = heads
        self._changed = changed
        self._is_writing = is_writing

    async def save(self) -> None:
        """Save when threads have changed. Raises StoreError, and what the driver raises."""
        changed = dict(self._changed)
        self._changed.clear()
        try:
            if changed:
                await self._save(changed)
        except BaseException:
            for thread, at in changed.items():
                self._changed.setdefault(thread, at)
            raise

    # For subclasses

    async def _save(self, changed: Mapping[K, Any]) -> None:
        raise NotImplementedError

    async def _remove(self, heads: Sequence[tuple[ThreadKey, H]]) -> None:
        """Remove the heads of threads that are not stored, unless they have another owner."""
        raise NotImplementedError

    # Inside

    async def _work(self) -> None:
        await self.save()
        empty: list[tuple[ThreadKey, H]] = []
        for key, fence in list(self._released.items()):
            head = self._heads.get(key)
            if self._is_writing(key):
                self._is_due.set()
            elif head is not None and head.fence == fence and head.version is None:
                empty.append((key, head))
            else:
                self._forget(key, fence)
        if empty:
            await self._remove(empty)
        for key, head in empty:
            self._forget(key, head.fence)

    def _forget(self, key: ThreadKey, fence: int) -> None:
        """Forget a head, unless the thread has another owner, and that it was released."""
        if (head := self._heads.get(key)) is not None and head.fence == fence:
            del self._heads[key]
        if self._released.get(key) == fence:
            del self._released[key]
