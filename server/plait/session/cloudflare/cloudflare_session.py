"""A session of the Cloudflare Agents protocol, for its published clients. No I/O.

That protocol has no versions and no acknowledgements: a client shows the last state frame that it received, or its own
last write. So the session sends WebSocket pings with the state frames to learn which state the client shows, compares a
write with that state, and merges the difference. It answers a write that crossed a state frame with the merged state.
"""

import asyncio
import math
from functools import partial
from typing import Final

from starlette.requests import Request

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Wire
from plait.actor.logs import log_error
from plait.actor.transport import Frame, Transport
from plait.errors import Conflict, InvalidArguments, InvalidState, PlaitError, Readonly, Reject, TooLarge, TooMany
from plait.instruments.protocol import tell_limit
from plait.limits import check_weight
from plait.session.cloudflare.cloudflare_calls import CloudflareCalls
from plait.session.cloudflare.departures import Departures
from plait.session.cloudflare.seen import SeenTracker
from plait.session.cloudflare.whole_states import WholeStates
from plait.session.receive_queue import ReceiveQueue
from plait.state.revision import Revision
from plait.state.view import View
from plait_schemas.cloudflare import (
    MCP_SERVERS,
    READONLY,
    REJECTED,
    Call,
    Identity,
    Reason,
    StateError,
    StatePush,
    decode_broken,
    decode_client,
    decode_head,
    encode,
    encode_state,
)
from plait_schemas.codec import HALF_PAIR
from plait_schemas.codes import BAD_FRAME, TRY_AGAIN_LATER

__all__ = ["CLOUDFLARE", "CloudflareSession"]

_MCP_FRAME: Final = Frame(MCP_SERVERS)
# Seconds without a write after which a client has paused.
_PAUSE: Final = 0.25
# Seconds after its first pong in which a page sends queued messages: its browser may answer a ping before them.
_OPENING: Final = 0.1


class CloudflareWire(Wire):
    """Encodes frames of the Cloudflare protocol; a change is sent as the whole state."""

    def encode_change(self, revision: Revision, view: View) -> Frame:
        return Frame(encode_state(view.json(revision)))


CLOUDFLARE: Final = CloudflareWire()


class CloudflareSession:
    """Handles one client's messages in order, and sends the client the changes and frames of the thread."""

    __slots__ = (
        "_actor",
        "_calls",
        "_confirmation",
        "_connection",
        "_departures",
        "_is_behind",
        "_left_at",
        "_limiter",
        "_loop",
        "_opening",
        "_queue",
        "_refused_at",
        "_seen",
        "_transport",
        "_writes",
    )

    def __init__(self, actor: Actor, connection: Connection, transport: Transport, departures: Departures) -> None:
        self._actor = actor
        self._connection = connection
        self._transport = transport
        self._departures = departures
        self._loop = asyncio.get_running_loop()
        self._limiter = actor.limits.make_limiter(self._loop.time())
        # The last time at which a message exceeded the limits.
        self._refused_at = -math.inf
        self._queue = ReceiveQueue(connection, transport, self._take)
        self._calls = CloudflareCalls(actor, connection, transport)
        self._seen = SeenTracker(transport, actor.sockets.__len__)
        # None until the client writes, as most clients only read.
        self._writes: WholeStates | None = None
        # The version that this client showed on its last socket; None once the client has seen a state on this socket.
        self._left_at: int | None = None
        # The timer that ends the wait for a page's queued messages.
        self._opening: asyncio.TimerHandle | None = None
        # Whether state frames have been held back.
        self._is_behind = False
        # The timer that sends the state after a pause of the client, which may have written before it read a frame.
        self._confirmation: asyncio.TimerHandle | None = None

    def open(self, request: Request) -> None:
        """Join the thread."""
        self._left_at = self._last_shown()
        self._seen.is_page = "origin" in request.headers
        self._actor.sockets.join(self._connection, self, request, welcome=self._welcome, done=self._open_queue)

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Handle a message; text is valid UTF-8."""
        self._queue.receive(data, is_text)

    def pong(self, payload: bytes) -> None:
        """Handle the answer to a ping, after the earlier messages."""
        self._queue.call_in_order(self._note_seen, payload)

    def close(self, code: int, reason: str) -> None:
        """Leave the thread, as the socket is closed."""
        self._calls.close()
        if self._opening is not None:
            self._opening.cancel()
        if self._confirmation is not None:
            self._confirmation.cancel()
        if self._connection.session is None:
            self._connection.is_closed = True
            return  # The client has not joined. For a client that has, earlier messages are still handled.
        self._queue.finish()
        self._note_departure()
        # Note it again when the client's last write, which the client shows, is durable.
        self._actor.state.after(self._note_departure)
        self._actor.sockets.leave(self._connection, code, reason)

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Send a state frame; a slow peer gets the last one when it has caught up."""
        if not self._transport.is_backed_up and self._seen.send(frame, revision):
            self._is_behind = False
            return
        if not self._is_behind:
            self._actor.instruments.reader_lagged(self._actor.key.kind)
        self._is_behind = True

    def send(self, frame: Frame) -> None:
        """Send any other frame."""
        self._transport.send(frame)

    def finish(self) -> None:
        """Do nothing, as only states wait."""

    def send_presence(self, frame: Frame) -> None:
        """Do nothing, as the protocol has no presence."""

    def drained(self) -> None:
        """Send the last state that was held back, as the peer has caught up."""
        if self._is_behind:
            self._send_state(None)

    # Inside

    def _note_departure(self, _: object = None) -> None:
        self._departures.add(self._actor.key, self._connection.id, self._seen.version)

    def _open_queue(self, error: BaseException | None) -> None:
        self._queue.open(None if error is None else self._actor.explain(error, self._connection))

    def _welcome(self) -> None:
        actor, sent = self._actor, "nothing"
        if self._connection.protocol_enabled:
            if has_state := actor.state.durable.has_state:
                sent = "snapshot"
            if actor.kind.cls.send_identity:
                identity = Identity(actor.key.name, actor.key.kind, has_state)
                self._transport.send(Frame(encode(identity)))
            self._send_state(None)
            self._transport.send(_MCP_FRAME)
            if not self._seen.is_page:
                self._seen.note_first()
        actor.instruments.joined(actor.key.kind, "cloudflare", sent)

    def _take(self, data: bytes, is_text: bool) -> None:
        heavy: TooLarge | None = None
        try:
            check_weight("message", data, self._actor.limits)
            frame = decode_client(data) if is_text else None
            broken = decode_broken(data) if is_text and frame is None else None
        except TooLarge as excess:
            heavy, frame, broken = excess, None, decode_head(data) if is_text else None
        except RecursionError:
            self._connection.close(BAD_FRAME, "the JSON is nested too deeply")
            return
        if (error := self._excess(is_message=frame is None and broken is None)) is not None:
            self._refuse(frame or broken, error)
            return
        if self._limiter is not None:
            self._limiter.charge_message(data)
        if broken is not None:
            self._refuse_broken(broken, heavy)
            return
        match frame:
            case StatePush():
                self._push(frame.state)
            case Call():
                self._calls.receive(frame, len(data))
            case None:
                self._actor.sockets.receive(self._connection, data.decode() if is_text else data)

    def _refuse_broken(self, frame: StatePush | Call, heavy: TooLarge | None) -> None:
        """Refuse a message that is too heavy to decode, or that is valid JSON only for JavaScript."""
        match frame:
            case StatePush():
                self._seen.follow()
                self._connection.begin_message("push", self._actor.instruments, self._actor.key)
                error = heavy or InvalidState(f"the state is not JSON: {HALF_PAIR}", path="")
                self._reject(REJECTED, error, self._connection.trace)
            case Call():
                wrong = heavy or InvalidArguments(f"the call is not JSON: {HALF_PAIR}")
                self._connection.refuse_message("call", wrong, self._actor.instruments, self._actor.key)
                self._calls.fail(frame, str(wrong))

    def _last_shown(self) -> int | None:
        """Return the version that this client showed on its last socket; None if it is not known."""
        older = self._actor.sockets.find_by_id(self._connection.id)
        versions = [each.session._seen.version for each in older if isinstance(each.session, CloudflareSession)]
        return versions[-1] if versions else self._departures.find(self._actor.key, self._connection.id)

    def _note_seen(self, payload: bytes) -> None:
        """Record the answer to a ping, and continue."""
        if not self._seen.pong(payload):
            return
        if self._left_at is not None:
            if not self._seen.is_page:
                self._forget_departure()
            elif self._opening is None:
                self._opening = self._loop.call_later(_OPENING, self._forget_departure)
        if self._is_behind:
            self._send_state(None)

    def _forget_departure(self) -> None:
        """Forget the version that the client showed on its last socket, as it has seen a state on this socket."""
        if self._left_at is not None:
            self._left_at = None
            self._departures.forget(self._actor.key, self._connection.id)

    def _is_outdated(self) -> bool:
        """Return whether a write was made while the client was offline and the state has changed since."""
        if self._left_at is None or not self._connection.protocol_enabled:
            return False
        if not self._transport.can_ping and self._seen.has_all:
            return False
        return self._left_at != self._actor.state.current.version

    # State

    def _push(self, data: bytes) -> None:
        if self._actor.is_ending:
            return
        self._seen.follow()
        connection = self._connection
        connection.begin_message("push", self._actor.instruments, self._actor.key)
        trace = connection.trace
        if connection.readonly:
            self._reject(READONLY, Readonly(READONLY), trace)
            return
        if self._is_outdated():
            self._reject(REJECTED, Conflict("written while offline, and the state has changed since"), trace)
            return
        sent = self._seen.sent if self._seen.has_all else -1
        if self._writes is None:
            self._writes = WholeStates(self._actor, connection, self._seen, self._limiter)
        try:
            # Unknown fields are dropped, since the page may have been built for an earlier type.
            commit, is_as_sent = self._writes.write(data)
        except BaseException as error:  # validate_state_change may refuse with any exception.
            self._reject(REJECTED, error, trace)
            return
        self._forget_departure()
        commit.then(partial(self._finish_push, sent, is_as_sent, commit.version, trace))

    def _end_push(self, trace: object, outcome: str, code: str) -> None:
        self._actor.instruments.push_answered(self._actor.key.kind, code)
        self._actor.instruments.message_ended(trace, outcome)

    def _finish_push(
        self, sent: int, is_as_sent: bool, version: int, trace: object, error: BaseException | None
    ) -> None:
        if error is not None:
            self._reject(REJECTED, error, trace)
            return
        self._end_push(trace, "ok", "accepted" if is_as_sent else "rebased")
        if is_as_sent:  # If not, the client shows the state that it sent, which has no version.
            self._seen.note_shown(version)
        if sent != self._seen.sent or not is_as_sent:
            self._send_state(None)
        elif self._confirmation is not None or not self._seen.has_read_all:
            # The page may have written before it read a frame, as a browser answers pings even while its page is busy.
            # Each write restarts the pause, so typing is not disturbed.
            self._send_state_later()

    def _send_state_later(self) -> None:
        """Send the state when the client pauses."""
        if self._confirmation is not None:
            self._confirmation.cancel()
        self._confirmation = self._loop.call_later(_PAUSE, self._confirm_now)

    def _confirm_now(self) -> None:
        self._confirmation = None
        self._actor.state.after(self._send_state)

    def _reject(self, reason: Reason, error: BaseException, trace: object) -> None:
        log_error(error, self._actor.key, self._connection)
        tell_limit(self._actor.instruments, error)
        # Any exception of a hook refuses the change.
        code = error.code if isinstance(error, PlaitError) else Reject.code
        self._end_push(trace, code, code)
        self._tell_rejected(reason)
        self._actor.state.after(self._send_state)

    def _tell_rejected(self, reason: Reason) -> None:
        frame = Frame(encode(StateError(reason)))
        # Send it after everything that was sent before, even if earlier changes fail.
        self._actor.state.after(lambda _: self._transport.send(frame))

    def _send_state(self, _: object) -> None:
        """Send the durable state, so that the client stops showing its own write."""
        revision = self._actor.state.durable
        if revision.has_state and self._connection.protocol_enabled:
            frame = self._actor.sockets.change_frame(CLOUDFLARE, revision, self._connection.view)
            assert frame is not None
            self.deliver(frame, revision)

    # Limits

    def _excess(self, *, is_message: bool) -> TooMany | None:
        """Return an error if the client exceeds the limits with a frame, or an ordinary message; otherwise None."""
        limits = self._actor.limits
        if self._limiter is not None and (wait := self._limiter.take(self._loop.time())):
            many = f"more than {limits.messages_per_second:g} messages a second; try again in {wait:.2f} s"
            return TooMany(many, limit="messages_per_second")
        if self._connection.backlog >= limits.backlog:
            many = f"more than {limits.backlog} bytes of your messages wait to be handled; try again later"
            return TooMany(many, limit="backlog")
        return self._actor.turns.find_excess(self._connection.party) if is_message else None

    def _refuse(self, frame: StatePush | Call | None, error: TooMany) -> None:
        """Refuse a message that exceeds the limits; close the connection if the client does not slow down."""
        now = self._loop.time()
        tell_limit(self._actor.instruments, error)
        if now - self._refused_at > _PAUSE:  # Log one line for many messages.
            log_error(error, self._actor.key, self._connection)
        self._refused_at = now
        if self._limiter is not None and self._limiter.is_exceeded:
            self._connection.leave(TRY_AGAIN_LATER, str(error))
            return
        match frame:
            case StatePush():
                self._connection.begin_message("push", self._actor.instruments, self._actor.key)
                self._end_push(self._connection.trace, error.code, error.code)
                self._tell_rejected(REJECTED)
                self._send_state_later()  # One state answers many writes.
            case Call():
                self._connection.refuse_message("call", error, self._actor.instruments, self._actor.key)
                self._calls.fail(frame, str(error))
            case None:
                self._connection.refuse_message("message", error, self._actor.instruments, self._actor.key)
                self._connection.close(TRY_AGAIN_LATER, str(error))
