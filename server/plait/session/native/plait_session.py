"""A session of the native protocol, `plait.v1`, after its join: see docs/protocol.md. No I/O."""

import asyncio
from typing import Any, Final

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.logs import log_error
from plait.actor.transport import Frame, LinkedTransport, Transport
from plait.errors import InvalidArguments, InvalidState, PlaitError, TooLarge, TooMany
from plait.instruments.protocol import tell_limit
from plait.limits import check_weight
from plait.session.native.client_calls import ClientCalls
from plait.session.native.emits import emit
from plait.session.native.follower import Follower
from plait.session.native.group import LinkGroup
from plait.session.native.opened import OpenedParts
from plait.session.native.pushes import Pushes
from plait.session.native.sends import Sends
from plait.session.native.tokens import Tokens
from plait.session.receive_queue import MessageOrder, ReceiveQueue
from plait.state.push_log import ClientPushes
from plait.state.revision import Revision
from plait_schemas import messages
from plait_schemas.codec import HALF_PAIR, NOT_JSON, decode_json, nests_deeper
from plait_schemas.codes import BAD_FRAME, TRY_AGAIN_LATER
from plait_schemas.frames import decode_broken, decode_client, decode_head, decode_partly, encode
from plait_schemas.messages import Join

__all__ = ["PlaitSession"]

_PONG: Final = Frame(encode(messages.Pong()))
# Messages that start no turn.
_TURNLESS: Final = (
    messages.Join,
    messages.Cancel,
    messages.Emit,
    messages.Presence,
    messages.Auth,
    messages.Ping,
    messages.Open,
    messages.Close,
    messages.Send,
)
# Seconds after which a client resends a push that was refused because of the backlog.
_PAUSE: Final = 1.0


class PlaitSession:
    """Handles one client's messages in order, and sends the client the changes and frames of the thread."""

    __slots__ = (
        "_actor",
        "_calls",
        "_client",
        "_connection",
        "_decode",
        "_follower",
        "_limiter",
        "_link",
        "_loop",
        "_messages",
        "_opened",
        "_pushes",
        "_queue",
        "_sends",
        "_tokens",
        "_transport",
    )

    def __init__(
        self,
        actor: Actor,
        connection: Connection,
        transport: Transport,
        client: ClientPushes,
        *,
        follower: Follower,
        queue: ReceiveQueue,
        tokens: Tokens,
    ) -> None:
        self._actor = actor
        self._connection = connection
        self._transport = transport
        # The transport, if it shares a link with others, with which changes may be cast to it.
        self._link = transport if isinstance(transport, LinkedTransport) and follower.has_state else None
        # The record of the client's pushes, shared with its other sockets and released when this one is closed.
        self._client = client
        # Renews the client's token before it expires.
        self._tokens = tokens
        self._loop = asyncio.get_running_loop()
        self._limiter = actor.limits.make_limiter(self._loop.time())
        # Any JSON fits a plain state, so large values that are pushed to it stay JSON.
        self._decode = decode_partly if actor.kind.state_type.is_plain else decode_client
        self._follower = follower
        follower.on_drained = self._resume
        self._calls = ClientCalls(actor, connection, follower)
        self._messages = MessageOrder()
        # Created by the first frame that needs them.
        self._opened: OpenedParts | None = None
        self._sends: Sends | None = None
        self._pushes = Pushes(actor, connection, client, queue, self._limiter, follower=follower)
        # Holds messages until `on_connect` has returned, and while older changes are read for a push.
        self._queue = queue
        queue.take = self._take

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Handle a message; if `is_text`, it is valid UTF-8."""
        self._queue.receive(data, is_text)

    def pong(self, payload: bytes) -> None:
        """Ignore the answer to a ping."""

    def close(self, code: int, reason: str) -> None:
        """Leave the thread, as the socket is closed."""
        self._queue.finish()
        self._connection.is_closed = True
        self._tokens.close()
        self._calls.close()
        self._queue.close()
        self._pushes.close()
        if self._opened is not None:
            self._opened.leave()
        self._actor.state.leave_client(self._client)
        self._actor.sockets.presence.set(self._connection.id, None)
        self._actor.sockets.leave(self._connection, code, reason)

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Send the frame of a change.

        Between a push and its answer, changes are sent one by one: a client cannot find its own change among several.
        """
        follower, connection = self._follower, self._connection
        follower.deliver(frame, revision, in_step=self._pushes.under_way > 0)
        if self._link is None or self._actor.state.views_vary:
            return
        if not follower.is_slow and not connection.is_closed:
            LinkGroup.enter(self._actor, connection, follower, self._link)

    def send(self, frame: Frame) -> None:
        """Send any other frame after the earlier changes."""
        self._follower.send(frame)

    def finish(self) -> None:
        """Send everything that waits for a slow peer."""
        self._follower.catch_up()

    def send_presence(self, frame: Frame) -> None:
        """Send a change of presence."""
        self._follower.send_presence(frame)

    def drained(self) -> None:
        """Send waiting frames, as the peer has caught up."""
        self._follower.drained()

    def _resume(self) -> None:
        self._calls.resume()
        if self._opened is not None:
            self._opened.drained()

    # Messages

    def _take(self, data: bytes, is_text: bool) -> None:
        if not is_text:
            if not self._is_limited(None) and self._messages.take():
                if self._limiter is not None:
                    self._limiter.charge_message(data)
                self._actor.sockets.receive(self._connection, data)
            return
        try:
            check_weight("message", data, self._actor.limits)
            message = self._decode(data)
        except (*NOT_JSON, TooLarge) as error:
            excess = self._make_deep() if isinstance(error, RecursionError) else error
            broken = decode_head(data) if isinstance(excess, TooLarge) else decode_broken(data)
            if broken is None:
                self._fail(str(error))
            elif not self._is_limited(broken):
                if self._limiter is not None:
                    self._limiter.charge_message(data)
                self._refuse_broken(broken, excess if isinstance(excess, TooLarge) else None)
            return
        if not self._is_limited(message):
            if self._limiter is not None:
                self._limiter.charge_message(data)
            self._handle(message, len(data))

    def _handle(self, message: messages.ClientMessage, size: int) -> None:
        match message:
            case messages.Push():
                self._follower.catch_up()
                self._pushes.receive(message)
            case messages.Call():
                self._calls.receive(message, size)
            case messages.Cancel():
                self._calls.cancel(message.ref)
            case messages.Message():
                if self._messages.take():
                    self._message(bytes(message.data))
            case messages.Emit():
                self._emit(message)
            case messages.Presence():
                self._present(bytes(message.data))
            case messages.Auth():
                self._tokens.renew(message.token)
            case messages.Open() | messages.Close() | messages.Send():
                self._handle_part(message)
            case messages.Ping(messages=None):
                self._transport.send(_PONG)
            case messages.Ping(messages=int(count)):
                self._messages.expect(count + 1)
                # Sent after the errors of earlier messages.
                self._follower.send_later(messages.Pong(self._messages.taken))
            case Join():
                self._fail("this socket has joined already")

    def _handle_part(self, message: messages.Open | messages.Close | messages.Send) -> None:
        match message:
            case messages.Open():
                self._open_parts().open(message)
            case messages.Close():
                self._open_parts().close(message.part)
            case messages.Send():
                self._find_sends().receive(message)

    def _make_deep(self) -> TooLarge:
        return TooLarge(f"JSON is nested more than {self._actor.limits.depth} deep", limit="depth")

    def _refuse_broken(self, message: messages.ClientMessage, excess: TooLarge | None) -> None:
        """Refuse a message that is too deep or too heavy to decode, or that is valid JSON only for JavaScript."""
        match message:
            case messages.Push():
                self._follower.catch_up()
                self._pushes.refuse(message, excess or InvalidState(f"the push is not JSON: {HALF_PAIR}", path=""))
            case messages.Call():
                error = excess or InvalidArguments(f"the call is not JSON: {HALF_PAIR}")
                self._connection.refuse_message("call", error, self._actor.instruments, self._actor.key)
                self._tell(error, message.ref)
            case messages.Send():
                self._find_sends().refuse(message, excess or InvalidArguments(f"the message is not JSON: {HALF_PAIR}"))
            case messages.Emit():
                error = excess or InvalidArguments(f"the event is not JSON: {HALF_PAIR}")
                self._connection.refuse_message("emit", error, self._actor.instruments, self._actor.key)
                self._refuse_emit(error)
            case messages.Message() if not self._messages.take():
                pass  # The client sends it again, after a missing earlier message.
            case messages.Message() | messages.Presence() | messages.Auth():
                error = excess or InvalidArguments(f"the frame is not JSON: {HALF_PAIR}")
                if isinstance(message, messages.Message):
                    self._connection.refuse_message("message", error, self._actor.instruments, self._actor.key)
                self._tell(error)
            case _:
                self._handle(message, 0)  # The other types contain no strings.

    def _open_parts(self) -> OpenedParts:
        if self._opened is None:
            self._opened = OpenedParts(self._actor, self._connection, self._transport, self._follower)
        return self._opened

    def _find_sends(self) -> Sends:
        if self._sends is None:
            self._sends = Sends(self._actor, self._connection, self._follower)
        return self._sends

    def _message(self, data: bytes) -> None:
        """Pass a message to `on_message`: a string as it is, anything else as JSON text."""
        try:
            value: Any = decode_json(data) if data[:1] == b'"' else data.decode()
        except NOT_JSON as error:
            self._fail(str(error))
            return
        self._actor.sockets.receive(self._connection, value)

    def _emit(self, message: messages.Emit) -> None:
        try:
            emit(self._actor, self._connection, message)
        except PlaitError as error:
            self._refuse_emit(error)

    def _refuse_emit(self, error: PlaitError) -> None:
        """Refuse an event for good: an event is of a moment, so the client does not send it again."""
        tell_limit(self._actor.instruments, error)
        self._follower.send_later(messages.Error(error.code, str(error), path=error.path, refused="emit"))

    def _present(self, data: bytes) -> None:
        limit = self._actor.limits.presence
        if len(data) > limit:
            self._tell(TooLarge(f"a presence has {len(data)} bytes, the limit is {limit}", limit="presence"))
            return
        if nests_deeper(data, self._actor.limits.depth):
            self._tell(self._make_deep())
            return
        try:
            self._connection.presence = decode_json(data)
        except NOT_JSON as error:
            self._fail(str(error))
            return
        self._actor.sockets.presence.set(self._connection.id, data)

    # Answers

    def _tell(self, error: PlaitError, ref: int | None = None) -> None:
        tell_limit(self._actor.instruments, error)
        self._follower.send_later(messages.Error(error.code, str(error), ref, error.path))

    def _tell_later(self, error: PlaitError, wait: float, refused: str, taken: int | None = None) -> None:
        """Ask the client to resend a frame of the type `refused` after `wait` seconds."""
        tell_limit(self._actor.instruments, error)
        answer = messages.Error(error.code, str(error), refused=refused, retry_after=wait, messages=taken)
        self._follower.send_later(answer)

    def _fail(self, message: str) -> None:
        """Answer an invalid frame with an error, and close the socket."""
        self._transport.send(Frame(encode(messages.Error("bad_frame", message))))
        self._connection.leave(BAD_FRAME, message)

    def _is_limited(self, message: messages.ClientMessage | None) -> bool:
        """Refuse a message that exceeds the limits; close the connection if the client does not slow down."""
        limits, limiter = self._actor.limits, self._limiter
        if limiter is not None and (wait := limiter.take(self._loop.time())):
            many = f"more than {limits.messages_per_second:g} messages a second; try again in {wait:.2f} s"
            error = TooMany(many, limit="messages_per_second")
            if limiter.is_exceeded:
                tell_limit(self._actor.instruments, error)
                log_error(error, self._actor.key, self._connection)
                self._connection.leave(TRY_AGAIN_LATER, str(error))
                return True
        elif isinstance(message, messages.Message | None) and (
            excess := self._actor.turns.find_excess(self._connection.party)
        ):
            wait, error = _PAUSE, excess
        elif self._connection.backlog >= limits.backlog and not isinstance(message, _TURNLESS):
            many = f"more than {limits.backlog} bytes of your messages wait to be handled; try again later"
            wait, error = _PAUSE, TooMany(many, limit="backlog")
        else:
            return False
        self._refuse(message, wait, error)
        return True

    def _refuse(self, message: messages.ClientMessage | None, wait: float, error: TooMany) -> None:
        match message:
            case messages.Push():
                self._pushes.limit(message, wait, error)
            case messages.Call():
                self._connection.refuse_message("call", error, self._actor.instruments, self._actor.key)
                self._tell(error, message.ref)
            case messages.Open():
                self._open_parts().refuse(message, error, wait)
            case messages.Send():
                self._find_sends().limit(message, wait, error)
            case messages.Emit():
                self._connection.refuse_message("emit", error, self._actor.instruments, self._actor.key)
                self._refuse_emit(error)
            case messages.Cancel() | messages.Ping() | messages.Close():
                self._handle(message, 0)  # A refusal costs as much, and would not cancel the call.
            case messages.Message() | None:
                self._connection.refuse_message("message", error, self._actor.instruments, self._actor.key)
                taken = self._messages.refuse()
                self._tell_later(error, wait, "message", taken)
            case _:
                self._tell_later(error, wait, type(message).__name__.lower())
