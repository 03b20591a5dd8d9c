"""Writes the groups of a store: each is one publication, compared with the thread's head, that is settled if lost."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from plait.clock import read_wall_clock
from plait.errors import Fenced, Indeterminate, StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.nats.contents import Contents, Moved, read_head
from plait.store.nats.layout import GIVEN_UP, Head, Known, Subjects, encode_rows, split_chunks
from plait.store.nats.line import Disconnected, Lost, NotPermitted
from plait.store.nats.planning import MOST_IN_HEAD, Plan, make_plan
from plait.store.nats.pruning import find_floor
from plait.store.nats.stream import MOST_MESSAGES, PATIENCE, ApiError, Message, Stream, WrongSequence
from plait.store.outcomes import Outcome, make_fenced, make_indeterminate, make_refusal
from plait.store.protocol import ThreadKey, Unreachable, Write

__all__ = ["Committer"]

log = logging.getLogger("plait.store")

# Seconds.
_PUBLISH_AGAIN: Final = 0.05
# Seconds after which the server removes the message that deletes a row.
_DELETED: Final = 60
# The maximum size of a message, unless the server allows less.
_CHUNK: Final = 256 * 1024


class Committer:
    """Claims threads, and writes them."""

    def __init__(self, stream: Stream, subjects: Subjects, find_origin: Callable[[], tuple[str, int]]) -> None:
        self._stream = stream
        self._subjects = subjects
        # Returns the current stream, and the maximum bytes of a message.
        self._find_origin = find_origin
        # The heads of the threads that this store has claimed.
        self.heads: dict[ThreadKey, Known] = {}
        # Returns what a thread has.
        self.find_contents: Callable[[ThreadKey, Known], Awaitable[Contents | None]]
        # Called after each write of a thread, with its head before and after, and the rows that it has published.
        self.on_written: Callable[[Known, Known, dict[str, bytes | None]], None] = lambda before, after, rows: None
        # Called before rows of a thread are replaced; returns what is to be awaited first.
        self.before_write: Callable[[ThreadKey, Plan], Awaitable[None] | None] = lambda key, plan: None
        # Called when a write is refused as another owner has claimed its thread.
        self.on_fenced: Callable[[], None] = lambda: None
        # The generations of deleted threads whose rows are removed, though their heads may still list them.
        self.cleaned: dict[ThreadKey, set[int]] = {}
        # Bytes of rows that a head keeps.
        self.most_in_head = MOST_IN_HEAD
        self._last_fence = 0

    # Claims

    async def claim(self, key: ThreadKey, known: Known | None) -> Known:
        """Become the owner of a thread whose head may be `known`, and return its head.

        Raises StoreError and UnicodeEncodeError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        token, is_in_doubt = 0, False
        while True:
            try:
                if is_in_doubt and known is not None and known.head.fence == token:  # Only the answer was lost.
                    break
                is_in_doubt = False
                before = Head(*key, 0, "") if known is None else known.head
                token = self._last_fence = max(before.fence + 1, self._last_fence + 1, read_wall_clock())
                head = self._take(before, token)
                message = Message(self._subjects.head(key), encode_rows(head), 0 if known is None else known.sequence)
                known = Known(await self._stream.publish(message), head)
                break
            except WrongSequence:
                known = await read_head(self._stream, self._subjects, key)
            except Lost as error:
                is_in_doubt = True
                await self._rest(deadline, error)
                known = await read_head(self._stream, self._subjects, key)
            except Unreachable as error:
                await self._rest(deadline, error)
        if known.head.thread is not None and known.head.thread.unfinished:
            known = await self._finish(known)
        self.heads[key] = known
        return known

    def _take(self, head: Head, fence: int) -> Head:
        """Return the head of a new owner."""
        origin, _ = self._find_origin()
        thread = head.thread
        if thread is not None and head.origin != origin:
            # Clients may have seen changes that are lost.
            thread = msgspec.structs.replace(thread, epoch=secrets.token_hex(8))
        return msgspec.structs.replace(
            head, fence=fence, origin=origin, former=head.fence, begins_at=head.writes, thread=thread
        )

    # Writes

    async def commit(self, group: WriteGroup) -> Outcome:
        """Write a group, and return its outcome."""
        key, fence = group.writes[0].key, group.writes[0].fence
        try:
            known = self.heads.get(key) or await self._find_head(key, fence)
        except StoreError as failure:
            return 0, _refuse(key, failure)
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
                self.heads.pop(key, None)
                self.on_fenced()
            return 0, failure
        except (TypeError, ValueError, OverflowError) as failure:
            return 0, _refuse(key, failure)
        self.heads[key] = after
        self.on_written(known, after, rows)
        return count, error

    async def give_up(self, known: Known) -> None:
        """Remove the head of a thread that is not stored and has no owner, in a while. Raises StoreError."""
        message = Message(self._subjects.head(known.head.key), b"", known.sequence, ttl=GIVEN_UP)
        with suppress(WrongSequence):  # It has another owner.
            await self._stream.publish(message)

    # Inside

    async def _find_head(self, key: ThreadKey, fence: int) -> Known | None:
        """Return the head of a thread that this store has claimed, and has lost sight of."""
        known = await read_head(self._stream, self._subjects, key)
        is_own = known is not None and known.head.fence == fence
        if is_own and known is not None and known.head.thread is not None and known.head.thread.unfinished:
            return await self._finish(known)
        return known

    async def _write(
        self, key: ThreadKey, known: Known, writes: Sequence[Write]
    ) -> tuple[Known, dict[str, bytes | None]]:
        """Write a thread, and return its head and the rows that were put into the stream."""
        floor, expired = await self._find_floor(key, known, writes[-1])
        plan = make_plan(known, writes, now=read_wall_clock(), floor=floor, expired=expired, most=self.most_in_head)
        if plan.head.removed and (cleaned := self.cleaned.pop(key, None)):
            left = [each for each in plan.head.removed if each not in cleaned]
            plan = plan._replace(head=msgspec.structs.replace(plan.head, removed=left))
        if (waiting := self.before_write(key, plan)) is not None:
            await waiting
        plan, messages = await self._make_messages(key, plan)
        if len(messages) < MOST_MESSAGES:
            return await self._publish(key, known, messages, plan.head), plan.rows
        return await self._write_in_steps(key, known, messages, plan.head), plan.rows

    async def _find_floor(self, key: ThreadKey, known: Known, write: Write) -> tuple[int, list[str]]:
        if write.prune is None:
            return 0, []
        if write.after is None:
            return await find_floor(self._stream, None, write)
        contents = await self.find_contents(key, known)
        try:
            return await find_floor(self._stream, contents, write)
        except Moved:  # Something is missing. That must not keep the thread from being written.
            return 0, []

    async def _make_messages(self, key: ThreadKey, plan: Plan) -> tuple[Plan, list[Message]]:
        """Return the messages of rows, and the plan with what the head must tell of them."""
        thread = plan.head.thread
        if not plan.rows:
            return plan, []
        assert thread is not None
        start = self._subjects.rows(key, thread.generation)
        _, most = self._find_origin()
        chunks = await self._find_chunks(key, start) if thread.has_chunks else {}
        found: list[Message] = []
        for rest, value in plan.rows.items():
            parts = [] if value is None else split_chunks(start + rest, value, min(_CHUNK, most))
            found += (Message(*each) for each in parts)
            if value is None:
                found.append(Message(start + rest, b"", ttl=_DELETED))
            for number in range(max(len(parts), 1), chunks.get(rest, 0)):
                found.append(Message(f"{start}{rest}.{number}", b"", ttl=_DELETED))
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

    async def _publish(self, key: ThreadKey, known: Known, messages: Sequence[Message], head: Head) -> Known:
        """Publish messages with a head. Raises Fenced, Indeterminate, and StoreError if nothing was published."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        published = [*messages, Message(self._subjects.head(key), encode_rows(head), known.sequence)]
        doubt: StoreError | None = None
        while True:
            try:
                return Known(await self._stream.publish_all(published), head)
            except WrongSequence as error:
                if doubt is None:
                    raise make_fenced(key) from error
                return await self._settle(key, known, head, doubt)
            except Lost as error:
                # To publish it again asks whether it was published: of the two, at most one has the expected sequence.
                doubt = error
                if loop.time() > deadline:
                    raise _make_indeterminate(key, error) from error
            except Unreachable as error:
                if loop.time() > deadline or isinstance(error, Disconnected):
                    raise (_refuse(key, error) if doubt is None else _make_indeterminate(key, doubt)) from error
            except (ApiError, NotPermitted) as error:
                raise (_refuse(key, error) if doubt is None else _make_indeterminate(key, doubt)) from error
            await asyncio.sleep(_PUBLISH_AGAIN)

    async def _settle(self, key: ThreadKey, known: Known, head: Head, doubt: StoreError) -> Known:
        """Find out whether a write is stored whose answer was lost; it cannot be stored later."""
        try:
            now = await read_head(self._stream, self._subjects, key)
        except StoreError:
            now = None
        if now is not None:
            if now.head.fence == head.fence and now.head.writes == head.writes:
                return Known(now.sequence, head)
            # The next owner has kept how many writes there were.
            if now.head.former == head.fence:
                if now.head.begins_at == known.head.writes:
                    raise make_fenced(key)
                if now.head.begins_at == head.writes:
                    return Known(0, head)
        raise _make_indeterminate(key, doubt)

    async def _write_in_steps(self, key: ThreadKey, known: Known, messages: Sequence[Message], head: Head) -> Known:
        """Write more messages than are published as one: first as values of a few, from which they can be made."""
        assert head.thread is not None
        start = self._subjects.rows(key, head.thread.generation)
        _, most = self._find_origin()
        parts: list[list[tuple[str, bytes]]] = [[]]
        size = 0
        for message in messages:
            size += len(message.data) + len(message.subject)
            if size > min(_CHUNK, most) and parts[-1]:
                parts.append([])
                size = len(message.data)
            parts[-1].append((message.subject[len(start) :], message.data))
        if len(parts) >= MOST_MESSAGES:
            raise StoreError(f"{key} could not be written: the write is too large")
        thread = msgspec.structs.replace(head.thread, unfinished=len(parts))
        first = msgspec.structs.replace(head, thread=thread)
        steps = [Message(f"{start}p.{number}", encode_rows(part)) for number, part in enumerate(parts)]
        after = await self._publish(key, known, steps, first)
        # It is durable. If this fails, the next owner finishes it.
        try:
            return await self._finish(after)
        except StoreError:
            self.heads.pop(key, None)
            log.warning("a large write of %s is stored, and finished when the thread is loaded", key)
            return after

    async def _finish(self, known: Known) -> Known:
        """Give the rows of a large write their own subjects. Raises StoreError."""
        head, key = known.head, known.head.key
        assert head.thread is not None
        start = self._subjects.rows(key, head.thread.generation)
        steps = [f"{start}p.{number}" for number in range(head.thread.unfinished)]
        messages: list[Message] = []
        for stored in await self._stream.last(steps):
            # Without data, the rows have their own subjects already.
            for rest, data in (
                () if not stored.data else msgspec.msgpack.decode(stored.data, type=list[tuple[str, bytes]])
            ):
                messages.append(Message(start + rest, data, ttl=None if data else _DELETED))
        messages += (Message(step, b"", ttl=_DELETED) for step in steps)
        thread = msgspec.structs.replace(head.thread, unfinished=0)
        room = MOST_MESSAGES - 1
        for begin in range(0, len(messages), room):
            is_last = begin + room >= len(messages)
            now = msgspec.structs.replace(head, writes=known.head.writes + 1, thread=thread if is_last else head.thread)
            known = await self._publish(key, known, messages[begin : begin + room], now)
        return known

    async def _rest(self, deadline: float, error: StoreError) -> None:
        """Wait before something is done again. Raises the error if that has been done for too long."""
        if asyncio.get_running_loop().time() > deadline or isinstance(error, Disconnected):
            raise error
        await asyncio.sleep(_PUBLISH_AGAIN)


def _make_indeterminate(key: ThreadKey, cause: Exception) -> Indeterminate:
    return make_indeterminate(key, cause, str(cause))


def _refuse(key: ThreadKey, cause: Exception) -> StoreError:
    """Return the error of a write that is known not to be stored."""
    is_odd = isinstance(cause, UnicodeEncodeError)
    why = "UTF-8 has no form for half of a surrogate pair" if is_odd else str(cause)
    return make_refusal(key, cause, why, is_unreachable=isinstance(cause, Unreachable))
