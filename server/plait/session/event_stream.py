"""Read-only sessions over server-sent events, for clients that cannot open a socket: of a thread, and of a query."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from starlette.requests import Request

from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.actor.outcome import make_resolver
from plait.actor.rpc import Asked
from plait.actor.transport import HIGH_WATER, Frame, OneWay
from plait.errors import PlaitError
from plait.parts.queries.live_queries import Door, QueryReader, find_queries
from plait.parts.queries.outcome import Rows
from plait.session.native.follower import PLAIT, Follower
from plait.session.paced import Paced, paced_of
from plait.state.missed import MissedChanges
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait_schemas.codes import INTERNAL_ERROR, TRY_AGAIN_LATER
from plait_schemas.frames import encode
from plait_schemas.messages import Version

__all__ = ["EventStream", "QueryStream"]

# Seconds of silence after which a comment is sent, so that proxies keep the stream open.
_SILENCE: Final = 20.0


class EventStream:
    """The session of one reader. Each frame is an event; its id is the reader's version after the event."""

    def __init__(
        self,
        actor: Actor,
        id: str,
        principal: Principal | None,
        *,
        ended: Callable[[], None],
        has_state: bool = True,
    ) -> None:
        self._actor = actor
        # Called when the stream is closed, even if it could not be opened.
        self._ended = ended
        self._queue = _Queue(self, actor.limits.write_buffer, paced_of(actor))
        rights = Rights(principal, may_write=False, may_call=not has_state)
        self.connection = actor.sockets.make_connection(id, self._queue, rights=rights, wire=PLAIT)
        # Each event names its source, so that it can be read without the events before it.
        self._follower = Follower(actor, self.connection, self._queue, source=None, has_state=has_state)

    async def open(self, request: Request, have: Version | None) -> None:
        """Join the thread, from the version `have`. Raises StoreError, and the exceptions of the thread's hooks."""
        missed: MissedChanges | None = None

        def welcome() -> None:
            joined = self._follower.join(have, missed)
            self._queue.send(Frame(encode(joined)))
            self._follower.tell_joined("events", joined)
            if self._actor.sockets.has_presence and self.connection.protocol_enabled:
                self.send_presence(self._actor.sockets.presence.snapshot(PLAIT.encode_presence))

        with self._closing_on_error():
            missed = await self._follower.read_missed(have)
            await self._join(request, welcome)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the events until the stream is closed."""
        while True:
            for event in self._queue.events():
                yield event
            if self._queue.is_closed:
                return
            self.drained()
            if not await self._queue.wait(_SILENCE):
                yield b": \n\n"

    def end(self, code: int = 1000, reason: str = "") -> None:
        """Leave the thread, as the reader has disconnected or its rights have ended."""
        self._queue.close(code, reason)

    # The Session

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Send the frame of a change."""
        self._follower.deliver(frame, revision)

    def send(self, frame: Frame) -> None:
        """Send any other frame; binary messages cannot be sent as events."""
        if frame.is_text:
            self._follower.send(frame)

    def finish(self) -> None:
        """Send everything that waits for a slow reader."""
        self._follower.catch_up()

    def send_presence(self, frame: Frame) -> None:
        """Send a change of presence."""
        self._follower.send_presence(frame)

    def drained(self) -> None:
        """Send waiting frames, as the reader has caught up."""
        self._follower.drained()

    def close(self, code: int, reason: str) -> None:
        """Leave the thread, as the stream is closed."""
        self.connection.is_closed = True
        if self._queue.is_full:
            self._actor.instruments.limit_hit("write_buffer")
        self._ended()
        if self.connection.session is not None:
            self._actor.sockets.leave(self.connection, code, reason)

    @property
    def event_id(self) -> bytes | None:
        """The id of an event that is sent now; None for an event that leaves the reader's last one as it is."""
        return b"%b:%d" % (self._follower.epoch.encode(), self._follower.version)

    # Inside

    async def _join(self, request: Request, welcome: Callable[[], None]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done = partial(make_resolver(future), None)
        self._actor.sockets.join(self.connection, self, request, welcome=welcome, done=done)
        await future

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:  # A StoreError, a hook's exception, or the request was cancelled.
            self._queue.close(INTERNAL_ERROR, "")
            raise


class QueryStream(EventStream):
    """The session of one reader of a query. Each event is a chunk; its id is the tag of the result after the event."""

    def __init__(self, actor: Actor, id: str, principal: Principal | None, *, ended: Callable[[], None]) -> None:
        super().__init__(actor, id, principal, ended=ended, has_state=False)
        # None before the query is followed.
        self._reader: QueryReader | None = None

    async def follow(self, request: Request, asked: Asked, have: str) -> None:
        """Join the thread, and follow a query from the result with the tag `have` on.

        Raises TooMany, and the exceptions of the thread's hooks.
        """
        follower = self._follower
        with self._closing_on_error():
            await self._join(request, lambda: follower.tell_joined("events", follower.join(None, None)))
            if self._queue.is_closed:
                return  # `on_connect` has closed the connection.
            # A result that is known at once waits until `_reader` is set, as `event_id` reads it.
            door = Door(self._send_chunk, self._fail, lambda: self._reader is None or self._queue.is_backed_up)
            self._reader = find_queries(self._actor).open(asked, self.connection, door, have=have)
            self.drained()

    def send(self, frame: Frame) -> None:
        """Drop a message or event of the thread."""

    def send_presence(self, frame: Frame) -> None:
        """Drop a change of presence."""

    def drained(self) -> None:
        """Send the difference to the result that the reader has missed, as it has caught up."""
        find_queries(self._actor).resume(self.connection)

    def close(self, code: int, reason: str) -> None:
        """Stop following the query, and leave the thread."""
        if self._reader is not None:
            self._reader.abandon()
        super().close(code, reason)

    @property
    def event_id(self) -> bytes | None:
        """The tag of the result that is sent now; None for an error."""
        told = None if self._reader is None else self._reader.told
        return told.tag.encode() if isinstance(told, Rows) else None

    # Inside

    def _send_chunk(self, chunk: bytes) -> None:
        self._queue.send(Frame(chunk))

    def _fail(self, error: PlaitError) -> None:
        self.connection.leave(error.close_code, str(error))


class _Queue(OneWay):
    """The transport: events that wait for the reader."""

    def __init__(self, stream: EventStream, limit: int, paced: Paced) -> None:
        self._stream = stream
        self._limit = limit
        # Wakes the reader: each takes some time to write a large event.
        self._paced = paced
        # The frames that wait, with their ids.
        self._frames: deque[tuple[bytes | None, bytes]] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self.is_closed = False

    @property
    def is_backed_up(self) -> bool:
        return self._size > HIGH_WATER

    @property
    def is_full(self) -> bool:
        return self._size > self._limit

    def events(self) -> Iterator[bytes]:
        """Yield the waiting events."""
        while self._frames:
            id, data = self._frames.popleft()
            head = b"" if id is None else b"id: %b\n" % id
            # A line break would end the field; JSON has none inside of strings.
            yield b"%bdata: %b\n\n" % (head, data.translate(None, b"\r\n"))
            self._size -= len(data)

    async def wait(self, timeout: float) -> bool:
        """Wait for an event or the end of the stream; return False after `timeout` seconds."""
        if self._frames or self.is_closed:
            return True
        self._wake.clear()
        try:
            async with asyncio.timeout(timeout):
                return await self._wake.wait()
        except TimeoutError:
            return False

    def send(self, frame: Frame) -> None:
        if self.is_closed:
            return
        if self.is_full:
            self.close(TRY_AGAIN_LATER, "the client reads too slowly")
            return
        if not self._frames:
            self._paced.add(self._wake.set)
        self._frames.append((self._stream.event_id, frame.data))
        self._size += len(frame.data)

    def close(self, code: int, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._wake.set()
            self._stream.close(code, reason)

    async def drain(self) -> None:
        pass
