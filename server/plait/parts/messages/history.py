"""Reads the messages of a thread: the stored ones, with the staged changes of a run."""

import bisect
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from plait.errors import CorruptThread
from plait.parts.messages.frames import Missed
from plait.parts.messages.message import (
    KEPT,
    LOG,
    Message,
    Outline,
    decode_message,
    decode_outline,
    history_key,
    id_key,
    line_key,
    measure_message,
    piece_key,
    read_id,
    read_position,
)
from plait.parts.messages.state import LostStream, State
from plait.parts.messages.tree import END, WHOLE, Span, is_within
from plait.state.thread_records import Records
from plait.store.thread_rows import Record, RecordRange
from plait_schemas.codec import NOT_JSON, decode_json

__all__ = ["History", "Order"]

T = TypeVar("T")

Order = Literal["asc", "desc"]
"""Oldest or newest first. Without an order, the newest messages are returned, the oldest of them first."""

# Maximum number and bytes of records that are read at once.
_PAGE: Final = 500
_PAGE_BYTES: Final = 1 << 20
# A client that has missed more bytes of messages reads the newest ones instead.
_MOST_MISSED: Final = 1 << 20
_NOTHING: Final[Mapping[int, Message]] = {}

_decode_text: Final = msgspec.json.Decoder(str).decode


class Streaming(Protocol):
    """The writer of a message that is streaming."""

    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]] | None: ...


class History:
    """Reads the messages of one thread; those at the positions in `streams` are being written."""

    def __init__(self, records: Records, part: str, streams: Mapping[int, Streaming]) -> None:
        self._records = records
        self._part = part
        self._streams = streams

    async def find(self, id: str) -> Message | None:
        """Return a message of the history by its id. Raises StoreError."""
        if (position := read_id(id)) and (found := await self.at(position)) is not None and found.id == id:
            return found
        data = await self._records.read(self._part, id_key(id))  # The message has moved, or its id has no position.
        return None if data is None else await self.at(int(data))

    async def at(self, position: int) -> Message | None:
        """Return the message at a position. Raises StoreError."""
        found = await self.read_stream(position)
        if found is None:
            return None
        message = found.message
        if message.status != "streaming":
            return message
        if (stream := self._streams.get(position)) is None:
            return replace(message, status="failed", taken=())  # The writer has ended before the message was complete.
        return replace(message, tool_calls=stream.tool_calls)

    async def read_stream(self, position: int) -> LostStream | None:
        """Return the message at a position with the pieces of its text, if it is streaming. Raises StoreError."""
        key = history_key(position)
        data = await self._records.read(self._part, key)
        while data is not None:
            (message,) = self._decode(decode_message, data)
            if message.status != "streaming":
                return LostStream(message, ())
            pieces, after = list[Record](), ""
            while page := await self._records.list(RecordRange(self._part, prefix=piece_key(position), after=after)):
                pieces += page
                after = page[-1].key
            before, data = data, await self._records.read(self._part, key)
            if data == before:  # Otherwise the pieces may have been replaced while they were read.
                texts = [message.content or "", *self._decode(_decode_text, *(each.value or b"" for each in pieces))]
                return LostStream(replace(message, content="".join(texts)), [each.key for each in pieces])
        return None

    async def pages(
        self,
        *,
        reverse: bool,
        after: int = 0,
        before: int = END,
        path: Sequence[Span] = WHOLE,
        count: int = _PAGE,
        staged: Mapping[int, Message] = _NOTHING,
        removed: Collection[str] = (),
    ) -> AsyncIterator[list[Message]]:
        """Yield the messages of a path between two positions in batches, the first with about `count`.

        Messages of `staged` replace the stored ones at their positions, and messages of `removed` are left out.
        """
        for low, high in reversed(path) if reverse else path:
            bounds = max(after, low), min(before, high + 1)
            if bounds[0] + 1 < bounds[1]:
                pages = self._pages(*bounds, count, is_reverse=reverse, staged=staged, removed=removed)
                async for page in pages:
                    yield page
                    count = max(count - len(page), 1)

    async def outlines(self, path: Sequence[Span], *, after: int) -> AsyncIterator[list[Outline]]:
        """Yield the outlines of the messages of a path after a position, in batches. Raises StoreError."""
        for low, high in path:
            at = max(after, low)
            while at < high:
                found = await self._list(at, high + 1, _PAGE, is_reverse=False)
                yield self._decode(decode_outline, *(each.value or b"" for each in found))
                at = high if _is_end(found, _PAGE) else read_position(found[-1].key)

    async def _pages(
        self,
        after: int,
        before: int,
        count: int,
        *,
        is_reverse: bool,
        staged: Mapping[int, Message],
        removed: Collection[str],
    ) -> AsyncIterator[list[Message]]:
        places = sorted(position for position in staged if after < position < before)
        while True:
            limit = max(1, min(count, _PAGE))
            found = await self._list(after, before, limit, is_reverse=is_reverse)
            is_end = _is_end(found, limit)
            messages = self._decode(decode_message, *(each.value or b"" for each in found))
            if any(each.status == "streaming" for each in messages):
                read = [await self.at(each.position) if each.status == "streaming" else each for each in messages]
                messages = [each for each in read if each is not None]
            if found:
                last = read_position(found[-1].key)
                after, before = (after, last) if is_reverse else (last, before)
            # The staged messages up to the last one that was read; at the end, all of the rest.
            cut = bisect.bisect_left(places, before) if is_reverse else bisect.bisect_right(places, after)
            if is_end:
                cut = 0 if is_reverse else len(places)
            now, places = (places[cut:], places[:cut]) if is_reverse else (places[:cut], places[cut:])
            if now or removed:
                merged = {each.position: each for each in messages if each.id not in removed}
                merged.update((position, staged[position]) for position in now)
                messages = [merged[position] for position in sorted(merged, reverse=is_reverse)]
            if messages:
                yield messages
            if is_end:
                return
            count = _PAGE

    async def since(self, state: State, revision: int) -> Missed | None:
        """Return what has changed after a revision, up to that of a durable state; None if it is too much."""
        head = state.head
        if revision < 0 or not 0 <= head.revision - revision <= KEPT:
            return None
        pending = [each for each in state.queue if each.revision > revision and not each.silent]
        size, found, removed = 0, dict[int, Message](), set[str]()
        async for message in self._read_after(head.last, revision, state.path):
            if message.revision <= head.revision and not message.silent:
                size += measure_message(message)
                found[message.position] = message
            if size > _MOST_MISSED:
                return None
        async for number, what in self._read_log(revision):
            if what is None:
                return None
            if number > head.revision:
                continue
            if isinstance(what, str):
                removed.add(what)
            elif what not in found and is_within(state.path, what) and (changed := await self.at(what)) is not None:
                size += measure_message(changed)
                found[what] = changed
            if size > _MOST_MISSED:
                return None
        for place in head.streams:
            if not place.silent and place.position not in found and is_within(state.path, place.position):
                streaming = await self.at(place.position)
                found.update({} if streaming is None else {place.position: streaming})
        items = [*(found[position] for position in sorted(found)), *pending]
        return Missed(head.revision, items, removed.difference(each.id for each in items))

    # Inside

    async def _list(self, after: int, before: int, limit: int, *, is_reverse: bool) -> Sequence[Record]:
        """Return the records of the messages between two positions."""
        keys = {"after": history_key(after), "before": history_key(before)}
        return await self._records.list(
            RecordRange(self._part, prefix="m/", **keys, reverse=is_reverse, limit=limit, size=_PAGE_BYTES)
        )

    async def _read_after(self, last: int, revision: int, path: Sequence[Span]) -> AsyncIterator[Message]:
        """Yield the messages that were added at the end after a revision, newest first."""
        async for messages in self.pages(reverse=True, before=last + 1, path=path):
            for message in messages:
                if message.revision > revision:
                    yield message
                elif message.revision:
                    return

    async def _read_log(self, revision: int) -> AsyncIterator[tuple[int, int | str | None]]:
        """Yield the lines of the log after a revision, newest first: the written position or the removed id.

        None comes last if later lines may have been dropped.
        """
        before: str | None = None
        while page := await self._records.list(
            RecordRange(self._part, prefix=LOG, before=before, reverse=True, limit=KEPT // 4)
        ):
            for record in page:
                number, what = decode_json(record.value or b"")
                if number <= revision:
                    return
                yield number, what
            before = page[-1].key
        if before not in (None, line_key(1)):
            yield revision, None

    def _decode(self, decode: Callable[[bytes], T], *found: bytes) -> list[T]:
        try:
            return [decode(each) for each in found]
        except NOT_JSON as error:
            raise CorruptThread(f"the {self._part} of a thread are damaged") from error


def _is_end(found: Sequence[Record], limit: int) -> bool:
    """Whether no record follows those that were read with a limit."""
    return len(found) < limit and sum(len(each.value or b"") for each in found) < _PAGE_BYTES
