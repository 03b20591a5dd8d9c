"""The join of one socket of the native protocol, which ends with its session. No I/O."""

import msgspec
from starlette.requests import Request

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.transport import Frame, Transport
from plait.session.native.follower import Follower
from plait.session.native.plait_session import PlaitSession
from plait.session.native.tokens import Tokens
from plait.session.receive_queue import ReceiveQueue
from plait.state.missed import MissedChanges
from plait.state.push_log import ClientPushes
from plait.state.revision import Revision
from plait_schemas.frames import encode
from plait_schemas.messages import SUBPROTOCOL, Join

__all__ = ["Joining"]


class Joining:
    """Receives a socket's messages until `joined` is sent, and then makes the session that replaces it.

    Until then it is also the session of the joined connection, and drops the connection's frames, as `joined` covers
    them.
    """

    __slots__ = (
        "_actor",
        "_client",
        "_connection",
        "_follower",
        "_is_closed",
        "_join_frame",
        "_missed",
        "_queue",
        "_session",
        "_tokens",
        "_transport",
    )

    def __init__(
        self,
        actor: Actor,
        connection: Connection,
        transport: Transport,
        join: Join,
        *,
        tokens: Tokens,
    ) -> None:
        self._actor = actor
        self._connection = connection
        self._transport = transport
        self._join_frame = join
        # Renews the client's token before it expires.
        self._tokens = tokens
        # Read by `prepare`: the client's missed changes, unless the whole state is sent, and the record of its pushes.
        self._missed: MissedChanges | None = None
        self._client: ClientPushes
        self._follower = Follower(actor, connection, transport, has_state=join.state)
        # Messages of a client that cannot join are dropped.
        self._queue = ReceiveQueue(connection, transport, lambda *_: None)
        self._is_closed = False
        # The session, after `joined` is sent.
        self._session: PlaitSession | None = None

    async def prepare(self) -> None:
        """Read the client's last push and the changes that it has missed. `close` must follow. Raises StoreError."""
        actor, connection, join = self._actor, self._connection, self._join_frame
        # The client's pushes on an earlier socket may not be durable yet.
        await actor.state.wait_until_durable()
        self._missed = await self._follower.read_missed(join.have)
        # Another principal with the same client id is another client. Older stores, and apps without `authenticate`,
        # have stored clients without their principals.
        older = () if connection.principal is None else (actor.sockets.connection_id(SUBPROTOCOL, None, join.client),)
        self._client = await actor.state.clients.enter(connection.id, *older)

    def open(self, request: Request) -> None:
        """Join the thread."""
        self._actor.sockets.join(self._connection, self, request, welcome=self._welcome, done=self._open_queue)

    # The Receiver of the transport, until the session takes over

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Keep a message for the session."""
        self._queue.receive(data, is_text)

    def pong(self, payload: bytes) -> None:
        """Ignore the answer to a ping."""

    def drained(self) -> None:
        """Do nothing, as nothing is held back before `joined`."""

    def close(self, code: int, reason: str) -> None:
        """Leave the thread, as the socket is closed."""
        self._is_closed = self._connection.is_closed = True
        self._tokens.close()
        self._queue.close()
        self._actor.state.leave_client(self._client)
        if self._connection.session is not None:
            self._actor.sockets.presence.set(self._connection.id, None)
            self._actor.sockets.leave(self._connection, code, reason)

    # The Session of the connection, until the other one takes over

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Do nothing, as `joined` will contain the change."""

    def send(self, frame: Frame) -> None:
        """Send a frame that has waited for `joined`; drop earlier frames."""
        if self._session is not None:
            self._session.send(frame)

    def send_presence(self, frame: Frame) -> None:
        """Do nothing, as the whole presence follows `joined`."""

    def finish(self) -> None:
        """Do nothing, as nothing waits for the peer."""

    # Inside

    def _welcome(self) -> None:
        # Wait for the pushes on the client's older sockets: `joined` contains the number of the last push, and the
        # state after it.
        self._actor.state.after(self._make_session)

    def _make_session(self, _: object) -> None:
        if self._is_closed:
            return
        actor, connection, follower, have = self._actor, self._connection, self._follower, self._join_frame.have
        joined = follower.join(have, self._missed, self._client.ref)
        self._session = session = PlaitSession(
            actor,
            connection,
            self._transport,
            self._client,
            follower=follower,
            queue=self._queue,
            tokens=self._tokens,
        )
        connection.session = session
        self._transport.attach(session)
        self._transport.send(Frame(encode(msgspec.structs.replace(joined, max_frame=actor.limits.max_frame))))
        follower.tell_joined(SUBPROTOCOL, joined)
        # An empty presence is sent, too, if the client may show an older one.
        if connection.protocol_enabled and (actor.sockets.has_presence or have is not None):
            follower.send_presence_snapshot()
        self._tokens.follower = follower
        self._tokens.watch()

    def _open_queue(self, error: BaseException | None) -> None:
        """Begin to handle messages, after `joined` is sent."""
        explained = None if error is None else self._actor.explain(error, self._connection)
        self._actor.state.after(lambda _: self._queue.open(explained))
