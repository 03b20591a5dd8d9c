"""What sessions, routes and handles use of an awake thread.

Nothing else of it is theirs: what goes in and out are values, callbacks, and the connections.
"""

from asyncio import AbstractEventLoop, CancelledError
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request

from plait.actor.connection import PLAIN, Connection, Gate, Principal, Rights, Wire
from plait.actor.connections import Connections
from plait.actor.hooks import Hooks
from plait.actor.kind import Kind
from plait.actor.logs import Failures
from plait.actor.mailbox import Turn, current_turn, find_client_turn
from plait.actor.outcome import Done
from plait.actor.presence import Presence
from plait.actor.rpc import Method, StreamSink
from plait.actor.streaming import Streaming
from plait.actor.thread import Thread
from plait.actor.transport import Frame, Session, Transport
from plait.actor.turns import TurnRunner, find_trace
from plait.errors import PlaitError, TooMany
from plait.instruments.protocol import TRACE, Instruments, find_outcome
from plait.limits import Limits
from plait.state.commit import Commit
from plait.state.concurrent import LoadedChanges, MissingChanges
from plait.state.log import ChangeLog
from plait.state.merger import Charge, Merger, Proposal, Pushed
from plait.state.missed import Missed
from plait.state.pipeline import Pipeline
from plait.state.push_log import ClientPushes, PushLog
from plait.state.revision import Revision
from plait.store.protocol import ChangeRow, ClientRow, ThreadKey, connection_id
from plait_schemas.messages import PresenceDiff
from plait_schemas.patch import Op

__all__ = ["Facade", "RunningCall"]


class RunningCall(Protocol):
    """A call of an rpc or a request, which has not ended yet."""

    def abandon(self, *, is_closed: bool = False) -> None:
        """Skip it if it has not begun, and cancel it if it runs concurrently with other turns.

        `is_closed` tells that the caller's socket was closed.
        """
        ...

    def cancel(self) -> None:
        """Cancel it if it runs, and skip it if it has not begun."""
        ...

    def skip(self) -> None:
        """Skip it if it has not begun."""
        ...

    def on_end(self, callback: Done) -> None:
        """Call `callback` when it has ended or was skipped."""
        ...


class Facade:
    """One awake thread as it is used from outside: its state, its log, pushes, sockets and turns."""

    __slots__ = (
        "active",
        "after",
        "change_log",
        "clients",
        "connections",
        "failures",
        "holds",
        "hooks",
        "instruments",
        "key",
        "kind",
        "last_used",
        "limits",
        "loop",
        "merger",
        "pipeline",
        "presence",
        "thread",
        "turns",
    )

    key: ThreadKey
    kind: Kind
    limits: Limits
    instruments: Instruments
    # What clients are told of errors.
    failures: Failures
    # Calls a function when all changes made so far are durable, or with the error if they could not be stored.
    after: Gate

    # The parts of the thread, which are its actor's.
    thread: Thread[Any]
    pipeline: Pipeline
    change_log: ChangeLog
    merger: Merger
    clients: PushLog
    presence: Presence
    connections: Connections
    hooks: Hooks
    turns: TurnRunner
    # When the thread was last used, by the clock of its loop, and the number of open `keep_awake` blocks.
    loop: AbstractEventLoop
    last_used: float
    holds: int
    # Where the thread puts itself when it is used, for the node's sweeper.
    active: dict[Any, None]

    # State

    @property
    def epoch(self) -> str:
        """The id of the thread's history."""
        return self.pipeline.history.epoch

    @property
    def current(self) -> Revision:
        """The current state, including changes that are not durable yet."""
        return self.pipeline.history.current

    @property
    def durable(self) -> Revision:
        """The last durable state."""
        return self.pipeline.history.durable

    @property
    def sends_identity(self) -> bool:
        """Whether the thread's kind and name are sent to clients of the Cloudflare protocol."""
        return self.thread.send_identity

    @property
    def merges_whole_states(self) -> bool:
        """Whether a whole state from a client of the Cloudflare protocol is merged."""
        return self.thread.merge_whole_states

    @property
    def is_ending(self) -> bool:
        """Whether the thread is being destroyed: nothing that clients send is handled or answered any more."""
        return self.turns.mailbox.is_held

    @property
    def is_stored(self) -> bool:
        """Whether anything of the thread is durable: a new one is stored with its first change, or by `store`."""
        return self.pipeline.history.is_stored

    async def store(self) -> None:
        """Store the thread if it is new; return when it is durable. Raises StoreError."""
        await self.pipeline.store_thread()

    def set_state(self, value: object) -> Commit:
        """Set the state, as `Thread.set_state` does."""
        commit: Commit = self.thread.set_state(value)
        return commit

    def splice(self, pointer: str, at: int, remove: int, insert: str) -> Commit:
        """Change a text inside, as `Thread.splice` does."""
        return self.thread.splice(pointer, at, remove, insert)

    def append(self, pointer: str, text: str) -> Commit:
        """Add to the end of a text, as `Thread.append` does."""
        return self.thread.append(pointer, text)

    def wait_until_durable(self) -> Awaitable[None]:
        """Wait until every change made so far is durable, or has failed."""
        return self.pipeline.wait_until_durable()

    # Log

    def since(self, version: int, to: int) -> list[ChangeRow] | None:
        """Return the changes after `version`, up to `to`, from memory; None if some are missing."""
        return self.pipeline.history.since(version, to)

    def missed(self, after: int, *, most: int) -> Awaitable[Missed | None]:
        """Return the durable changes after a version as operations of at most `most` bytes.

        None if the changes are not kept, or are too many. Raises StoreError.
        """
        return self.change_log.missed(after, most=most)

    def page(self, after: int, *, limit: int) -> Awaitable[list[ChangeRow] | None]:
        """Return the first durable changes after a version; None if they are not kept. Raises StoreError."""
        return self.change_log.page(after, limit=limit)

    def log_start(self) -> Awaitable[int]:
        """Return the version before the first durable change that is kept. Raises StoreError."""
        return self.change_log.start()

    def json_at(self, version: int) -> Awaitable[bytes]:
        """Return the state at a version as JSON. Raises NotFound when it is not kept, CorruptThread and StoreError."""
        return self.change_log.json(version)

    # Changes of clients

    def enter_client(self, *ids: str) -> Awaitable[ClientPushes]:
        """Return what is known of a client's pushes, as `PushLog.enter` does; `leave_client` must follow."""
        return self.clients.enter(*ids)

    def leave_client(self, client: ClientPushes) -> None:
        """Forget a client when its pushes so far are durable, and no other socket uses it."""
        self.after(lambda _: self.clients.leave(client))

    def push(self, proposal: Proposal, accept: Callable[[], ClientRow]) -> Pushed | MissingChanges:
        """Rebase a push and make a change of it, as `Merger.push` does, or return what is to be read first."""
        return self.merger.push(proposal, accept)

    def read_missing(self, missing: MissingChanges) -> Awaitable[LoadedChanges]:
        """Read what must be known of a push, as `Merger.read` does."""
        return self.merger.read(missing)

    def put(self, data: bytes, source: Connection) -> Commit:
        """Set the state to JSON that a client sent; unknown fields are refused."""
        return self.pipeline.put(data, source)

    def replace(self, state: Any, data: bytes, source: Connection) -> Commit:
        """Set the state to a client's, given as decoded by the type and as encoded from that."""
        return self.pipeline.replace(state, data, source)

    def merge(self, ops: Sequence[Op], base: Revision, source: Connection, charge: Charge) -> Commit:
        """Apply the operations of a client, made on `base`, to the current state, as `Merger.merge` does."""
        return self.merger.merge(ops, base, source, charge)

    # Sockets

    def connection_id(self, protocol: str, principal: Principal | None, client: str) -> str:
        """Return the id of a client's connections; another principal with the same client id gets another one."""
        who = None if principal is None else principal.id
        return connection_id(self.pipeline.history.secret, protocol, who, client)

    def make_connection(
        self,
        id: str,
        transport: Transport,
        *,
        rights: Rights,
        wire: Wire = PLAIN,
        arrival: int | None = None,
        party: Hashable | None = None,
    ) -> Connection:
        """Return a connection to the thread, which has not joined yet.

        Its waiting turns count for its `party`, by default for itself. With `arrival`, the number of the join in order
        of arrival, a client uses only the last of its sockets.
        """
        return Connection(id, transport, self.after, rights=rights, wire=wire, arrival=arrival, party=party)

    def refusal(self) -> PlaitError | None:
        """Return why another connection may not join; None if it may."""
        return self.connections.refusal(self.limits.connections_per_thread)

    def count_connections(self) -> int:
        """Return the number of connections."""
        return len(self.connections)

    def connected(self, id: str) -> list[Connection]:
        """Return the connections of one client."""
        return self.connections.with_id(id)

    def join(
        self,
        connection: Connection,
        session: Session,
        request: Request,
        *,
        welcome: Callable[[], None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Run the hooks that configure a connection, add it to the thread, then run `on_connect`.

        `welcome` is called when it has joined, which it does not if the client has disconnected. `done` is called with
        the exception of a hook, or with the error why nobody may join.
        """
        refusal: PlaitError | None = None
        is_message = TRACE not in request.scope  # The join of an event stream is told as its request.
        if is_message:
            self.begin_message(connection, "join")
        trace = connection.trace
        has_joined = False

        def admit() -> bool:
            nonlocal refusal, has_joined
            if connection.is_closed:
                return False
            refusal = self.refusal()
            if refusal is not None:
                self.tell_limit(refusal)
                connection.leave(refusal.close_code, str(refusal))
            elif self.connections.replace(connection):
                connection.session = session
                self.connections.add(connection)
                welcome()
                has_joined = True
            return has_joined

        def finish(error: BaseException | None) -> None:
            nonlocal refusal
            if isinstance(error, CancelledError) and (refusal := self.refusal()) is not None:
                connection.leave(refusal.close_code, str(refusal))
                error = None
            done(error or refusal)
            if is_message:
                is_gone = not has_joined and (error or refusal) is None
                self.instruments.message_ended(trace, "cancelled" if is_gone else find_outcome(error or refusal))

        self.hooks.connect(connection, request, admit=admit, done=finish)

    def leave(self, connection: Connection, code: int, reason: str) -> None:
        """Remove a connection and run `on_close`."""
        self.connections.discard(connection)
        self.touch()
        self.hooks.post("on_close", connection, code, reason, connection=connection)

    def change_frame(self, wire: Wire, revision: Revision) -> Frame | None:
        """Return the frame of `wire` for a revision, which is made once for all connections."""
        return self.connections.change_frame(wire, revision)

    def set_presence(self, id: str, data: bytes | None) -> None:
        """Set the presence of a connection, as JSON; None removes it."""
        self.presence.set(id, data)

    @property
    def has_presence(self) -> bool:
        """Whether the presence that was sent last has any member."""
        return bool(self.presence)

    def presence_frame(self, write: Callable[[PresenceDiff], Frame]) -> Frame:
        """Return a frame with the presence that was sent last; `write` encodes it, once for all connections."""
        return self.presence.snapshot(write)

    # Turns

    def message(self, connection: Connection, data: str | bytes) -> None:
        """Run `on_message` for an ordinary message."""
        self.begin_message(connection, "message")
        trace, size = connection.trace, len(data)
        turn = self.hooks.post(
            "on_message", connection, data, connection=connection, by_client=True, size=size, trace=trace
        )
        self.end_message(trace, turn)

    def request(self, request: Request, done: Done, *, party: Hashable) -> RunningCall:
        """Run `on_request` for a principal or address; call `done` with its response as `call` does."""
        work = partial(self.thread.on_request, request)
        turn = Turn("on_request", work, actor=self, request=request, trace=request.scope.get(TRACE))
        turn.party = party
        self.turns.begin(turn, done, is_gated=True)
        return turn

    def visit(self, name: str, work: Callable[[Thread[Any]], Awaitable[object]], done: Done) -> RunningCall:
        """Run server code in the thread beside its turns, and call `done` when the changes before its end are durable.

        It has the rights of the calling code.
        """
        turn = Turn(
            name,
            partial(work, self.thread),
            actor=self,
            parent=current_turn(),
            origin=find_client_turn(),
            trace=find_trace(self.instruments, "server"),
        )
        self.turns.begin(turn, done, is_gated=True, is_concurrent=True)
        return turn

    def find_excess(self, connection: Connection) -> TooMany | None:
        """Return why no other turn of a connection may wait; None if it may."""
        return self.turns.find_excess(connection.party or connection)

    def is_readonly(self, connection: Connection, request: Request) -> Awaitable[bool]:
        """Run `should_be_readonly` for a request."""
        return self.hooks.is_readonly(connection, request)

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
    ) -> RunningCall:
        """Run an rpc; `size` is the size of the call from `connection`.

        `done` is called with the outcome when the changes before it are durable. The chunks of a stream go to `sink`,
        and before each one of a generator `drain` is awaited.
        """
        args, kwargs = arguments
        trace = connection.trace if connection is not None and by_client else find_trace(self.instruments, "server")
        streaming = None
        if method.is_stream:
            assert sink is not None
            report = self.hooks.report
            streaming = Streaming(sink, done, gate=self.after, connection=connection, report=report, drain=drain)
            done = streaming.finish
            work = partial(streaming.run, method, self.thread, args, kwargs)
        else:
            work = partial(method.function, self.thread, *args, **kwargs)
        turn = Turn(
            f"rpc {method.name}",
            work,
            actor=self,
            connection=connection,
            request=request,
            by_client=by_client,
            parent=None if by_client else current_turn(),
            origin=None if by_client else find_client_turn(),
            trace=trace,
        )
        if streaming is not None:
            turn.hurry, streaming.explain = streaming.hurry, turn.explain_loss
        self.turns.begin(turn, done, size=size, is_gated=True, is_concurrent=method.is_concurrent)
        return turn

    # Instruments

    def begin_message(self, connection: Connection, type: str) -> None:
        """Tell that a message has come, which is the cause of what the connection does from now on."""
        (kind, name), traceparent = self.key, connection.traceparent
        connection.trace = self.instruments.message_began(kind, name, type, traceparent)

    def refuse_message(self, connection: Connection, type: str, error: PlaitError) -> None:
        """Tell that a message has come, and is not handled."""
        self.begin_message(connection, type)
        self.instruments.message_ended(connection.trace, error.code)

    def end_message(self, trace: Any, turn: RunningCall | None) -> None:
        """Tell that a message has ended: when its turn has, if it has one, and the changes before are durable."""

        def tell(_: object, error: BaseException | None) -> None:
            self.after(lambda failure: self.instruments.message_ended(trace, find_outcome(failure or error)))

        if turn is None:
            tell(None, None)
        else:
            turn.on_end(tell)

    def tell_limit(self, error: BaseException) -> None:
        """Tell which limit an error is about, if it is about one."""
        if isinstance(error, PlaitError) and error.limit is not None:
            self.instruments.limit_hit(error.limit)

    def explain(self, error: BaseException, connection: Connection | None = None) -> PlaitError:
        """Return the error to tell a client, as `Failures.explain` does."""
        return self.failures.explain(error, self.key, connection)

    # Being awake

    def touch(self) -> None:
        """Reset the idle timer."""
        self.last_used = self.loop.time()
        self.active[self] = None

    @contextmanager
    def keep_awake(self) -> Iterator[None]:
        """Keep the thread awake for the block, as when a socket is about to join."""
        self.holds += 1
        try:
            yield
        finally:
            self.holds -= 1
            self.touch()
