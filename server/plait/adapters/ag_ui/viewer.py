"""One viewer of the runs of a thread: its stream of server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Final

from ag_ui.core import RunErrorEvent
from starlette.requests import Request

from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.actor.outcome import make_resolver
from plait.actor.transport import Frame
from plait.adapters.ag_ui.event_feed import EventFeed, FeedChange, FeedRun, RunEvent
from plait.adapters.ag_ui.event_frames import Cursor, Opened, encode, encode_snapshot
from plait.adapters.ag_ui.event_run import EventRun
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.view import EVERYTHING
from plait.web.http.streamed import ResponseLines
from plait_schemas.codes import INTERNAL_ERROR

__all__ = ["RunViewer"]

# Seconds of silence after which a comment is sent, so that proxies keep the stream open.
_SILENCE: Final = 20.0

# With an empty id, the client does not send its old position when it reconnects.
_LOST: Final = b"id:\n" + encode(
    RunErrorEvent(message="the events of this run are no longer kept; connect again", code="gone")
)


class RunViewer(ResponseLines):
    """Follows one run in the feed of a thread: `run`, else the run of its cursor, else the current or next one.

    It is a transport and a session of its connection to the thread.
    """

    def __init__(
        self,
        actor: Actor,
        feed: EventFeed,
        id: str,
        principal: Principal | None,
        *,
        ended: Callable[[], None],
        may_open: bool,
        has: Sequence[str] | None = None,
    ) -> None:
        super().__init__(actor.limits.write_buffer)
        self._actor = actor
        self._feed = feed
        # Whether the viewer may see the thread's messages, and must still get them.
        self._may_open = may_open
        self._lacks_messages = False
        # The ids of the messages that the client has, in order; None if they are not known.
        self._has = has
        # Called when the stream is closed, even if it could not be opened.
        self._ended = ended
        self.connection = actor.sockets.make_connection(
            id, self, rights=Rights(principal, may_write=False, may_call=False), wire=feed.wire
        )
        self._run: FeedRun | None = None
        # The position in the feed, and the version of the state, that the viewer has.
        self._position = 0
        self._version = 0
        self._has_state = False
        # What the viewer saw of the last state that was sent.
        self._view = self.connection.view
        # Whether the viewer has joined after the beginning of the run, and must still get RUN_STARTED.
        self._is_late = False
        # The items that have begun since the viewer joined; None if it has all events of the run.
        self._opened: set[Opened] | None = None
        self._is_lost = False
        self._is_closed = False
        self._wake = asyncio.Event()

    async def open(self, request: Request, *, run: FeedRun | None = None, cursor: Cursor | None = None) -> None:
        """Join the thread. Raises StoreError, and whatever the thread's hooks raise."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feed.watch(self._wake)
        try:
            self._actor.sockets.join(
                self.connection,
                self,
                request,
                welcome=partial(self._begin, run, cursor),
                done=partial(make_resolver(future), None),
            )
            await future
        except BaseException:
            self.close(INTERNAL_ERROR, "")
            raise

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the events until the run has ended, or the stream is closed."""
        while True:
            self._wake.clear()
            for frame in self._take():
                yield frame
            if self._is_closed:
                return
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._wake.wait()
            except TimeoutError:
                yield b": \n\n"

    # The transport of the connection, and its session

    def close(self, code: int, reason: str) -> None:
        """Leave the thread."""
        if self._is_closed:
            return
        self._is_closed = self.connection.is_closed = True
        self._feed.unwatch(self._wake)
        self._wake.set()
        self._ended()
        if self.connection.session is not None:
            self._actor.sockets.leave(self.connection, code, reason)

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Do nothing: the feed has the change."""

    def finish(self) -> None:
        """Do nothing, as nothing waits."""

    def send_presence(self, frame: Frame) -> None:
        """Do nothing: AG-UI has no presence."""

    # Inside

    @property
    def _epoch(self) -> str:
        return self._view.name(self._actor.state.epoch)

    def _begin(self, run: FeedRun | None, cursor: Cursor | None) -> None:
        """Find the position in the feed at which the viewer begins."""
        feed, self._view = self._feed, self.connection.view
        found = None if cursor is None else feed.find(cursor)
        self._run, self._position = run, feed.next
        if cursor is not None and found is not None:
            self._position, self._version = found, cursor.version[1]
            # The state is sent again if the viewer had another picture, or may have had.
            self._has_state = cursor.mark != "start" and cursor.version[0] == self._epoch
            self._has_state = self._has_state and not self._actor.state.views_vary
            self._lacks_messages = cursor.mark == "start"
            if cursor.mark != "end":
                self._run = feed.entry(found).run if found < feed.next else feed.run
        elif cursor is not None and cursor.mark != "end":
            self._is_lost = True
        elif (late := run or feed.run) is not None and late.position is not None:
            self._run, self._is_late = late, True
            self._position = max(late.position, feed.first)
            self._opened = None if self._position == late.position else set()

    def _take(self) -> Iterator[bytes]:
        """Yield the frames that the viewer does not have yet."""
        if self._is_lost:
            yield _LOST
            self.close(1000, "")
        elif self._is_late and isinstance(self._run, EventRun):
            self._is_late = False
            yield from self._announce(self._run.first_frame())
        elif isinstance(self._run, EventRun) and self._run.refusal is not None:
            if self._run.shows_state:
                yield from self._announce(self._run.first_frame())
            yield self._with_id(self._run.refusal, b".end")
            self.close(1000, "")
        yield from self._tell_messages()
        while not self._is_closed and self._position < self._feed.next:
            if self._position < self._feed.first:
                self._actor.instruments.limit_hit("write_buffer")
                yield _LOST
                self.close(1013, "the client reads too slowly")
                return
            entry = self._feed.entry(self._position)
            self._position += 1
            yield from self._read(entry)
        is_running = not self._is_closed and self._run is not None and self._run is self._feed.run
        if is_running and (not self._has_state or self._version < self._actor.state.durable.version):
            yield from self._snapshot()  # The feed does not have the changes that the viewer has missed.

    def _read(self, entry: RunEvent | FeedChange) -> Iterator[bytes]:
        if isinstance(entry, FeedChange):
            if entry.run is self._run and self.connection.protocol_enabled:
                yield from self._read_change(entry)
            return
        if self._run is None and entry.is_first:
            self._run = entry.run
        if entry.run is not self._run:
            return
        if entry.is_first:
            yield from self._announce(entry.frame)
        elif entry.is_last:
            yield self._with_id(entry.frame, b".end")
            self.close(1000, "")
        elif self._knows(entry):
            yield self._with_id(entry.frame)

    def _read_change(self, change: FeedChange) -> Iterator[bytes]:
        if change.version <= self._version and self._has_state:
            return
        # Between two changes, a view that varies may have been another one.
        sees_all = self.connection.view is EVERYTHING and not self._actor.state.views_vary
        if not sees_all or change.frame is None or change.version != self._version + 1 or not self._has_state:
            yield from self._snapshot()
            return
        self._version = change.version
        yield b"id: %b:%d\n%b" % (self._epoch.encode(), change.version, change.frame)

    def _announce(self, frame: bytes) -> Iterator[bytes]:
        """Yield RUN_STARTED, which is `frame`, and the state."""
        self._has_state = False
        self._lacks_messages = True
        yield self._with_id(frame, b".start")
        yield from self._tell_messages()
        yield from self._snapshot()

    def _tell_messages(self) -> Iterator[bytes]:
        """Yield the messages as they were when the run began."""
        if self._lacks_messages and isinstance(self._run, EventRun):
            self._lacks_messages = False
            if self._may_open and self._run.messages is not None:
                for frame in self._run.messages.frames(self._has):
                    yield self._with_id(frame, b".start")

    def _snapshot(self) -> Iterator[bytes]:
        durable = self._actor.state.durable
        self._has_state, self._version, self._view = True, durable.version, self.connection.view
        if durable.has_state and self.connection.protocol_enabled:
            yield self._with_id(encode_snapshot(self._actor.state.epoch, durable, self._view))

    def _knows(self, event: RunEvent) -> bool:
        """Whether the viewer has the event that begins the item of this event."""
        if self._opened is None:
            return True
        if event.opens is not None:
            self._opened.add(event.opens)
        return event.of is None or event.of in self._opened

    def _with_id(self, frame: bytes, mark: bytes = b"") -> bytes:
        epoch, feed = self._epoch.encode(), self._feed.id.encode()
        return b"id: %b:%d:%b.%d%b\n%b" % (epoch, self._version, feed, self._position, mark, frame)
