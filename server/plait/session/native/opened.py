"""Sends a client pages and changes of the parts that it has opened. No I/O but reading the thread."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import Final

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.per_actor import PerActor
from plait.actor.transport import Frame, Transport
from plait.errors import CorruptThread, Forbidden, PlaitError, StoreError, TooMany, Unavailable
from plait.instruments.protocol import tell_limit
from plait.parts.tasks.thread_tasks import Tasks
from plait.session.native.follower import Follower
from plait.session.native.live_messages import LiveMessages, find_messages
from plait.session.native.live_tasks import LiveTasks
from plait_schemas import messages
from plait_schemas.frames import encode
from plait_schemas.messages import Open

__all__ = ["OpenedParts"]

# The maximum number of pages of one connection that wait to be read.
_WAITING: Final = 8
_PAUSE: Final = 1.0


class PartFeed:
    """Encodes the changes of one part of a thread once for all viewers."""

    __slots__ = ("_part", "_stop", "_viewers", "live")

    def __init__(self, part: str, live: LiveMessages | LiveTasks) -> None:
        self._part = part
        self.live = live
        self._viewers: dict[OpenedParts, None] = {}
        self._stop: Callable[[], None] | None = None

    def add(self, viewer: "OpenedParts") -> None:
        """Send changes to a viewer from now on."""
        self._viewers[viewer] = None
        if self._stop is None:
            self._stop = self.live.watch(self._hand_on)

    def remove(self, viewer: "OpenedParts") -> None:
        """Send no more changes to a viewer."""
        self._viewers.pop(viewer, None)
        if not self._viewers and self._stop is not None:
            self._stop()
            self._stop = None

    def _hand_on(self, revision: int, frames: Sequence[Frame]) -> None:
        for viewer in tuple(self._viewers):
            viewer.deliver(self._part, revision, frames)


# The feeds of a thread, by the names of its parts.
_feeds: Final = PerActor[dict[str, PartFeed]](lambda _: {})


def _find_feed(actor: Actor, part: str) -> PartFeed:
    """Return the feed of a part that clients may see. Raises NotFound."""
    feeds = _feeds.of(actor)
    if part not in feeds:
        declared = getattr_static(actor.kind.cls, part, None)
        if isinstance(declared, Tasks) and declared.is_live:
            feeds[part] = PartFeed(part, LiveTasks(part, declared.of(actor)))
        else:
            feeds[part] = PartFeed(part, LiveMessages(part, find_messages(actor, part)))
    return feeds[part]


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
        self._waiting: deque[Open] = deque()
        self._task: asyncio.Task[None] | None = None

    def open(self, frame: Open) -> None:
        """Answer with a page; unless it is an older page, also send the part's changes from now on."""
        try:
            feed = _find_feed(self._actor, frame.part)
            if not feed.live.may_open(self._connection.rights):
                raise Forbidden("Forbidden")
            if len(self._waiting) >= _WAITING:
                raise TooMany(f"{_WAITING} pages wait to be read; try again later", retry_after=_PAUSE)
        except PlaitError as error:
            self.refuse(frame, error)
            return
        if frame.before is None:
            self._missed.pop(frame.part, None)  # The page contains the missed changes.
            if frame.part not in self._feeds:
                self._feeds[frame.part] = feed
                feed.add(self)
        self._waiting.append(frame)
        if self._task is None:
            self._task = asyncio.create_task(self._answer(), name="plait pages")

    def close(self, part: str) -> None:
        """Send nothing more about a part."""
        self._missed.pop(part, None)
        if (feed := self._feeds.pop(part, None)) is not None:
            feed.remove(self)

    def leave(self) -> None:
        """Send nothing more, as the socket is closed."""
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
        self._follower.send_later(messages.Unopened(frame.part, error.code, str(error), frame.before, retry_after))

    def deliver(self, part: str, revision: int, frames: Sequence[Frame]) -> None:
        """Send changes of a part; a slow reader learns later that it has missed some."""
        if not self._may_open(part):
            self._shut(part)
            return
        if part in self._missed or self._follower.is_slow:
            self._missed[part] = revision
            return
        for frame in frames:
            self._transport.send(frame)

    def drained(self) -> None:
        """Send the parts with missed changes, as the peer has caught up."""
        while self._missed and not self._follower.is_slow:
            part, revision = self._missed.popitem()
            self._transport.send(Frame(encode(messages.Part(part, revision, "missed"))))

    # Inside

    def _may_open(self, part: str) -> bool:
        return _find_feed(self._actor, part).live.may_open(self._connection.rights)

    def _shut(self, part: str) -> None:
        """Close a part and tell the client once, as the connection has lost the right to open it."""
        if part in self._feeds:
            self.close(part)
            self.refuse(Open(part), Forbidden("Forbidden"))

    async def _answer(self) -> None:
        """Send the waiting pages one after the other."""
        while self._waiting:
            await self._transport.drain()
            frame = self._waiting.popleft()
            try:
                page = await _find_feed(self._actor, frame.part).live.read(frame, self._connection.rights)
            except Exception as error:  # A store of the application may raise any exception.
                self.refuse(frame, self._actor.explain(error, self._connection))
            else:
                if self._may_open(frame.part):
                    self._follower.send(Frame(page))
                elif frame.before is None:
                    self._shut(frame.part)
                else:
                    self.refuse(frame, Forbidden("Forbidden"))
        self._task = None
