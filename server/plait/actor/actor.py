"""One awake thread: its turns, its connections and its hooks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from starlette.requests import Request

from plait.actor.connection import Connection, Principal, Wire
from plait.actor.connections import Connections
from plait.actor.hooks import Hooks
from plait.actor.kind import Kind
from plait.actor.logs import about
from plait.actor.mailbox import Done, Mailbox, Turn, current_turn, find_client_turn
from plait.actor.presence import Presence
from plait.actor.rpc import Method, StreamSink
from plait.actor.streaming import Streaming
from plait.actor.thread import Thread
from plait.actor.transport import Frame
from plait.errors import InvalidState, PlaitError, Unavailable
from plait.instruments import TRACE, Instruments, find_outcome
from plait.limits import Limits
from plait.state.commit import Commit
from plait.state.history import History
from plait.state.log import ChangeLog
from plait.state.pipeline import Pipeline
from plait.state.push_log import PushLog
from plait.state.source import Source
from plait.store.protocol import Store, Stored, ThreadKey, connection_id
from plait_schemas.codes import TRY_AGAIN_LATER
from plait_schemas.messages import PresenceDiff

__all__ = ["Actor"]

log = logging.getLogger("plait.thread")


class Actor:
    """Runs one thread. The node creates it when the thread wakes, and drops it when the thread goes to sleep."""

    __slots__ = (
        "_concurrent",
        "_holds",
        "_loop",
        "change_log",
        "clients",
        "connections",
        "hooks",
        "instruments",
        "key",
        "kind",
        "last_used",
        "limits",
        "mailbox",
        "make_handle",
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
        instruments: Instruments | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.key = key
        self.kind = kind
        self.limits = limits
        # None if there are none, so that nothing is measured in vain.
        self.instruments = instruments
        self.thread: Thread[Any] = object.__new__(kind.cls)
        self.pipeline = Pipeline(
            History(key, kind.state_type, stored, retention=kind.cls.retention, state_version=kind.state_version),
            kind.state_type,
            store,
            limits,
            validate=self.thread.validate_state_change if "validate_state_change" in kind.overrides else None,
            on_commit=self._on_commit,
            on_fenced=partial(on_fenced, self),
            instruments=instruments,
            find_trace=_find_trace,
        )
        self.change_log = ChangeLog(key, store, self.pipeline.history, on_error=self._tell_store_error)
        self.presence = Presence(self._loop, self._tell_presence)
        self.clients = PushLog()
        self.connections = Connections()
        self.make_handle = make_handle
        self.thread._core = self
        self.thread.__init__()  # type: ignore[misc]
        self.mailbox = Mailbox(self._loop)
        self.hooks = Hooks(self, self.thread, self.mailbox)
        # When the thread was last used, by the loop's clock.
        self.last_used = self._loop.time()
        # Turns that do not hold the mailbox: concurrent rpcs and streams.
        self._concurrent: set[Turn] = set()
        # The number of open `keep_awake` blocks.
        self._holds = 0

    @property
    def is_unused(self) -> bool:
        """Whether the thread may be stopped: nobody is connected, no turn runs, and every change is durable."""
        if self.connections or self._holds:
            return False
        return self.mailbox.is_idle and not self._concurrent and self.pipeline.is_durable

    @contextmanager
    def keep_awake(self) -> Iterator[None]:
        """Keep the thread awake for the block, as when a socket is about to join."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self.touch()

    def touch(self) -> None:
        """Reset the idle timer."""
        self.last_used = self._loop.time()

    def connection_id(self, protocol: str, principal: Principal | None, client: str) -> str:
        """Return the id of a client's connections; another principal with the same client id gets another one."""
        who = None if principal is None else principal.id
        return connection_id(self.pipeline.history.secret, protocol, who, client)

    # Turns

    async def start(self) -> None:
        """Store the initial state of a new thread, and run `on_start`. Raises what `on_start` raises."""
        if not self.pipeline.history.current.has_state and self.kind.has_initial_state:
            try:
                commit = self.pipeline.start(self.kind.initial_state())
            except InvalidState as error:  # The author's mistake: an InvalidState would blame the client.
                raise TypeError(f"{self.kind.cls.__name__}.initial_state does not fit its type: {error}") from error
            await commit
        await self.hooks.run("on_start")

    async def stop(self) -> None:
        """Run `on_stop`, wait until every change is durable, and refuse further changes."""
        try:
            try:
                await self.hooks.run("on_stop")
            except Exception as error:
                self.hooks.report(error, None)
            await self.wait_until_idle()
        finally:
            self.abort()

    def message(self, connection: Connection, data: str | bytes) -> None:
        """Run `on_message` for an ordinary message."""
        if self.instruments is not None:
            self.begin_message(connection, "message")
        trace, size = connection.trace, len(data)
        turn = self.hooks.post(
            "on_message", connection, data, connection=connection, by_client=True, size=size, trace=trace
        )
        if self.instruments is not None:
            self.end_message(trace, turn)

    def disconnect(self, connection: Connection, code: int, reason: str) -> None:
        """Remove a connection and run `on_close`."""
        self.connections.discard(connection)
        self.touch()
        self.hooks.post("on_close", connection, code, reason, connection=connection)

    def request(self, request: Request, done: Done) -> Turn:
        """Run `on_request`, and call `done` with its response when the changes before it are durable."""
        turn = Turn(
            "on_request",
            lambda: self.thread.on_request(request),
            owner=self,
            request=request,
            instruments=self.instruments,
            trace=request.scope.get(TRACE),
        )
        turn.on_end(partial(self._answer, done))
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
        """Run an rpc; `size` is the size of the call from `connection`.

        `done` is called with the outcome when the changes before it are durable. The chunks of a stream go to `sink`,
        and after each one `drain` is awaited.
        """
        args, kwargs = arguments
        if method.is_stream:
            assert sink is not None
            gate, report = self.pipeline.after, self.hooks.report
            streaming = Streaming(sink, done, gate=gate, connection=connection, report=report, drain=drain)
            done = streaming.finish
            work = partial(streaming.run, method, self.thread, args, kwargs)
        else:
            work = partial(method.function, self.thread, *args, **kwargs)
        turn = Turn(
            f"rpc {method.name}",
            work,
            owner=self,
            connection=connection,
            request=request,
            by_client=by_client,
            parent=None if by_client else current_turn(),
            origin=None if by_client else find_client_turn(),
            instruments=self.instruments,
            trace=None
            if self.instruments is None
            else _find_trace(connection if by_client and connection else "server"),
        )
        if connection is not None:
            connection.track_turn(turn, size)
        if method.is_concurrent:
            turn.on_end(lambda *_: self._finish_concurrent(turn))
        turn.on_end(partial(self._answer, done))
        if method.is_concurrent:
            self._concurrent.add(turn)
            turn.start(self._loop)
        else:
            self.mailbox.post(turn)
        return turn

    def sweep(self, now: float) -> bool:
        """Expire turns, free memory while the thread is idle, and return whether to stop the thread."""
        if not self.mailbox.is_idle:
            self.expire(now)
            self.touch()
            return False
        timeout, history = self.thread.idle_timeout, self.pipeline.history
        is_due = timeout is not None and now - self.last_used >= timeout
        if (not is_due and not history.has_recent) or not self.is_unused:
            return False  # Fast path for most threads.
        history.forget()
        return is_due

    def expire(self, now: float) -> None:
        """Cancel the running turn and those nested in it after `turn_timeout`, and log their stacks."""
        timeout, elapsed = self.thread.turn_timeout, now - self.mailbox.started
        if self.mailbox.running is None or timeout is None or elapsed < timeout:
            return
        for turn in (self.mailbox.running, *self.mailbox.nested):
            if turn.is_expired:
                continue
            log.error(
                "%s has run for %g s and is cancelled (turn_timeout); its stack:\n%s",
                turn.name,
                elapsed,
                turn.stack().rstrip(),
                extra=about(self.key, turn.connection),
            )
            turn.expire()

    async def wait_until_idle(self) -> None:
        """Wait until all turns have ended and every change is durable, or has failed; connections may stay open."""
        while True:
            if concurrent := [turn.task for turn in self._concurrent if turn.task is not None]:
                await asyncio.wait(concurrent)
            elif self.mailbox.is_idle and self.pipeline.is_durable:
                return
            else:
                await self._wait_for_mailbox()

    def cancel_turns(self) -> None:
        """Cancel the running and the waiting turns."""
        self.mailbox.close()
        for turn in self._concurrent:
            turn.cancel()

    def abort(self) -> None:
        """Cancel all turns and refuse further connections and changes."""
        self.connections.close("the thread has been stopped")
        self.presence.close()
        self.pipeline.close()
        self.cancel_turns()

    def drop(self, reason: str) -> None:
        """Close the sockets, so that their clients reconnect, and refuse further changes."""
        self.connections.close(reason)
        self.pipeline.close()
        for connection in self.connections:
            connection.close(TRY_AGAIN_LATER, reason)

    # Instruments

    def begin_message(self, connection: Connection, type: str) -> None:
        """Tell that a message has come, which is the cause of what the connection does from now on."""
        assert self.instruments is not None
        key = self.key
        connection.trace = self.instruments.message_began(key.kind, key.name, type, connection.traceparent)

    def end_message(self, trace: Any, turn: Turn | None) -> None:
        """Tell that a message has ended: when its turn has, if it has one, and the changes before are durable."""
        instruments = self.instruments
        assert instruments is not None

        def tell(_: object, error: BaseException | None) -> None:
            self.pipeline.after(lambda failure: instruments.message_ended(trace, find_outcome(failure or error)))

        if turn is None:
            tell(None, None)
        else:
            turn.on_end(tell)

    def end_message_with(
        self, trace: Any, done: Callable[[BaseException | None], None]
    ) -> Callable[[BaseException | None], None]:
        """Return a function that calls `done`, and tells that a message has ended."""
        instruments = self.instruments
        assert instruments is not None

        def end(error: BaseException | None) -> None:
            done(error)
            instruments.message_ended(trace, find_outcome(error))

        return end

    def tell_limit(self, error: BaseException) -> None:
        """Tell which limit an error is about, if it is about one."""
        if self.instruments is not None and isinstance(error, PlaitError) and error.limit is not None:
            self.instruments.limit_hit(error.limit)

    # Inside

    def _tell_store_error(self, error: PlaitError) -> None:
        if self.instruments is not None:
            self.instruments.store_failed(error.code)

    async def _wait_for_mailbox(self) -> None:
        """Wait until the turns before this call have ended, and their changes are durable or have failed."""
        event = asyncio.Event()
        turn = Turn("idle", lambda: None, owner=self)
        turn.on_end(partial(self._answer, lambda *_: event.set()))
        self.mailbox.post(turn)
        await event.wait()

    def _on_commit(self, commit: Commit) -> None:
        revision = commit.revision
        if revision.version == 0:
            return
        count = 0 if self.instruments is None else self.connections.count_readers(commit.source)
        self.connections.broadcast_change(revision, source=commit.source)
        if self.instruments is not None:
            self.instruments.change_sent(commit.trace, count)
        if self.hooks.has("on_state_changed"):
            connection = commit.source if isinstance(commit.source, Connection) else None
            size = len(revision.change.ops) if revision.change is not None else 0
            try:
                state = revision.state
            except Exception as error:  # The type may run the author's code, such as `__post_init__`.
                self.hooks.report(error, connection)
            else:
                source, trace = connection or "server", commit.trace
                self.hooks.post("on_state_changed", state, source, connection=connection, size=size, trace=trace)

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

    def _finish_concurrent(self, turn: Turn) -> None:
        self._concurrent.discard(turn)
        self.touch()


def _find_trace(source: Source) -> Any:
    """Return the trace of what makes a change: a message of a client, or a turn."""
    if isinstance(source, Connection):
        return source.trace
    turn = current_turn()
    return None if turn is None else turn.trace
