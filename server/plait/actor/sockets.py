"""The sockets of one awake thread: they join, send messages, and leave."""

import asyncio
import hashlib
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from plait.actor.connection import PLAIN, Connection, Rights, Wire
from plait.actor.connections import Connections
from plait.actor.outcome import make_resolver
from plait.actor.thread import Thread
from plait.actor.transport import ClientSession, Transport
from plait.actor.turn import Turn
from plait.actor.turns import TurnActor
from plait.author_code import call
from plait.errors import PlaitError
from plait.instruments.protocol import TRACE, find_outcome, tell_limit
from plait.state.commit import Commit
from plait.state.principal import Principal
from plait.state.view import View
from plait_schemas.codec import encode_json

__all__ = ["Sockets", "connection_id"]

_CONNECT_HOOKS: Final = frozenset(
    {"connection_tags", "on_connect", "should_be_readonly", "should_send_protocol_messages"}
)


def connection_id(secret: bytes, protocol: str, principal: str | None, client: str) -> str:
    """Return the id under which other clients see a client, in the thread with this secret.

    The id also depends on the principal; None stands for an anonymous client. Without the secret, the id does not
    reveal the principal or the client, and a guess cannot be verified.
    """
    return hashlib.blake2b(encode_json((protocol, principal, client)), key=secret, digest_size=12).hexdigest()


class Sockets(Connections):
    """Makes, joins and removes the connections of one thread, and runs their hooks."""

    __slots__ = ("_actor", "_hooks", "_thread")

    def __init__(self, actor: TurnActor, thread: Thread[Any]) -> None:
        super().__init__(actor.instruments)
        self._actor = actor
        self._thread = thread
        self.has_views = thread._kind.readable is not None
        # The hooks that the class overrides.
        self._hooks = thread._kind.overrides

    def connection_id(self, protocol: str, principal: Principal | None, client: str) -> str:
        """Return the id of a client's connections; it differs between principals with the same client id."""
        who = None if principal is None else principal.id
        return connection_id(self._actor.state.history.secret, protocol, who, client)

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

        The `party`, by default the connection itself, is charged for waiting turns. With `arrival`, the number of the
        join in order of arrival, the client uses only the last of its sockets.
        """
        state = self._actor.state
        view = state.find_view(rights.principal)
        return Connection(id, transport, state.after, rights=rights, wire=wire, arrival=arrival, party=party, view=view)

    def review(self, connection: Connection) -> None:
        """Find the view of a connection on the durable state again."""
        if (views := self._actor.state.views) is not None:
            connection.view = views.find(connection.principal)

    def send_seen(self, commit: Commit) -> None:
        """Find the view of each connection again, once for each principal, then send a change."""
        found: dict[int, View] = {}
        for connection in self:
            if (key := id(connection.principal)) not in found:
                found[key] = self._actor.state.find_view(connection.principal)
            connection.view = found[key]
        self.send_change(commit)

    def note_unseen(self) -> None:
        # The node checks the thread, as its log in memory may be freed.
        self._actor.usage.watch()

    def find_refusal(self) -> PlaitError | None:
        """Return the error with which another connection may not join; None if it may."""
        return self.refusal(self._actor.limits.connections_per_thread)

    def join(
        self,
        connection: Connection,
        session: ClientSession,
        request: Request,
        *,
        welcome: Callable[[], None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Run the hooks that configure a connection, add it to the thread, then run `on_connect`.

        `welcome` is called when the connection has joined, unless the client has disconnected. `done` is called with
        the exception of a hook, or with the error with which the thread refuses connections.
        """
        instruments = self._actor.instruments
        refusal: PlaitError | None = None
        is_message = TRACE not in request.scope  # The instruments see the join of an event stream as its request.
        if is_message:
            connection.begin_message("join", instruments, self._actor.key)
        trace = connection.trace
        has_joined = False

        def admit() -> bool:
            nonlocal refusal, has_joined
            if connection.is_closed:
                return False
            refusal = self.find_refusal()
            if refusal is not None:
                tell_limit(instruments, refusal)
                connection.leave(refusal.close_code, str(refusal))
            elif self.replace(connection):
                connection.session = session
                self.add(connection)
                self.review(connection)
                welcome()
                has_joined = True
            return has_joined

        def finish(error: BaseException | None) -> None:
            nonlocal refusal
            if isinstance(error, asyncio.CancelledError) and (refusal := self.find_refusal()) is not None:
                connection.leave(refusal.close_code, str(refusal))
                error = None
            done(error or refusal)
            if is_message:
                is_gone = not has_joined and (error or refusal) is None
                outcome = "cancelled" if is_gone else find_outcome(error or refusal)
                instruments.message_ended(trace, outcome)

        self._configure(connection, request, admit, finish)

    async def is_readonly(self, connection: Connection, request: Request) -> bool:
        """Run `should_be_readonly` for a request."""
        if "should_be_readonly" not in self._hooks:
            return False
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        work, trace = partial(self._thread.should_be_readonly, connection, request), _find_trace(connection, request)
        turn = Turn("should_be_readonly", work, actor=self._actor, connection=connection, request=request, trace=trace)
        turn.sees_durable, turn.party = True, connection.party
        self._actor.turns.begin(turn, make_resolver(future))
        return bool(await future)

    def receive(self, connection: Connection, data: str | bytes) -> None:
        """Run `on_message` for an ordinary message."""
        connection.begin_message("message", self._actor.instruments, self._actor.key)
        trace, turns = connection.trace, self._actor.turns
        turn = None
        if "on_message" in self._hooks:
            turn = turns.post(
                "on_message", connection, data, connection=connection, by_client=True, size=len(data), trace=trace
            )
        turns.end_message(trace, turn)

    def leave(self, connection: Connection, code: int, reason: str) -> None:
        """Remove a connection and run `on_close`."""
        self.discard(connection)
        self._actor.usage.touch()
        if "on_close" in self._hooks:
            self._actor.turns.post("on_close", connection, code, reason, connection=connection)

    def _configure(
        self,
        connection: Connection,
        request: Request,
        admit: Callable[[], bool],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Run the hooks that configure a connection, call `admit` to add it to the thread, then run `on_connect`."""
        if not _CONNECT_HOOKS & self._hooks:
            admit()
            done(None)
            return
        turns = self._actor.turns

        async def work() -> None:
            thread, hooks, turn.sees_durable = self._thread, self._hooks, True
            if "connection_tags" in hooks:
                connection.tags = tuple(await call(thread.connection_tags, connection, request))
            if "should_be_readonly" in hooks and await call(thread.should_be_readonly, connection, request):
                connection.readonly = True
            if "should_send_protocol_messages" in hooks:
                connection.protocol_enabled = await call(thread.should_send_protocol_messages, connection, request)
            turn.sees_durable = False
            if admit() and "on_connect" in hooks:
                await call(thread.on_connect, connection, request)

        def finish(_: object, error: BaseException | None) -> None:
            if (refusal := turns.refusal) is not None and error is not None:
                connection.leave(refusal.close_code, str(refusal))
            elif error is not None:
                turns.report(error, connection, turn.trace)
            done(error)

        trace = _find_trace(connection, request)
        turn = Turn("on_connect", work, actor=self._actor, connection=connection, request=request, trace=trace)
        turns.begin(turn, finish, size=0, party=connection.party)


def _find_trace(connection: Connection, request: Request) -> object:
    """Return the trace of a request, or else of the message with which its connection joins."""
    return request.scope.get(TRACE, connection.trace)
