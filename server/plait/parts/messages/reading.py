"""Reads messages: for the calling code with the staged changes of its run, and for clients only durable ones."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.errors import Conflict
from plait.parts.messages.changes import Changes
from plait.parts.messages.frames import Frame, Missed
from plait.parts.messages.history import Order
from plait.parts.messages.message import Message, MessageSubagent, Page, make_thoughts_id, measure_message
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.model_history import OpenCalls, is_decisive, list_open_calls
from plait.parts.messages.overview import is_told
from plait.parts.messages.state import State
from plait.parts.part import find_role

__all__ = ["Feed", "MessageListing", "MessageReader", "add_subagent"]

Viewer = Callable[[list[Frame]], None]

_ANY_DEPTH = 1 << 30
# The messages that are read at first where it is not known how many are needed.
_BATCH = 50
# The newest messages, in which a call is looked for.
_SEARCHED = 1000


class MessageReader:
    """Finds messages, with the changes of the calling run."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer

    def find_untaken(self) -> list[Message]:
        """Return the messages for the agent that no run has taken, in order."""
        state, taken = self._writer.find_staged() or self._writer.state, self._writer.taken
        untaken = [each for each in state.queue if each.position not in taken]
        return untaken if state.asked_again is None else [state.asked_again, *untaken]

    async def find(self, id: str) -> Message | None:
        """Return a message by its id; None if there is none. Raises StoreError."""
        staged = self._writer.find_staged()
        if staged is not None and (id in staged.removed or id in staged.written):
            return staged.written.get(id)
        pending = (each for each in (staged or self._writer.state).queue if each.id == id)
        return next(pending, None) or await self._writer.history.find(id)

    async def find_present(self, id: str) -> tuple[Message | None, list[Message], bool, Message | None]:
        """Return a message, the results of its calls with its thoughts, whether a call is open, and the last message.

        They are of one moment; the last message without this one is found only if this one is the last. Raises Conflict
        for a message that is being written, and StoreError.
        """
        while True:
            edits, results, is_open, last = self._writer.edits, list[Message](), False, None
            message = await self.find(id)
            if message is not None and message.tool_calls:
                results = await self._find_results(message)
                places = await self.find_open_calls()
                is_open = any(call.get("id") in message.tool_call_ids for place in places for call in place.calls)
            if message is not None and message.role != "tool":
                thoughts = await self.find(make_thoughts_id(id))
                results += [] if thoughts is None else [thoughts]
            if message is not None and message.status == "streaming":
                raise Conflict(f"the message {id} is being written")
            staged = self._writer.find_staged()
            if message is not None and self._writer.has_card:
                overview = self._writer.state.head if staged is None else staged.make_overview()
                if overview.newest is not None and overview.newest.id == id:
                    last = await self.find_last(message.position)
            if edits == self._writer.edits:
                return message, results, is_open, last

    async def find_last(self, before: int) -> Message | None:
        """Return the last told message of the history before a position. Raises StoreError."""
        listing = MessageListing(self._writer, self._writer.find_staged(), statuses="cf", is_silent=False, max_depth=0)
        async for messages in listing.walk(is_reverse=True, before=before, count=1):
            for each in messages:
                if is_told(each):
                    return each
        return None

    async def find_open_calls(self) -> Sequence[OpenCalls]:
        """Return the calls of tools that have no result; reads back to the deciding message. Raises StoreError."""
        listing = MessageListing(
            self._writer, self._writer.find_staged(), statuses="c", is_silent=True, max_depth=_ANY_DEPTH
        )
        found = list[Message]()
        async for messages in listing.walk(is_reverse=True):
            for each in messages:
                found.append(each)
                if not each.depth and is_decisive(each):
                    return list_open_calls(found[::-1])
        return list_open_calls(found[::-1])

    async def find_calls(self, ids: Collection[str]) -> Sequence[tuple[Message, Mapping[str, Any]]]:
        """Return calls of tools in the newest messages by their ids, each after its message, in order."""
        listing = MessageListing(self._writer, None, statuses="c", is_silent=True, max_depth=_ANY_DEPTH)
        found, missing, count = list[tuple[Message, Mapping[str, Any]]](), {*ids}, 0
        if not missing:
            return found
        async for messages in listing.walk(is_reverse=True):
            for message in messages:
                for call in reversed(message.tool_calls or ()):
                    if (id := call.get("id")) in missing:
                        missing.remove(id)
                        found.append((message, call))
            count += len(messages)
            if not missing or count >= _SEARCHED:
                break
        return found[::-1]

    async def find_open_calls_now(self) -> Sequence[OpenCalls]:
        """Return the calls that are open at the moment of the return, so that they can be answered at once."""
        writer = self._writer
        while True:
            edits, last = writer.edits, writer.state.head.last
            found = await self.find_open_calls()
            if (edits, last) == (writer.edits, writer.state.head.last):
                return found

    async def _find_results(self, message: Message) -> list[Message]:
        wanted, staged = message.tool_call_ids, self._writer.find_staged()
        pages = self._writer.history.pages(
            reverse=False,
            after=message.position,
            staged={} if staged is None else staged.rows,
            removed=() if staged is None else staged.removed,
        )
        return [each async for page in pages for each in page if each.tool_call_id in wanted]


def add_subagent(actor: Actor, message: Message) -> Message:
    """Return a message of a child with what the family of the thread knows of that child."""
    family = find_role(actor.kind.cls, "family")
    child = None if family is None else family.find_child(actor, message.subagent_id or "")
    return (
        message if child is None else replace(message, subagent=convert(child, MessageSubagent, from_attributes=True))
    )


class MessageListing:
    """The messages with some statuses, given by their first letters, with the `staged` changes of a run.

    The pending messages are those of `state`, or else of the writer's last state, which may not be durable.
    """

    def __init__(
        self,
        writer: MessageWriter,
        staged: Changes | None,
        *,
        statuses: str,
        is_silent: bool,
        max_depth: int,
        state: State | None = None,
    ) -> None:
        self._writer = writer
        # The messages at one moment; a message that moves to the history during the read is listed as pending.
        self._state = state or writer.state
        self._path = (staged or self._state).path
        # The run has positions that are not stored, and others may store positions during the read.
        self._end = (self._state.head.last if staged is None else writer.numbers.position) + 1
        self._staged = staged
        self._statuses = statuses
        self._is_silent = is_silent
        self._max_depth = max_depth

    async def read(
        self,
        limit: int,
        offset: int,
        order: Order | None,
        *,
        after: int | None = None,
        before: int | None = None,
        size: int | None = None,
    ) -> Page:
        """Return a page, of `size` bytes at most or of one message. Raises ValueError and StoreError."""
        if order not in (None, "asc", "desc"):
            raise ValueError(f'order must be "asc", "desc" or None, not {order!r}')
        for name, value in (("limit", limit), ("offset", offset), ("max_depth", self._max_depth)):
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, not {value!r}")
        end = offset + limit
        found: list[Message] = []
        async for messages in self.walk(is_reverse=order != "asc", after=after, before=before, count=end + 1):
            found += messages
            if size is not None:
                found, end = _cut(found, end, size)
            if len(found) > end:
                break
        page = found[offset:end]
        return Page(page[::-1] if order is None else page, self._count(), len(found) > end)

    async def walk(
        self, *, is_reverse: bool, after: int | None = None, before: int | None = None, count: int = _BATCH
    ) -> AsyncIterator[list[Message]]:
        """Yield the matching messages in batches, the first of about `count`. Raises StoreError."""
        pending = self._select((self._staged or self._state).queue) if before is None else []
        if is_reverse and pending:
            yield pending[::-1]
        staged = self._staged
        pages = self._writer.history.pages(
            reverse=is_reverse,
            after=after or 0,
            before=self._end if before is None else min(before, self._end),
            path=self._path,
            count=count - (len(pending) if is_reverse else 0),
            staged={} if staged is None else staged.rows,
            removed=() if staged is None else staged.removed,
        )
        known = {each.id for each in pending}
        async for messages in pages:
            fitting = self._select(messages)
            if known:
                fitting = [each for each in fitting if each.id not in known]
            yield fitting
        if not is_reverse and pending:
            yield pending

    # Inside

    def _select(self, messages: Sequence[Message]) -> list[Message]:
        return [
            each
            for each in messages
            if (self._is_silent or not each.silent)
            and each.depth <= self._max_depth
            and each.status[0] in self._statuses
        ]

    def _count(self) -> int:
        """Return the number of matching messages."""
        counts = [self._state.head.counts]
        if self._staged is not None:
            counts.append(self._staged.records.counts)
        return sum(
            number
            for each in counts
            for key, number in each.items()
            if (self._is_silent or key[0] != "s") and key[1] in self._statuses and int(key[2:]) <= self._max_depth
        )


class Feed:
    """Sends the messages of one thread to clients, without silent ones.

    A client that joins calls `watch` first, and holds back frames until it has read the missed ones or the newest
    messages; it then drops held frames up to the revision of these, except chunks.
    """

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        # Whether the thread was stopped.
        self.is_closed = False

    @property
    def written_at(self) -> int:
        """The time of the last write since the thread woke, in microseconds since the epoch; 0 if there was none."""
        return self._writer.written_at

    def watch(self, viewer: Viewer) -> Callable[[], None]:
        """Call a function with the frames for clients, in order, when durable; return a function that ends this."""
        self._writer.viewers.append(viewer)
        return lambda: self._writer.viewers.remove(viewer)

    def watch_writes(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call a function when a write is durable, and when the thread is stopped; return a function that ends this."""
        self._writer.watchers.append(watcher)
        return lambda: self._writer.watchers.remove(watcher)

    def close(self) -> None:
        """Tell the watchers that the thread was stopped."""
        self.is_closed = True
        self._writer.tell_watchers()

    async def since(self, revision: int) -> Missed | None:
        """Return the frames after a revision; None if a client must begin with the newest messages."""
        return await self._writer.history.since(await self.find_durable(), revision)

    async def newest(self, limit: int, before: int | None = None, *, size: int | None = None) -> tuple[int, Page]:
        """Return the newest messages that clients may see, including nested ones, and their revision.

        Pending messages come in addition to `limit`, and to `size` in bytes.
        """
        state = await self.find_durable()
        listing = MessageListing(
            self._writer, None, statuses="cpsf", is_silent=False, max_depth=_ANY_DEPTH, state=state
        )
        if before is None:
            limit += len(state.queue)
            queued = sum(map(measure_message, state.queue))
            size = None if size is None else max(size, self._writer.actor.limits.record) + queued
        return state.head.revision, await listing.read(limit, 0, None, before=before, size=size)

    async def find_durable(self) -> State:
        """Return the state, when it is durable. Raises StoreError."""
        while True:
            state, losses = self._writer.state, self._writer.losses
            await self._writer.actor.state.wait_until_stored()
            if losses == self._writer.losses:
                return state


def _cut(found: list[Message], end: int, size: int) -> tuple[list[Message], int]:
    """Return messages up to `size` bytes and one more, and the number of them that fit."""
    for number, message in enumerate(found):
        size -= measure_message(message)
        if size < 0 and number > 0:
            return found[: number + 1], min(end, number)
    return found, end
