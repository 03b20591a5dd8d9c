"""Tells a client of the parts that it has opened: pages, and each change of them. No I/O but reading the thread."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import Final, Protocol

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.per_actor import PerActor
from plait.actor.transport import Frame, Transport
from plait.errors import CorruptThread, Forbidden, NotFound, PlaitError, StoreError, TooMany, Unavailable
from plait.instruments.protocol import tell_limit
from plait.parts.messages.frames import ChunkFrame, DeleteFrame, EndFrame, InsertFrame, TakeFrame, UpdateFrame
from plait.parts.messages.frames import Frame as Change
from plait.parts.messages.message import Message
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait.session.native.follower import Follower
from plait_schemas import messages
from plait_schemas.codec import encode_json
from plait_schemas.frames import encode
from plait_schemas.messages import Open

__all__ = ["OpenedParts", "find_messages"]

# The maximum number of messages of a page, besides pending ones, and their maximum size.
_MOST_ON_PAGE: Final = 500
_MOST_BYTES: Final = 1 << 20
# The maximum number of pages of one connection that wait to be read.
_WAITING: Final = 8
_PAUSE: Final = 1.0


def find_messages(actor: Actor, part: str) -> ThreadMessages:
    """Return the messages of a thread that its clients may see. Raises NotFound."""
    found = getattr_static(actor.kind.cls, part, None)
    if not isinstance(found, Messages) or not found.is_live:
        raise NotFound(f"{actor.key.kind} has no part {part!r} that clients can open")
    return found.of(actor)


class PartViewer(Protocol):
    """Is told of the changes of a part."""

    def deliver(self, part: str, revision: int, frames: Sequence[Frame]) -> None:
        """Handle changes up to `revision`."""
        ...


class PartFeed:
    """Encodes the changes of one part of a thread once for all who view it."""

    __slots__ = ("_messages", "_part", "_stop", "_viewers")

    def __init__(self, part: str, messages: ThreadMessages) -> None:
        self._part = part
        self._messages = messages
        self._viewers: dict[PartViewer, None] = {}
        self._stop: Callable[[], None] | None = None

    def add(self, viewer: PartViewer) -> None:
        """Tell a viewer of changes from now on."""
        self._viewers[viewer] = None
        if self._stop is None:
            self._stop = self._messages.feed.watch(self._hand_on)

    def remove(self, viewer: PartViewer) -> None:
        """Tell a viewer of no more changes."""
        self._viewers.pop(viewer, None)
        if not self._viewers and self._stop is not None:
            self._stop()
            self._stop = None

    def _hand_on(self, changes: Sequence[Change]) -> None:
        frames = [Frame(_encode_change(self._part, change)) for change in changes]
        for viewer in tuple(self._viewers):
            viewer.deliver(self._part, changes[-1].revision, frames)


# The feeds of a thread, by the names of its parts.
_feeds: Final = PerActor[Actor, dict[str, PartFeed]](lambda _: {})


class OpenedParts:
    """The parts that one connection has opened."""

    __slots__ = ("_actor", "_connection", "_feeds", "_follower", "_missed", "_task", "_transport", "_waiting")

    def __init__(self, actor: Actor, connection: Connection, transport: Transport, follower: Follower) -> None:
        self._actor = actor
        self._connection = connection
        self._transport = transport
        # Sends the changes of the state.
        self._follower = follower
        self._feeds: dict[str, PartFeed] = {}
        # The parts with changes that a slow reader has missed, and their last revisions.
        self._missed: dict[str, int] = {}
        # The requests for pages, and the task that answers them.
        self._waiting = deque[Open]()
        self._task: asyncio.Task[None] | None = None

    def open(self, frame: Open) -> None:
        """Answer with a page, and tell of the part's changes from now on, unless an older page is asked for."""
        try:
            if not self._connection.rights.may_open:
                raise Forbidden("Forbidden")
            found = find_messages(self._actor, frame.part)
            if len(self._waiting) >= _WAITING:
                raise TooMany(f"{_WAITING} pages wait to be read; try again later", retry_after=_PAUSE)
        except PlaitError as error:
            self.refuse(frame, error)
            return
        if frame.before is None:
            self._follow(frame.part, found)
        self._waiting.append(frame)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._answer(), name="plait pages")

    def close(self, part: str) -> None:
        """Tell no more of a part."""
        self._missed.pop(part, None)
        if (feed := self._feeds.pop(part, None)) is not None:
            feed.remove(self)

    def leave(self) -> None:
        """Tell nothing more, as the socket is closed."""
        for part in tuple(self._feeds):
            self.close(part)
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    def refuse(self, frame: Open, error: PlaitError, retry_after: float | None = None) -> None:
        """Answer that a part, or a page of it, cannot be opened."""
        tell_limit(self._actor.instruments, error)
        if retry_after is None and isinstance(error, TooMany):
            retry_after = error.retry_after
        elif isinstance(error, StoreError | Unavailable) and not isinstance(error, CorruptThread):
            retry_after = _PAUSE
        answer = messages.Unopened(frame.part, error.code, str(error), frame.before, retry_after)
        data = Frame(encode(answer))
        self._actor.state.after(lambda _: self._follower.send(data))

    def deliver(self, part: str, revision: int, frames: Sequence[Frame]) -> None:
        """Send changes of a part; a slow reader is told later that it has missed some."""
        if not self._connection.rights.may_open:
            self._shut(part)
            return
        if part in self._missed or self._follower.is_slow:
            self._missed[part] = revision
            return
        for frame in frames:
            self._transport.send(frame)

    def drained(self) -> None:
        """Tell what was missed, as the peer has caught up."""
        while self._missed and not self._follower.is_slow:
            part, revision = self._missed.popitem()
            self._transport.send(Frame(encode(messages.Part(part, revision, "missed"))))

    # Inside

    def _follow(self, part: str, found: ThreadMessages) -> None:
        self._missed.pop(part, None)  # The page has it.
        if part not in self._feeds:
            feeds = _feeds.of(self._actor)
            if part not in feeds:
                feeds[part] = PartFeed(part, found)
            self._feeds[part] = feeds[part]
            feeds[part].add(self)

    def _shut(self, part: str) -> None:
        """Tell no more of a part, and say so once, as the connection has lost the right to open it."""
        if part in self._feeds:
            self.close(part)
            self.refuse(Open(part), Forbidden("Forbidden"))

    async def _answer(self) -> None:
        """Send the pages that wait, one after the other."""
        while self._waiting:
            await self._transport.drain()
            frame = self._waiting.popleft()
            try:
                page = await self._read(frame)
            except Exception as error:  # Not every store is plait's own.
                self.refuse(frame, self._actor.explain(error, self._connection))
            else:
                if self._connection.rights.may_open:
                    self._follower.send(Frame(page))
                elif frame.before is None:
                    self._shut(frame.part)
                else:
                    self.refuse(frame, Forbidden("Forbidden"))
        self._task = None

    async def _read(self, frame: Open) -> bytes:
        found = find_messages(self._actor, frame.part)
        if frame.before is None and frame.since is not None:
            missed = await found.feed.since(frame.since)
            if missed is not None:
                items, removed = _gather(missed.frames)
                return _encode_page(messages.Page(frame.part, missed.revision, removed=removed), items)
        limit = min(max(frame.limit, 1), _MOST_ON_PAGE)
        revision, page = await found.feed.newest(limit, frame.before, size=_MOST_BYTES)
        answer = messages.Page(
            frame.part, revision, reset=frame.before is None, more=page.has_more, before=frame.before
        )
        return _encode_page(answer, page.messages)


# Frames


def _gather(frames: Sequence[InsertFrame | UpdateFrame | DeleteFrame]) -> tuple[Sequence[Message], list[str]]:
    """Return the messages that changes have left, and the ids of those that were removed."""
    items, removed = dict[str, Message](), dict[str, None]()
    for each in frames:
        if isinstance(each, DeleteFrame):
            items.pop(each.id, None)
            removed[each.id] = None
        else:
            removed.pop(each.message.id, None)
            items[each.message.id] = each.message
    return sorted(items.values(), key=_place), [*removed]


def _place(message: Message) -> tuple[bool, int]:
    return message.status == "pending", message.position


def _encode_item(message: Message) -> bytes:
    # Clients know revisions from frames alone, and senders from the metadata that plait or the author gives.
    is_plain = not message.revision and message.sender is None
    return encode_json(message if is_plain else replace(message, revision=0, sender=None))


def _encode_page(page: messages.Page, items: Sequence[Message]) -> bytes:
    data = encode(page)
    shown = [_encode_item(each) for each in items if not each.silent]
    return b'%b,"items":[%b]}' % (data[:-1], b",".join(shown)) if shown else data


def _encode_change(part: str, change: Change) -> bytes:
    match change:
        case InsertFrame(revision, message):
            data = encode(messages.Part(part, revision, "insert"))
        case UpdateFrame(revision, message):
            data = encode(messages.Part(part, revision, "update"))
        case DeleteFrame(revision, id):
            return encode(messages.Part(part, revision, "delete", id=id))
        case TakeFrame(revision, taken):
            return encode(messages.Part(part, revision, "take", taken=dict(taken)))
        case ChunkFrame(revision, id, _, at, text):
            return encode(messages.Part(part, revision, "chunk", id=id, at=at, text=text))
        case EndFrame(revision, id, status):
            return encode(messages.Part(part, revision, "end", id=id, status=status))
    return b'%b,"message":%b}' % (data[:-1], _encode_item(message))
