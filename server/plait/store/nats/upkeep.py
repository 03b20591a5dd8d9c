"""Removes messages that are not needed, after the writes that have made them so."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from plait.backoff import Backoff
from plait.errors import StoreError
from plait.store.nats.api import Publication, WrongSequence
from plait.store.nats.contents import Contents, find_contents
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import GIVEN_UP, Known, Subjects
from plait.store.outcomes import Unreachable
from plait.store.thread_rows import ThreadKey

__all__ = ["NatsUpkeep"]

log = logging.getLogger("plait.store")

# Seconds before a round, which grow with the rounds that fail one after the other.
_PAUSES: Final = Backoff(1.0, 60.0)


class NatsUpkeep:
    """Works in rounds, in a task of its own, while there is something to do. A round that fails is repeated.

    After their release, it removes the `heads` of threads that are not stored, and forgets all others.
    """

    def __init__(
        self,
        stream: JetStream,
        subjects: Subjects,
        heads: dict[ThreadKey, Known],
        *,
        is_writing: Callable[[ThreadKey], bool],
        is_viewed: Callable[[ThreadKey], bool],
    ) -> None:
        self._stream = stream
        self._subjects = subjects
        self._heads = heads
        # Whether writes of a thread are not stored yet, and whether a view of it is open.
        self._is_writing = is_writing
        self._is_viewed = is_viewed
        # The threads that were released, with the numbers of their owners.
        self._released: dict[ThreadKey, int] = {}
        # Threads whose logs were pruned, and generations of deleted threads.
        self._pruned: dict[ThreadKey, None] = {}
        self._removed: dict[ThreadKey, set[int]] = {}
        # The generations of deleted threads whose rows are removed, though their heads may still list them.
        self._cleaned: dict[ThreadKey, set[int]] = {}
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

    def release(self, key: ThreadKey, fence: int) -> None:
        """Forget the head of a thread that was released, and remove it if no thread is stored."""
        self._released[key] = fence
        self._is_due.set()

    def note(self, before: Known, after: Known) -> None:
        """Remove what a write has left, which had this head before and after it."""
        if after.head.removed and after.head.removed != before.head.removed:
            self.remove(after)
        thread = after.head.thread
        if thread is not None and thread.floor > (0 if before.head.thread is None else before.head.thread.floor):
            self._pruned[after.head.key] = None
            self._is_due.set()

    def take_cleaned(self, key: ThreadKey) -> set[int]:
        """Return the generations of a thread whose rows have been removed, once."""
        return self._cleaned.pop(key, set())

    def remove(self, known: Known) -> None:
        """Remove the rows of the deleted threads that a head lists."""
        self._removed.setdefault(known.head.key, set()).update(known.head.removed)
        self._is_due.set()

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
            await self._remove_rows()
            await self._prune()
            await self._forget_released()
        except StoreError as error:
            if not isinstance(error, Unreachable):  # The lease tells of it.
                log.warning("what is left to do after writes could not be done yet: %s", error)
            self._is_due.set()
            return False
        return True

    async def _forget_released(self) -> None:
        empty: list[tuple[ThreadKey, Known]] = []
        for key, fence in list(self._released.items()):
            known = self._heads.get(key)
            if self._is_writing(key) or key in self._removed:
                self._is_due.set()
            elif known is not None and known.fence == fence and known.version is None:
                empty.append((key, known))
            else:
                self._forget(key, fence)
        for key, known in empty:
            await self._remove(key, known)
        for key, known in empty:
            self._forget(key, known.fence)

    async def _remove(self, key: ThreadKey, known: Known) -> None:
        """Remove the head of a thread that is not stored, unless it has another owner."""
        # It is removed in a while.
        message = Publication(self._subjects.head(key), b"", known.sequence, ttl=GIVEN_UP)
        with suppress(WrongSequence):  # It has another owner.
            await self._stream.publish(message)

    def _forget(self, key: ThreadKey, fence: int) -> None:
        """Forget a head, unless the thread has another owner, and that it was released."""
        if (known := self._heads.get(key)) is not None and known.fence == fence:
            del self._heads[key]
        if self._released.get(key) == fence:
            del self._released[key]

    async def _remove_rows(self) -> None:
        for key, generations in list(self._removed.items()):
            if self._is_viewed(key):
                self._is_due.set()
                continue
            for generation in list(generations):
                await self._stream.purge(self._subjects.rows(key, generation) + ">")
                generations.discard(generation)
                self._cleaned.setdefault(key, set()).add(generation)
            if not generations:
                self._removed.pop(key, None)

    async def _prune(self) -> None:
        while self._pruned:
            key = next(iter(self._pruned))
            if (contents := await find_contents(self._stream, self._subjects, key)) is not None:
                await self._purge(contents, "c", [rest for _, rest in contents.segments])
                await self._purge(contents, "s", [rest for _, rest in sorted(contents.snapshots.items())])
            self._pruned.pop(key, None)

    async def _purge(self, contents: Contents, what: str, rests: Sequence[str]) -> None:
        """Remove the messages before the first one that is kept."""
        rests = [rest for rest in rests if rest not in contents.thread.rows]
        kept = await self._stream.last([contents.start + rest for rest in rests[:1]])
        if kept or not rests:
            before = kept[0].sequence if kept else contents.known.sequence
            await self._stream.purge(f"{contents.start}{what}.>", before=before)
