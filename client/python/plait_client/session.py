"""A client's side of the protocol `plait.v1`, over all its sockets: no I/O, and no clock but the given times.

The same as `session.ts` of the JavaScript client, with the same names. The differences come from the languages. Here, a
task waits on `status`, `needs_socket` and `stopped`, and in JavaScript there are events; here, `send` and `send_binary`
encode, and in JavaScript they get frames; only JavaScript has the methods for a page's storage and for editors.
`tests/client/test_names.py` lists these names.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final, Literal

import msgspec

from plait_client.client_state import ClientState
from plait_client.conversations import Conversations, PartChanged, PartFrame
from plait_client.events import Changed, Dropped, Joined, Nacked, SessionEvent, apply_change
from plait_client.fold import Pending
from plait_client.keepalive import QUIET, Heartbeat
from plait_client.outbox import Outgoing, check_size
from plait_client.presence import Presences
from plait_client.sending import Sending, Unsent
from plait_client.sent_messages import SentMessage
from plait_schemas import codes, messages
from plait_schemas.encoding import encode_given
from plait_schemas.messages import ServerMessage
from plait_schemas.patch import Op, PatchError

__all__ = ["Session", "Status"]

logger = logging.getLogger(__name__)

MESSAGE_TOO_BIG: Final = 1009
"""The close code for a frame that is larger than the server takes."""

Status = Literal["connecting", "online", "offline", "closed"]
"""Until the first join or the first failure; while joined; from a loss until the next join; for good."""

_Phase = Literal["idle", "joining", "joined", "stopped"]


class Session(ClientState):
    """One client's conversation with one thread, over any number of sockets.

    The carrier of the frames calls `open`, `lost`, `receive` and, when `due` has come, `tick`, and after each of
    these and after each change sends what `take_frames` returns. It opens a new socket when `needs_socket` says so.
    """

    def __init__(
        self,
        client: str,
        *,
        now: Callable[[], float],
        schema: str | None = None,
        quiet: float = QUIET,
        has_state: bool = True,
    ) -> None:
        super().__init__(now, has_state=has_state)
        self.client: Final = client
        # The close code that ended the session for good.
        self.stopped: int | None = None
        # From the last join: the id by which others know this client, the thread's kind and name, and whether every
        # push will be refused.
        self.connection: str | None = None
        self.thread: str | None = None
        self.is_readonly = False
        self._schema = schema
        # The source of a change that does not name it.
        self._source = "server"
        self._sending = Sending(self._pushes, now)
        self._presences = Presences()
        self._heartbeat = Heartbeat(now, quiet)
        self._conversations = Conversations(now)
        self._phase: _Phase = "idle"
        # Whether the socket's join has a token; without one, the server knows the client from the request alone.
        self._has_token = False
        # Whether the session has not joined yet, and no socket was lost.
        self._is_new = True
        self._out: list[Outgoing] = []
        self._events: list[SessionEvent] = []

    # Status

    @property
    def status(self) -> Status:
        """Whether the thread is joined: "connecting", "online", "offline" or "closed"."""
        if self._phase == "joined":
            return "online"
        if self._phase == "stopped":
            return "closed"
        return "connecting" if self._is_new else "offline"

    @property
    def needs_socket(self) -> bool:
        """Whether a new socket must be opened, because there is none, or the old one must not be used."""
        return self._phase == "idle"

    @property
    def is_busy(self) -> bool:
        """Whether a push has no answer, a call or message waits, or, while finishing, a message is unconfirmed."""
        return len(self._pushes.all) > 0 or self._sending.is_busy or self._conversations.is_busy

    @property
    def presence(self) -> dict[str, Any]:
        """The presence of each connection, by its id."""
        return self._presences.all

    @property
    def own_presence(self) -> Any:
        """The presence of this client; None for nothing."""
        return self._presences.own

    @property
    def conversations(self) -> Conversations:
        """The parts that are open here, and the messages sent to them. Call `flush` after changing them."""
        return self._conversations

    # Output

    def take_frames(self) -> list[Outgoing]:
        """Return the frames and binary messages to send since the last call, in order."""
        out, self._out = self._out, []
        return out

    def take_events(self) -> list[SessionEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    # The socket

    def open(self, token: str | None = None) -> None:
        """Note that a socket has opened."""
        if self._phase == "stopped":
            return
        self._leave("joining")
        self._has_token = token is not None
        self._sending.reset()
        self._conversations.reset()
        self._heartbeat.heard()
        self._out = [messages.Join(self.client, self._pushes.fold.have, self._schema, token, self._has_state)]

    def lost(self, code: int) -> None:
        """Note that the socket was closed, or could not be opened.

        A client without a token joins once more when it may no longer stay: its cookie may have been renewed.
        """
        if self._phase == "stopped":
            return
        may_rejoin = code == codes.UNAUTHENTICATED and self._phase == "joined" and not self._has_token
        if code == MESSAGE_TOO_BIG and self._phase == "joined":
            self._pushes.suspect()
        self._is_new = False
        self._leave("idle")
        if codes.is_final(code) and not may_rejoin:
            self.stop(code)

    def stop(self, code: int) -> None:
        """End the session for good: nothing more is sent or received."""
        self.stopped = code
        self._leave("stopped")

    @property
    def due(self) -> float | None:
        """When to call `tick` next; None if nothing is due."""
        if self._phase == "joined":
            return min(self._heartbeat.due(may_ask=True), self._sending.due, self._conversations.due)
        return self._heartbeat.due(may_ask=False) if self._phase == "joining" else None

    def tick(self) -> None:
        """Do the work that is due."""
        if self.due is None:
            return
        self._pushes.release()
        self.flush()
        if self._heartbeat.is_dead:
            self._leave("idle")
        elif self._phase == "joined" and self._heartbeat.ask():
            self._send(messages.Ping())

    def heard(self) -> None:
        """Note that something has come from the server."""
        self._heartbeat.heard()

    def receive(self, frame: ServerMessage) -> None:
        """Take in a frame. Frames on a socket that is given up, or before `joined`, are ignored."""
        if self._phase not in ("joining", "joined"):
            return
        self.heard()
        try:
            self._dispatch(frame)
        except PatchError:
            self._pushes.fold.forget()
            self._presences.forget()
            self._leave("idle")

    # Requests

    def push(self, ops: Iterable[Op], check: Callable[[Any], None] | None = None) -> Pending | None:
        """Change the shown state; return None if there is no change. Raises ValueError if the operations do not fit.

        Not before the first join: the state must be known. `check` gets the next shown state, and may raise. Raises
        Refused in a session without the state.
        """
        self.check_state()
        ops = list(ops)
        if not ops:
            return None
        push = self._pushes.add(ops, check)
        self.flush()
        return push

    def call(
        self, method: str, args: Iterable[Any] = (), kwargs: dict[str, Any] | None = None, have: str | None = None
    ) -> int:
        """Call an rpc, after the pushes so far; return the ref of its results. Raises TooLarge.

        `have` follows a query: it is the tag of the last known result, or "". Only for a session that has joined.
        """
        values = {name: msgspec.Raw(encode_given(value)) for name, value in (kwargs or {}).items()}
        raw = [msgspec.Raw(encode_given(value)) for value in args]
        call = messages.Call(0, method, raw, values, have)
        ref = self._sending.calls.add(call, self._pushes.last, self._sending.max_frame)
        self.flush()
        return ref

    def cancel(self, ref: int) -> None:
        """Stop waiting for a call."""
        if self._sending.calls.end(ref):
            self._send(messages.Cancel(ref))
        # Pushes that follow an unsent call need not wait for it.
        self.flush()

    def send(self, data: Any) -> None:
        """Send an ordinary message, after the pushes so far. Only for a session that has joined. Raises TooLarge."""
        self._message(messages.Message(msgspec.Raw(encode_given(data))))

    def send_binary(self, data: bytes) -> None:
        """Send a binary message, after the pushes so far. Only for a session that has joined. Raises TooLarge."""
        self._message(data)

    def post(self, part: str, content: str, key: str, attachments: Iterable[Mapping[str, Any]] = ()) -> SentMessage:
        """Send a message to a part once, even across an outage. `key` names the message. Raises TooLarge."""
        message = self._conversations.send(part, content, key, attachments, self._sending.max_frame)
        self._tell(PartChanged(part))
        self.flush()
        return message

    def _message(self, message: messages.Message | bytes) -> None:
        if self._phase == "stopped":
            return
        self._sending.calls.add_message(message, self._pushes.last, self._sending.max_frame)
        # The count of messages can start only once joined; until then `Outbox.send` starts it.
        if self._phase == "joined":
            self._out += self._sending.outbox.count()
        self.flush()

    def set_presence(self, data: Any) -> None:
        """Show `data` of this client to others, also on later sockets; None shows nothing. Raises TooLarge."""
        self._sending.presence.put(self._presences.set(data, self._sending.max_frame))
        self.flush()

    def emit(self, name: str, data: Any) -> None:
        """Send an event to the others, at once or, without a connection, never. Raises TooLarge."""
        frame = messages.Emit(name, msgspec.Raw(encode_given(data)))
        check_size(frame, self._sending.max_frame)
        self._send(frame)

    def auth(self, token: str) -> None:
        """Show a fresh token; a socket that opens later shows its own."""
        self._sending.auth.put(messages.Auth(token))
        self.flush()

    def finish(self) -> None:
        """Finish: no more requests will come; ask whether the server has taken all messages."""
        for frame in self._sending.finish():
            self._send(frame)

    # Frames

    def _send(self, frame: Outgoing) -> None:
        if self._phase == "joined":
            self._out.append(frame)

    def _put(self, each: Outgoing | Unsent) -> None:
        match each:
            case Dropped(error, None):
                logger.warning("a message or a presence was not sent: %s", error)
            case Dropped() | Nacked():
                self._tell(each)
            case _:
                self._out.append(each)

    def _tell(self, event: SessionEvent | None) -> None:
        if event is not None:
            self._events.append(event)

    def flush(self) -> None:
        """Send the frames that may be sent now."""
        if self._phase == "joined":
            for each in self._sending.take():
                self._put(each)
            frames, events = self._conversations.take(self._sending.max_frame)
            self._out += frames
            self._events += events

    def _send_next_call(self) -> None:
        """Send the frames that have waited for a call to end."""
        if self._sending.calls.first is not None:
            self.flush()

    def _leave(self, phase: _Phase) -> None:
        """Stop using the socket: nothing under way will be answered on it."""
        self._phase = phase
        self._out = []
        self._events += self._sending.calls.fail_all(for_good=phase == "stopped")

    def _dispatch(self, frame: ServerMessage) -> None:
        match frame:
            case messages.Error():
                self._handle_error(frame)
            case messages.Joined():
                self._join(frame)
            case _ if self._phase != "joined":
                pass
            case messages.Change():
                self._source = frame.source or self._source
                self._tell(apply_change(self._pushes.fold, frame, self._source))
            case messages.Changes() | messages.Snapshot():
                self._tell(apply_change(self._pushes.fold, frame))
            case messages.Ack() | messages.Nack():
                self._handle_answer(frame)
            case messages.Result():
                self._tell(self._sending.calls.take(frame))
                self._send_next_call()
            case messages.PresenceDiff():
                self._presences.receive(frame)
                self._tell(frame)
            case messages.Pong():
                if frame.messages is not None:
                    self._sending.outbox.answered(frame.messages)
                self.flush()
            case messages.Page() | messages.Part() | messages.Unopened() | messages.Sent() | messages.Unsent():
                self._handle_part(frame)
            case messages.Event() | messages.Message() | messages.AuthExpiring():
                self._tell(frame)

    def _join(self, frame: messages.Joined) -> None:
        fold = self._pushes.fold
        before, had = fold.confirmed, fold.have
        self._pushes.join(frame)
        self.connection, self.thread, self.is_readonly = frame.connection, frame.thread, frame.readonly
        self._sending.max_frame = inf if frame.max_frame is None else frame.max_frame
        self._phase, self._is_new = "joined", False
        self._source = "server"
        self._tell(Joined())
        self._conversations.join(frame.epoch)
        if had != fold.have:
            ops = None if frame.ops is msgspec.UNSET else frame.ops
            self._tell(Changed(before, fold.confirmed, frame.epoch, frame.version, ops, None, fold.keys))
        match self._presences.resend(self._sending.max_frame):
            case messages.Presence() as presence:
                self._sending.presence.put(presence)
            case Dropped() as dropped:
                self._put(dropped)
        self.flush()

    def _handle_answer(self, frame: messages.Ack | messages.Nack) -> None:
        if isinstance(frame, messages.Ack):
            self._events += self._pushes.ack(frame, self.connection)
        else:
            self._tell(self._pushes.nack(frame))
        self.flush()

    def _handle_part(self, frame: PartFrame) -> None:
        self._events += self._conversations.receive(frame)
        self.flush()

    def _handle_error(self, frame: messages.Error) -> None:
        pings = self._sending.handle_refusal(frame)
        if pings is not None:
            for ping in pings:
                self._send(ping)
        elif frame.refused is not None:
            logger.warning("an event was not sent: %s", frame.message)
        else:
            # The server's message about a bad frame, before it closes the socket, is for people.
            self._tell(frame if frame.ref is None else self._sending.calls.fail(frame))
            self._send_next_call()
