"""A conversation in the Cloudflare Agents protocol, so that its published clients work unchanged. No I/O.

That protocol has no versions and no acknowledgements: a client shows the last state frame that it got, or its own last
write. So the session follows what its client can have seen: behind state frames goes a WebSocket ping, which the peer
answers by itself. A write is compared with the state that the client showed, and what differs is merged; where it
crossed a state frame, it is answered with the state that both have led to.
"""

import asyncio
import math
from functools import partial
from typing import Final

from starlette.requests import Request

from plait.actor.actor import Actor
from plait.actor.connection import Connection, PlainWire
from plait.actor.logs import log_error
from plait.actor.transport import Frame, Transport
from plait.errors import Conflict, InvalidState, Readonly, TooMany
from plait.session.cloudflare.calls import CloudflareCalls
from plait.session.cloudflare.departures import Departures
from plait.session.cloudflare.seen import SeenTracker
from plait.session.cloudflare.whole_states import WholeStates
from plait.session.receive_queue import ReceiveQueue
from plait.state.revision import Revision
from plait.state.work import weigh
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
    encode,
    encode_state,
)
from plait_schemas.codec import HALF_PAIR
from plait_schemas.codes import BAD_FRAME, TRY_AGAIN_LATER

__all__ = ["CLOUDFLARE", "CloudflareSession"]

_MCP_FRAME: Final = Frame(MCP_SERVERS)
# A client that pushes nothing for this many seconds has paused.
_PAUSE: Final = 0.25


class CloudflareWire(PlainWire):
    """Tells of a change by the whole state."""

    def encode_change(self, revision: Revision) -> Frame:
        return Frame(encode_state(revision.require_json()))


CLOUDFLARE: Final = CloudflareWire()


class CloudflareSession:
    """Takes what one client sends, in order, and sends it what its thread has to tell."""

    __slots__ = (
        "_actor",
        "_calls",
        "_confirmation",
        "_connection",
        "_departures",
        "_history",
        "_is_behind",
        "_left_at",
        "_limiter",
        "_loop",
        "_queue",
        "_refused_at",
        "_seen",
        "_transport",
        "_writes",
    )

    def __init__(self, actor: Actor, connection: Connection, transport: Transport, departures: Departures) -> None:
        self._actor = actor
        self._history = actor.pipeline.history
        self._connection = connection
        self._transport = transport
        self._departures = departures
        self._loop = asyncio.get_running_loop()
        self._limiter = actor.limits.make_limiter(self._loop.time())
        # When something was last refused because it was too much.
        self._refused_at = -math.inf
        self._queue = ReceiveQueue(connection, transport, self._take)
        self._calls = CloudflareCalls(actor, connection, transport)
        self._seen = SeenTracker(transport, self._told)
        # None until the client writes: most only read.
        self._writes: WholeStates | None = None
        # The version that this client showed on its last socket, until it has seen a state on this one.
        self._left_at: int | None = None
        # Whether state frames have been held back.
        self._is_behind = False
        # Sends the state when the client, which may have overwritten a frame unread, has paused.
        self._confirmation: asyncio.TimerHandle | None = None

    def open(self, request: Request) -> None:
        """Join the thread."""
        self._left_at = self._last_shown()
        self._seen.is_page = "origin" in request.headers
        self._actor.hooks.connect(self._connection, request, join=self._join, done=self._queue.opened)

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Take one message; text is known to be UTF-8."""
        self._queue.receive(data, is_text)

    def pong(self, payload: bytes) -> None:
        """Take the answer to a ping."""
        self._seen.pong(payload)

    def close(self, code: int, reason: str) -> None:
        """Take note that the socket is closed."""
        self._seen.close()
        self._calls.close()
        if self._confirmation is not None:
            self._confirmation.cancel()
        if self._connection.session is None:
            self._connection.is_closed = True
            return  # It has not joined. Of who has, what came before is done, if `on_connect` lets it in.
        self._note_departure()
        # Again when its own last write, which it shows, is stored.
        self._actor.pipeline.after(self._note_departure)
        self._actor.disconnect(self._connection, code, reason)

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Send a state frame; a peer that does not read fast enough gets the last one when it has caught up."""
        if self._transport.is_backed_up:
            self._is_behind = True
            self._seen.note_held_back()
            return
        self._is_behind = False
        self._transport.send(frame)
        self._seen.note_sent(self._history.last)

    def send(self, frame: Frame) -> None:
        """Send any other frame."""
        self._transport.send(frame)

    def finish(self) -> None:
        """No frames wait but states."""

    def send_presence(self, frame: Frame) -> None:
        """The protocol has no presence."""

    def drained(self) -> None:
        """Take note that the peer has caught up."""
        if self._is_behind:
            self._send_state(None)

    # Inside

    def _note_departure(self, _: object = None) -> None:
        self._departures.add(self._actor.key, self._connection.id, self._seen.version)

    def _join(self) -> bool:
        actor, connection = self._actor, self._connection
        connection.session = self
        durable = self._history.durable
        if connection.protocol_enabled:
            has_state = durable.has_state
            if actor.thread.send_identity:
                identity = Identity(actor.key.name, actor.key.kind, has_state)
                self._transport.send(Frame(encode(identity)))
            self._send_state(None)
            self._transport.send(_MCP_FRAME)
            self._seen.note_first()
        actor.connections.add(connection)
        return True

    def _take(self, data: bytes, is_text: bool) -> None:
        try:
            frame = decode_client(data) if is_text else None
            broken = decode_broken(data) if is_text and frame is None else None
        except RecursionError:
            self._connection.close(BAD_FRAME, "JSON is nested too deep")
            return
        if (error := self._excess()) is not None:
            self._refuse(frame or broken, error)
            return
        if self._limiter is not None:
            self._limiter.charge(weigh(len(data)))
        if broken is not None:
            self._refuse_broken(broken)
            return
        match frame:
            case StatePush():
                self._push(frame.state)
            case Call():
                self._calls.receive(frame, len(data))
            case None:
                self._actor.message(self._connection, data.decode() if is_text else data)

    def _refuse_broken(self, frame: StatePush | Call) -> None:
        """Refuse what a client takes for JSON, and nobody else."""
        match frame:
            case StatePush():
                self._seen.follow()
                self._reject(REJECTED, InvalidState(f"the state is not JSON: {HALF_PAIR}", path=""))
            case Call():
                self._calls.fail(frame, f"the call is not JSON: {HALF_PAIR}")

    def _last_shown(self) -> int | None:
        """Return the version that this client showed on a socket that it had before, None if it is new here."""
        older = self._actor.connections.with_id(self._connection.id)
        versions = [each.session._seen.version for each in older if isinstance(each.session, CloudflareSession)]
        return versions[-1] if versions else self._departures.take(self._actor.key, self._connection.id)

    def _told(self) -> None:
        self._left_at = None

    def _is_outdated(self) -> bool:
        """Tell whether the client writes what it thought of while it was away, over what others have set since."""
        if self._left_at is None or not self._connection.protocol_enabled or self._seen.has_all:
            return False
        return self._left_at != self._history.current.version

    # State

    def _push(self, data: bytes) -> None:
        self._seen.follow()
        connection = self._connection
        if connection.readonly:
            self._reject(READONLY, Readonly(READONLY))
            return
        if self._is_outdated():
            self._reject(REJECTED, Conflict("written while offline, over a newer state"))
            return
        sent = self._seen.sent if self._seen.has_all else -1
        if self._writes is None:
            self._writes = WholeStates(self._actor, connection, self._seen, self._charge)
        try:
            # It may be of a type that the page was built for: fields that are unknown are dropped.
            commit, is_as_sent = self._writes.write(data)
        except Exception as error:  # Whatever the author's validate_state_change raises refuses the change.
            self._reject(REJECTED, error)
            return
        self._left_at = None
        commit.then(partial(self._pushed, sent, is_as_sent, commit.version))

    def _pushed(self, sent: int, is_as_sent: bool, version: int, error: BaseException | None) -> None:
        if error is not None:
            self._seen.screen.note_lost(self._history.durable)
            self._reject(REJECTED, error)
            return
        self._seen.note_shown(version)
        if sent != self._seen.sent or not is_as_sent:
            self._send_state(None)
        else:
            self._confirm()

    def _confirm(self) -> None:
        """Send the state in a moment, if the client may have written over a frame that its page had not read.

        A browser answers pings while its page is busy. Each further push puts it off, so that typing is not disturbed.
        """
        if self._confirmation is not None or not self._seen.has_read_all:
            self._send_state_later()

    def _send_state_later(self) -> None:
        if self._confirmation is not None:
            self._confirmation.cancel()
        self._confirmation = self._loop.call_later(_PAUSE, self._confirm_now)

    def _confirm_now(self) -> None:
        self._confirmation = None
        self._actor.pipeline.after(self._send_state)

    def _reject(self, reason: Reason, error: BaseException) -> None:
        log_error(error, self._actor.key, self._connection)
        self._tell_rejected(reason)
        self._actor.pipeline.after(self._send_state)

    def _tell_rejected(self, reason: Reason) -> None:
        frame = Frame(encode(StateError(reason)))
        # Behind what was sent before, whatever became of the changes before it.
        self._actor.pipeline.after(lambda _: self._transport.send(frame))

    def _send_state(self, _: object) -> None:
        """Send the state as it is, so that the client shows that and not its own write."""
        durable = self._history.durable
        if durable.has_state and self._connection.protocol_enabled:
            frame = self._actor.connections.change_frame(CLOUDFLARE, durable)
            assert frame is not None
            self.deliver(frame, durable)
            self._seen.note_sent_again()

    # Limits

    def _charge(self, count: float) -> None:
        if self._limiter is not None:
            self._limiter.charge(count)

    def _excess(self) -> TooMany | None:
        """Return what is too much, by what has come or by what waits; None when nothing is."""
        limits = self._actor.limits
        if self._limiter is not None and (wait := self._limiter.take(self._loop.time())):
            return TooMany(f"more than {limits.messages_per_second:g} messages a second; try again in {wait:.2f} s")
        if self._connection.backlog >= limits.backlog:
            return TooMany(f"more than {limits.backlog} bytes of yours wait for their turns; try again later")
        return None

    def _refuse(self, frame: StatePush | Call | None, error: TooMany) -> None:
        """Refuse a message in its own way. Who goes on too fast regardless is closed."""
        now = self._loop.time()
        if now - self._refused_at > _PAUSE:  # One line for many.
            log_error(error, self._actor.key, self._connection)
        self._refused_at = now
        if self._limiter is not None and self._limiter.is_exceeded:
            self._connection.leave(TRY_AGAIN_LATER, str(error))
            return
        match frame:
            case StatePush():
                self._tell_rejected(REJECTED)
                self._send_state_later()  # One state for many pushes.
            case Call():
                self._calls.fail(frame, str(error))
            case None:
                self._connection.close(TRY_AGAIN_LATER, str(error))
