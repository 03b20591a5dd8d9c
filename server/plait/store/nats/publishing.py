"""Publishes the head of a thread, as its owner: to claim it, and with the messages of a write. Settles lost answers."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from plait.clock import read_wall_clock
from plait.errors import Indeterminate, StoreError
from plait.store.nats.api import ApiError, Disconnected, Lost, NotPermitted, Publication, WrongSequence
from plait.store.nats.contents import read_head
from plait.store.nats.jetstream import MOST_MESSAGES, PATIENCE, Deadline, JetStream
from plait.store.nats.layout import CHUNK, DELETED, Known, Subjects, ThreadHead, encode_rows
from plait.store.nats.watch import Watch
from plait.store.outcomes import Unreachable, describe, make_fenced, make_indeterminate, make_refusal
from plait.store.thread_rows import ThreadKey

__all__ = ["Publisher", "refuse"]

log = logging.getLogger("plait.store")

# Seconds after which something is published again.
_PUBLISH_AGAIN: Final = 0.05


class Publisher:
    """Claims threads, and publishes all messages of a write or none, unless another owner has claimed the thread."""

    def __init__(self, stream: JetStream, subjects: Subjects, watch: Watch) -> None:
        self._stream = stream
        self._subjects = subjects
        self._watch = watch
        self._last_fence = 0

    async def claim(self, key: ThreadKey, known: Known | None) -> Known:
        """Become the owner of a thread whose head may be `known`, and return its head. Raises StoreError."""
        deadline = Deadline(PATIENCE)
        token, is_in_doubt = 0, False
        while True:
            try:
                if not is_in_doubt or known is None or known.head.fence != token:  # Not only the answer was lost.
                    is_in_doubt = False
                    before = ThreadHead(*key, 0, "") if known is None else known.head
                    token = self._last_fence = max(before.fence + 1, self._last_fence + 1, read_wall_clock())
                    head = self._take(before, token)
                    message = Publication(
                        self._subjects.head(key), encode_rows(head), 0 if known is None else known.sequence
                    )
                    known = Known(await self._stream.publish(message), head)
                if known.head.origin == self._watch.origin:
                    break
                # The stream turned out to be another one before this was published: the epoch must be, too.
                is_in_doubt = False
            except WrongSequence:
                known = await read_head(self._stream, self._subjects, key)
            except Lost as error:
                is_in_doubt = True
                await deadline.rest(error, _PUBLISH_AGAIN)
                known = await read_head(self._stream, self._subjects, key)
            except Unreachable as error:
                await deadline.rest(error, _PUBLISH_AGAIN)
        if known.head.thread is not None and known.head.thread.unfinished:
            known = await self.finish(known)
        return known

    async def publish(self, known: Known, messages: Sequence[Publication], head: ThreadHead) -> Known:
        """Publish messages with the next head, and return that. A large write that could not be finished is durable.

        Raises Fenced, Indeterminate, and StoreError if nothing was published.
        """
        if len(messages) < MOST_MESSAGES:
            return await self._publish(known, messages, head)
        return await self._publish_in_steps(known, messages, head)

    async def finish(self, known: Known) -> Known:
        """Give the rows of a large write their own subjects. Raises StoreError."""
        head, key = known.head, known.head.key
        assert head.thread is not None
        start = self._subjects.rows(key, head.thread.generation)
        steps = [f"{start}p.{number}" for number in range(head.thread.unfinished)]
        messages: list[Publication] = []
        for stored in await self._stream.last(steps):
            # Without data, the rows have their own subjects already.
            for rest, data in (
                () if not stored.data else msgspec.msgpack.decode(stored.data, type=list[tuple[str, bytes]])
            ):
                messages.append(Publication(start + rest, data, ttl=None if data else DELETED))
        messages += (Publication(step, b"", ttl=DELETED) for step in steps)
        thread = msgspec.structs.replace(head.thread, unfinished=0)
        room = MOST_MESSAGES - 1
        for begin in range(0, len(messages), room):
            is_last = begin + room >= len(messages)
            now = msgspec.structs.replace(head, writes=known.head.writes + 1, thread=thread if is_last else head.thread)
            known = await self._publish(known, messages[begin : begin + room], now)
        return known

    # Inside

    def _take(self, head: ThreadHead, fence: int) -> ThreadHead:
        """Return the head of a new owner."""
        origin, thread = self._watch.origin, head.thread
        if thread is not None and head.origin != origin:
            # Clients may have seen changes that are lost.
            thread = msgspec.structs.replace(thread, epoch=secrets.token_hex(8))
        return msgspec.structs.replace(
            head, fence=fence, origin=origin, former=head.fence, begins_at=head.writes, thread=thread
        )

    async def _publish(self, known: Known, messages: Sequence[Publication], head: ThreadHead) -> Known:
        key = head.key
        deadline = Deadline(PATIENCE)
        published = [*messages, Publication(self._subjects.head(key), encode_rows(head), known.sequence)]
        doubt: StoreError | None = None
        while True:
            try:
                return Known(await self._stream.publish_all(published), head)
            except WrongSequence as error:
                if doubt is None:
                    raise make_fenced(key) from error
                return await self._settle(known, head, doubt)
            except Lost as error:
                # To publish it again asks whether it was published: of the two, at most one has the expected sequence.
                doubt = error
                if deadline.is_over:
                    raise _make_indeterminate(key, error) from error
            except Unreachable as error:
                if deadline.is_over or isinstance(error, Disconnected):
                    raise (refuse(key, error) if doubt is None else _make_indeterminate(key, doubt)) from error
            except (ApiError, NotPermitted) as error:
                raise (refuse(key, error) if doubt is None else _make_indeterminate(key, doubt)) from error
            await asyncio.sleep(_PUBLISH_AGAIN)

    async def _settle(self, known: Known, head: ThreadHead, doubt: StoreError) -> Known:
        """Find out whether a write is stored whose answer was lost; it cannot be stored later."""
        key = head.key
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

    async def _publish_in_steps(self, known: Known, messages: Sequence[Publication], head: ThreadHead) -> Known:
        """Publish more messages than are one publication: first as values of a few, from which they can be made."""
        assert head.thread is not None
        key, most = head.key, min(CHUNK, self._stream.max_payload)
        start = self._subjects.rows(key, head.thread.generation)
        parts: list[list[tuple[str, bytes]]] = [[]]
        size = 0
        for message in messages:
            size += len(message.data) + len(message.subject)
            if size > most and parts[-1]:
                parts.append([])
                size = len(message.data)
            parts[-1].append((message.subject[len(start) :], message.data))
        if len(parts) >= MOST_MESSAGES:
            raise StoreError(f"{key} could not be written: the write is too large")
        thread = msgspec.structs.replace(head.thread, unfinished=len(parts))
        first = msgspec.structs.replace(head, thread=thread)
        steps = [Publication(f"{start}p.{number}", encode_rows(part)) for number, part in enumerate(parts)]
        after = await self._publish(known, steps, first)
        # It is durable. If this fails, the next owner finishes it.
        try:
            return await self.finish(after)
        except StoreError:
            log.warning("a large write of %s is stored, and finished when the thread is loaded", key)
            return after


def _make_indeterminate(key: ThreadKey, cause: Exception) -> Indeterminate:
    return make_indeterminate(key, cause, str(cause))


def refuse(key: ThreadKey, cause: Exception) -> StoreError:
    """Return the error of a write that is known not to be stored."""
    return make_refusal(key, cause, describe(cause))
