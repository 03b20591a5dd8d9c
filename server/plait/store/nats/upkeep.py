"""Removes messages that are not needed, after the writes that have made them so."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from plait.store.nats.api import Publication, WrongSequence
from plait.store.nats.contents import Contents, find_contents
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import GIVEN_UP, Known, Subjects
from plait.store.protocol import ThreadKey
from plait.store.upkeep import HeadUpkeep

__all__ = ["NatsUpkeep"]


class NatsUpkeep(HeadUpkeep[Known, Any]):
    """The upkeep of a store in NATS."""

    def __init__(
        self,
        stream: JetStream,
        subjects: Subjects,
        heads: dict[ThreadKey, Known],
        *,
        is_writing: Callable[[ThreadKey], bool],
        is_viewed: Callable[[ThreadKey], bool],
    ) -> None:
        super().__init__(heads, {}, lambda key: is_writing(key) or key in self._removed, errors=(), explain=str)
        self._stream = stream
        self._subjects = subjects
        # The generations of deleted threads whose rows are removed, though their heads may still list them.
        self._cleaned: dict[ThreadKey, set[int]] = {}
        self._is_viewed = is_viewed
        # Threads whose logs were pruned, and generations of deleted threads.
        self._pruned: dict[ThreadKey, None] = {}
        self._removed: dict[ThreadKey, set[int]] = {}

    def note(self, before: Known, after: Known) -> None:
        """Remove what a write has left, which had this head before and after it."""
        if after.head.removed and after.head.removed != before.head.removed:
            self.remove(after)
        thread = after.head.thread
        if thread is not None and thread.floor > (0 if before.head.thread is None else before.head.thread.floor):
            self._pruned[after.head.key] = None
            self.wake()

    def take_cleaned(self, key: ThreadKey) -> set[int]:
        """Return the generations of a thread whose rows have been removed, once."""
        return self._cleaned.pop(key, set())

    def remove(self, known: Known) -> None:
        """Remove the rows of deleted threads, as a head tells of them."""
        self._removed.setdefault(known.head.key, set()).update(known.head.removed)
        self.wake()

    # Inside

    async def _work(self) -> None:
        await self._remove_rows()
        await self._prune()
        await super()._work()

    async def _remove(self, heads: Sequence[tuple[ThreadKey, Known]]) -> None:
        for key, known in heads:
            # It is removed in a while.
            message = Publication(self._subjects.head(key), b"", known.sequence, ttl=GIVEN_UP)
            with suppress(WrongSequence):  # It has another owner.
                await self._stream.publish(message)

    async def _remove_rows(self) -> None:
        for key, generations in list(self._removed.items()):
            if self._is_viewed(key):
                self.wake()
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
