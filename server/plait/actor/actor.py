"""One awake thread: its turns, its connections, and the hooks that are run for them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.requests import Request

from plait.actor.connection import Connection, Principal, Wire
from plait.actor.hooks import Hooks
from plait.actor.kind import Kind
from plait.actor.logs import about
from plait.actor.mailbox import Done, Mailbox, Turn, current_turn, find_client_turn
from plait.actor.presence import Presence
from plait.actor.rpc import Method, StreamSink
from plait.actor.streaming import Streaming
from plait.actor.thread import Core, Thread
from plait.actor.transport import Frame
from plait.errors import InvalidState, Unavailable
from plait.limits import Limits
from plait.state.commit import Commit
from plait.state.history import History
from plait.state.log import ChangeLog
from plait.state.pipeline import Pipeline
from plait.state.push_log import PushLog
from plait.store.protocol import Store, Stored, ThreadKey, connection_id
from plait_schemas.codes import TRY_AGAIN_LATER
from plait_schemas.messages import PresenceDiff

__all__ = ["Actor"]

log = logging.getLogger("plait.thread")


class Actor:
    """Runs one thread. Made by the node when the thread wakes, and dropped when it sleeps."""

    __slots__ = (
        "_concurrent",
        "_holds",
        "_loop",
        "change_log",
        "clients",
        "connections",
        "hooks",
        "key",
        "kind",
        "last_used",
        "limits",
        "mailbox",
        "pipeline",
        "presence",
        "thread",
    )

    def __init__(
        self,
        key: ThreadKey,
        kind: Kind,
        stored: Stored | None,
        store: Store,
        limits: Limits,
        *,
        make_handle: Callable[[Any, str], Any],
        on_fenced: Callable[["Actor"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.key = key
        self.kind = kind
        self.limits = limits
        self.thread: Thread[Any] = object.__new__(kind.cls)
        self.pipeline = Pipeline(
            History(key, kind.state_type, stored, retention=kind.cls.retention, state_version=kind.state_version),
            kind.state_type,
            store,
            limits,
            validate=self.thread.validate_state_change if "validate_state_change" in kind.overrides else None,
            on_commit=self._on_commit,
            on_fenced=partial(on_fenced, self),
        )
        self.change_log = ChangeLog(key, store, self.pipeline.history)
        self.presence = Presence(self._loop, self._tell_presence)
        self.clients = PushLog()
        self.thread._core = Core(key, self.pipeline, self.change_log, self.presence, make_handle)
        self.thread.__init__()  # type: ignore[misc]
        self.connections = self.thread._core.connections
        self.mailbox = Mailbox(self._loop)
        self.hooks = Hooks(self, self.thread, self.mailbox)
        # When the thread was last asked for, or seen to run a turn, by the loop's clock.
        self.last_used = self._loop.time()
        # Turns that do not hold the mailbox: concurrent rpcs and streams.
        self._concurrent: set[Turn] = set()
        # Sockets that are about to join.
        self._holds = 0

    @property
    def is_unused(self) -> bool:
        """Whether the thread may be stopped: nobody is connected, nothing runs, everything is durable."""
        is_unused = not self.connections and not self._holds
        return is_unused and self.mailbox.is_idle and not self._concurrent and self.pipeline.is_durable

    @contextmanager
    def keep_awake(self) -> Iterator[None]:
        """Keep the thread awake for somebody who is about to join."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.touch()

    def touch(self) -> None:
        """Take note that the thread is in use."""
        self.last_used = self._loop.time()

    def connection_id(self, protocol: str, principal: Principal | None, client: str) -> str:
        """Return the id of a client's connections: the same for all of one principal, and for nobody else's."""
        who = None if principal is None else principal.id
        return connection_id(self.pipeline.history.secret, protocol, who, client)

    # Turns

    async def start(self) -> None:
        """Store the initial state of a new thread, and run `on_start`. Raises what it raised."""
        if not self.pipeline.history.current.has_state and self.kind.has_initial_state:
            try:
                commit = self.pipeline.start(self.kind.initial_state())
            except InvalidState as error:  # No client's fault, who would be told that it is.
                raise TypeError(f"{self.kind.cls.__name__}.initial_state does not fit its type: {error}") from error
            await commit
        await self.hooks.run("on_start")

    async def stop(self) -> None:
        """Run `on_stop`, wait until everything is durable, and refuse what comes later."""
        try:
            try:
                await self.hooks.run("on_stop")
            except Exception as error:
                self.hooks.report(error, None)
            await self.wait_until_idle()
        finally:
            self.abort()

    def message(self, connection: Connection, data: str | bytes) -> None:
        """Hand an ordinary message to `on_message`."""
        self.hooks.post("on_message", connection, data, connection=connection, by_client=True, size=len(data))

    def disconnect(self, connection: Connection, code: int, reason: str) -> None:
        """Take a connection out and run `on_close`."""
        self.connections.discard(connection)
        self.touch()
        self.hooks.post("on_close", connection, code, reason, connection=connection)

    def request(self, request: Request, done: Done) -> Turn:
        """Run `on_request`; its answer is handed to `done` when the changes before it are durable."""
        turn = Turn(
            "on_request",
            lambda: self.thread.on_request(request),
            partial(self._answer, done),
            owner=self,
            request=request,
        )
        self.mailbox.post(turn)
        return turn

    def call(
        self,
        method: Method,
        arguments: tuple[list[Any], dict[str, Any]],
        done: Done,
        *,
        sink: StreamSink | None = None,
        drain: Callable[[], Awaitable[object]] | None = None,
        connection: Connection | None = None,
        request: Request | None = None,
        by_client: bool = False,
        size: int = 0,
    ) -> Turn:
        """Run an rpc, which `connection` has called by `size` bytes.

        `done` gets its outcome when the changes before it are durable; a stream's goes to `sink` as `drain` lets it.
        """
        args, kwargs = arguments
        if method.is_stream:
            assert sink is not None
            streaming = Streaming(sink, self.pipeline.after, connection, self.hooks.report, drain)
            done = streaming.wrap_done(done)
            work = partial(streaming.run, method, self.thread, args, kwargs)
        else:
            work = partial(method.function, self.thread, *args, **kwargs)
        turn = Turn(
            f"rpc {method.name}",
            work,
            partial(self._answer, done),
            owner=self,
            connection=connection,
            request=request,
            by_client=by_client,
            parent=None if by_client else current_turn(),
            origin=None if by_client else find_client_turn(),
        )
        if connection is not None:
            turn.done = connection.track_turn(size, turn.done)
        if method.is_concurrent:
            turn.done = partial(self._finish_concurrent, turn, turn.done)
            self._concurrent.add(turn)
            turn.start(self._loop)
        else:
            self.mailbox.post(turn)
        return turn

    def sweep(self, now: float) -> bool:
        """Expire turns, and let go of what nobody needs while the thread is idle; tells whether it is to be stopped."""
        if not self.mailbox.is_idle:
            self.expire(now)
            self.touch()
            return False
        timeout, history = self.thread.idle_timeout, self.pipeline.history
        is_due = timeout is not None and now - self.last_used >= timeout
        if (not is_due and not history.has_recent) or not self.is_unused:
            return False  # Of most threads there is nothing more to see.
        history.forget()
        return is_due

    def expire(self, now: float) -> None:
        """Cancel the running turn, and those inside it, past `turn_timeout`, and log where they were."""
        timeout, elapsed = self.thread.turn_timeout, now - self.mailbox.started
        if self.mailbox.running is None or timeout is None or elapsed < timeout:
            return
        for turn in (self.mailbox.running, *self.mailbox.nested):
            if turn.is_expired:
                continue
            log.error(
                "%s has run for %g s and is cancelled (turn_timeout); it was at:\n%s",
                turn.name,
                elapsed,
                turn.stack().rstrip(),
                extra=about(self.key, turn.connection),
            )
            turn.expire()

    async def wait_until_idle(self) -> None:
        """Wait until all turns have ended and every change is durable, or has failed."""
        while True:
            if concurrent := [turn.task for turn in self._concurrent if turn.task is not None]:
                await asyncio.wait(concurrent)
            elif self.mailbox.is_idle and self.pipeline.is_durable:
                return
            else:
                await self._next_pause()

    def cancel_turns(self) -> None:
        """Cancel what runs and what waits to."""
        self.mailbox.close()
        for turn in self._concurrent:
            turn.cancel()

    def abort(self) -> None:
        """Cancel what runs and take no more changes."""
        self.connections.close("the thread has been stopped")
        self.presence.close()
        self.pipeline.close()
        self.cancel_turns()

    def drop(self, reason: str) -> None:
        """Give up: close the sockets, so that their clients come again, and take no more changes."""
        self.connections.close(reason)
        self.pipeline.close()
        for connection in self.connections:
            connection.close(TRY_AGAIN_LATER, reason)

    # Inside

    async def _next_pause(self) -> None:
        event = asyncio.Event()
        self.mailbox.post(Turn("idle", lambda: None, partial(self._answer, lambda *_: event.set()), owner=self))
        await event.wait()

    def _on_commit(self, commit: Commit) -> None:
        revision = commit.revision
        if revision.version == 0:
            return
        self.connections.broadcast_change(revision, source=commit.source)
        if self.hooks.has("on_state_changed"):
            connection = commit.source if isinstance(commit.source, Connection) else None
            size = len(revision.change.ops) if revision.change is not None else 0
            try:
                state = revision.state
            except Exception as error:  # The type may have code of its author's, which minds the time, say.
                self.hooks.report(error, connection)
            else:
                self.hooks.post("on_state_changed", state, connection or "server", connection=connection, size=size)

    def _tell_presence(self, diff: PresenceDiff) -> None:
        frames: dict[Wire, Frame | None] = {}
        for connection in self.connections:
            if connection.session is None or not connection.protocol_enabled:
                continue
            if connection.wire not in frames:
                frames[connection.wire] = connection.wire.encode_presence(diff)
            if (frame := frames[connection.wire]) is not None:
                connection.session.send_presence(frame)

    def _answer(self, done: Done, result: Any, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = Unavailable("the server is shutting down")
        self.pipeline.after(lambda failure: done(result, failure or error))

    def _finish_concurrent(self, turn: Turn, done: Done, result: Any, error: BaseException | None) -> None:
        self._concurrent.discard(turn)
        self.touch()
        done(result, error)
