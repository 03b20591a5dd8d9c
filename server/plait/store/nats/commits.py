"""Writes the groups of a store: each is one publication, which is compared with the thread's head."""

from collections.abc import Sequence

import msgspec

from plait.clock import read_wall_clock
from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.nats.api import Publication
from plait.store.nats.cache import ContentsCache
from plait.store.nats.contents import Contents, Moved, read_head
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import CHUNK, DELETED, Known, Subjects, split_chunks
from plait.store.nats.planning import LARGE, Plan, Room, make_plan
from plait.store.nats.pruning import find_floor
from plait.store.nats.publishing import Publisher, refuse
from plait.store.nats.upkeep import NatsUpkeep
from plait.store.nats.views import Views
from plait.store.outcomes import Outcome, make_fenced
from plait.store.protocol import Write
from plait.store.thread_rows import ThreadKey

__all__ = ["Commits"]


class Commits:
    """The methods of a store that write its threads: they plan the writes of a group, and publish them.

    A head keeps rows of up to `_most_in_head` bytes, and more if a write has more.
    """

    _stream: JetStream
    _subjects: Subjects
    _cache: ContentsCache
    # Of the threads that this store has claimed.
    _heads: dict[ThreadKey, Known]
    _publisher: Publisher
    _most_in_head: int
    _upkeep: NatsUpkeep
    _views: Views

    # For subclasses

    def _suspect(self) -> None:
        """Check the stream, as another owner has claimed a thread."""
        raise NotImplementedError

    async def _find_contents(self, key: ThreadKey, known: Known | None = None) -> Contents | None:
        """Return what a thread has, as `Reads` does."""
        raise NotImplementedError

    # Inside

    async def _commit(self, group: WriteGroup) -> Outcome:
        key, fence = group.writes[0].key, group.writes[0].fence
        try:
            known = self._heads.get(key) or await self._find_head(key, fence)
        except StoreError as failure:
            return 0, refuse(key, failure)
        if known is None or known.head.fence != fence:
            return 0, make_fenced(key)
        count, error = group.count_following(known.head.stored)
        writes = coalesce(group.writes[:count])
        if not writes:
            return count, error
        try:
            after, rows = await self._put(key, known, writes)
        except StoreError as failure:
            if isinstance(failure, Fenced | Indeterminate):
                self._heads.pop(key, None)
                self._suspect()
            return 0, failure
        except (TypeError, ValueError, OverflowError) as failure:
            return 0, refuse(key, failure)
        if after.head.thread is not None and after.head.thread.unfinished:
            self._heads.pop(key, None)  # The next write finds it, and finishes it first.
        else:
            self._heads[key] = after
        self._cache.write(known, after, rows)
        self._upkeep.note(known, after)
        return count, error

    async def _find_head(self, key: ThreadKey, fence: int) -> Known | None:
        """Return the head of a thread that this store has claimed, and has lost sight of."""
        known = await read_head(self._stream, self._subjects, key)
        is_own = known is not None and known.head.fence == fence
        if is_own and known is not None and known.head.thread is not None and known.head.thread.unfinished:
            return await self._publisher.finish(known)
        return known

    async def _put(
        self, key: ThreadKey, known: Known, writes: Sequence[Write]
    ) -> tuple[Known, dict[str, bytes | None]]:
        """Write a thread, and return its head and the rows that were put into the stream."""
        floor, expired = await self._find_floor(key, known, writes[-1])
        most = self._most_in_head
        room = Room(most, min(LARGE * most, self._stream.max_payload // 2))
        plan = make_plan(known, writes, now=read_wall_clock(), floor=floor, expired=expired, room=room)
        if plan.head.removed and (cleaned := self._upkeep.take_cleaned(key)):
            left = [each for each in plan.head.removed if each not in cleaned]
            plan = plan._replace(head=msgspec.structs.replace(plan.head, removed=left))
        if (waiting := self._views.save(key, plan)) is not None:
            await waiting
        plan, messages = await self._make_messages(key, plan)
        return await self._publisher.publish(known, messages, plan.head), plan.rows

    async def _find_floor(self, key: ThreadKey, known: Known, write: Write) -> tuple[int, list[str]]:
        if write.prune is None:
            return 0, []
        if write.after is None:
            return await find_floor(self._stream, None, write)
        contents = await self._find_contents(key, known)
        try:
            return await find_floor(self._stream, contents, write)
        except Moved:  # Something is missing. That must not keep the thread from being written.
            return 0, []

    async def _make_messages(self, key: ThreadKey, plan: Plan) -> tuple[Plan, list[Publication]]:
        """Return the messages of rows, and the plan with what the head must tell of them."""
        thread = plan.head.thread
        if not plan.rows:
            return plan, []
        assert thread is not None
        start = self._subjects.rows(key, thread.generation)
        chunks = await self._find_chunks(key, start) if thread.has_chunks else {}
        found: list[Publication] = []
        for rest, value in plan.rows.items():
            parts = [] if value is None else split_chunks(start + rest, value, min(CHUNK, self._stream.max_payload))
            found += (Publication(*each) for each in parts)
            if value is None:
                found.append(Publication(start + rest, b"", ttl=DELETED))
            for number in range(max(len(parts), 1), chunks.get(rest, 0)):
                found.append(Publication(f"{start}{rest}.{number}", b"", ttl=DELETED))
            if len(parts) > 1 and not thread.has_chunks:
                thread = msgspec.structs.replace(thread, has_chunks=True)
        return plan._replace(head=msgspec.structs.replace(plan.head, thread=thread)), found

    async def _find_chunks(self, key: ThreadKey, start: str) -> dict[str, int]:
        """Return how many messages the values have that have several."""
        found: dict[str, int] = {}
        for subject in (await self._stream.names(f"{start}r.*.*.>")).subjects:
            rest, _, number = subject[len(start) :].rpartition(".")
            found[rest] = max(found.get(rest, 0), int(number) + 1)
        return found
