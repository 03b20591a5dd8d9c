"""Writes the groups of a store: each is one publication, which is compared with the thread's head."""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from plait.clock import read_wall_clock
from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.nats.api import Publication
from plait.store.nats.contents import Contents, Moved, read_head
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import CHUNK, DELETED, Known, Subjects, split_chunks
from plait.store.nats.planning import LARGE, Plan, Room, make_plan
from plait.store.nats.pruning import find_floor
from plait.store.nats.publishing import Publisher, refuse
from plait.store.outcomes import Outcome, make_fenced
from plait.store.protocol import ThreadKey, Write

__all__ = ["GroupCommitter"]


class GroupCommitter:
    """Plans the writes of groups, publishes them, and keeps the `heads` of the threads that this store has claimed.

    A head keeps rows of up to `most_in_head` bytes, and more if a write has more.
    """

    def __init__(
        self,
        stream: JetStream,
        subjects: Subjects,
        heads: dict[ThreadKey, Known],
        publisher: Publisher,
        *,
        most_in_head: int,
        find_contents: Callable[[ThreadKey, Known], Awaitable[Contents | None]],
        take_cleaned: Callable[[ThreadKey], set[int]],
        before_write: Callable[[ThreadKey, Plan], Awaitable[None] | None],
        on_written: Callable[[Known, Known, dict[str, bytes | None]], None],
        on_fenced: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._subjects = subjects
        self._heads = heads
        self._publisher = publisher
        self._most_in_head = most_in_head
        # Returns what a thread has.
        self._find_contents = find_contents
        # Returns the generations of a deleted thread whose rows are removed, though its head may still list them.
        self._take_cleaned = take_cleaned
        # Called before rows of a thread are replaced; returns what is to be awaited first.
        self._before_write = before_write
        # Called after each write of a thread, with its head before and after, and the rows that it has published.
        self._on_written = on_written
        # Called when a write is refused as another owner has claimed its thread.
        self._on_fenced = on_fenced

    async def commit(self, group: WriteGroup) -> Outcome:
        """Write a group, and return its outcome."""
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
            after, rows = await self._write(key, known, writes)
        except StoreError as failure:
            if isinstance(failure, Fenced | Indeterminate):
                self._heads.pop(key, None)
                self._on_fenced()
            return 0, failure
        except (TypeError, ValueError, OverflowError) as failure:
            return 0, refuse(key, failure)
        if after.head.thread is not None and after.head.thread.unfinished:
            self._heads.pop(key, None)  # The next write finds it, and finishes it first.
        else:
            self._heads[key] = after
        self._on_written(known, after, rows)
        return count, error

    # Inside

    async def _find_head(self, key: ThreadKey, fence: int) -> Known | None:
        """Return the head of a thread that this store has claimed, and has lost sight of."""
        known = await read_head(self._stream, self._subjects, key)
        is_own = known is not None and known.head.fence == fence
        if is_own and known is not None and known.head.thread is not None and known.head.thread.unfinished:
            return await self._publisher.finish(known)
        return known

    async def _write(
        self, key: ThreadKey, known: Known, writes: Sequence[Write]
    ) -> tuple[Known, dict[str, bytes | None]]:
        """Write a thread, and return its head and the rows that were put into the stream."""
        floor, expired = await self._find_floor(key, known, writes[-1])
        most = self._most_in_head
        room = Room(most, min(LARGE * most, self._stream.max_payload // 2))
        plan = make_plan(known, writes, now=read_wall_clock(), floor=floor, expired=expired, room=room)
        if plan.head.removed and (cleaned := self._take_cleaned(key)):
            left = [each for each in plan.head.removed if each not in cleaned]
            plan = plan._replace(head=msgspec.structs.replace(plan.head, removed=left))
        if (waiting := self._before_write(key, plan)) is not None:
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
