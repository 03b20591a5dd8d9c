"""A client's side of the protocol `plait.v1`: frames in, frames out, what is shown. No socket and no clock in it."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from plait_client.happenings import CallLost, Happening, Joined
from plait_client.heartbeat import Heartbeat
from plait_client.limit import FrameLimit
from plait_client.pending import Push
from plait_client.presence import Presences
from plait_client.pushes import Pushes
from plait_client.replica import Gap, Replica
from plait_client.resending import Resending
from plait_schemas import codes, messages
from plait_schemas.align import Keys
from plait_schemas.codec import encode_finite
from plait_schemas.messages import ClientMessage, ServerMessage
from plait_schemas.patch import Op

__all__ = ["Session", "Status"]

MESSAGE_TOO_BIG: Final = 1009
"""The close code for a frame that is larger than the server takes."""

Status = Literal["connecting", "online", "offline", "closed"]
"""Until the first join or the first failure; while joined; from a loss until the next join; for good."""


class Session:
    """One client's conversation with one thread, over as many sockets as it takes.

    Whoever carries the frames calls `opened`, `lost`, `receive` and, when `due` has come, `tick`, and after each of
    these and after each change sends what `take_frames` returns. It opens a new socket when `needs_socket` says so.
    """

    def __init__(self, client: str, *, clock: Callable[[], float], schema: str | None = None) -> None:
        self.client: Final = client
        self.status: Status = "connecting"
        # The close code that ended it for good.
        self.stopped: int | None = None
        self.needs_socket = True
        self.connection: str | None = None
        self.thread: str | None = None
        self.is_readonly = False
        self._schema = schema
        self._heartbeat = Heartbeat(clock)
        self._replica = Replica()
        self._limit = FrameLimit()
        self._resending = Resending()
        self._pushes = Pushes(
            self._replica,
            self._limit,
            clock=clock,
            send=self._send,
            tell=self._tell,
            is_held=lambda: self._resending.is_held,
        )
        self._document = self._pushes.document
        self._presences = Presences()
        self._clock = clock
        # The calls that are to be sent, and those that are under way.
        self._planned: set[int] = set()
        self._calls: set[int] = set()
        self._last_call = 0
        self._frames: list[ClientMessage | bytes] = []
        self._happenings: list[Happening] = []

    # What is known

    @property
    def shown(self) -> Any:
        """The state as its user sees it, as JSON values that nobody may change; None when there is none."""
        return self._document.shown

    @property
    def confirmed(self) -> Any:
        """The state as the server told it."""
        return self._replica.state

    @property
    def epoch(self) -> str | None:
        """The epoch of the confirmed state; None before the first join."""
        return self._replica.epoch

    @property
    def version(self) -> int:
        """The version of the confirmed state."""
        return self._replica.version

    @property
    def keys(self) -> Keys | None:
        """Which members name the elements of lists, as the server has told it."""
        return self._replica.keys

    def diff(self, old: Any, new: Any) -> list[Op]:
        """Return the operations that turn one state of the thread into another."""
        return self._replica.diff(old, new)

    @property
    def pending(self) -> list[Push]:
        """The pushes without an answer whose fate is open; those that were answered for already are left out."""
        return self._pushes.open

    @property
    def is_busy(self) -> bool:
        """Whether an answer to a push may still come, whose fate may be known, or of a message, or something waits."""
        return self._pushes.is_busy or self._resending.is_busy

    @property
    def presence(self) -> dict[str, Any]:
        """What connections let others see of them, by their ids."""
        return self._presences.others

    def take_frames(self) -> list[ClientMessage | bytes]:
        """Return the frames and binary messages to be sent since the last time, in their order."""
        frames, self._frames = self._frames, []
        return frames

    def take_happenings(self) -> list[Happening]:
        """Return what has happened since the last time."""
        happenings, self._happenings = self._happenings, []
        return happenings

    # Changing

    def edit(self, ops: Iterable[Op], check: Callable[[Any], None] | None = None) -> Push | None:
        """Change what is shown; None where there is nothing to do. Raises ValueError for what does not fit.

        Not before the first join: what is changed must be known. `check` is given what would be shown, and may raise.
        """
        push = self._document.edit(ops, check)
        self._pushes.send_due()
        return push

    # Everything else that is said

    def call(self, method: str, args: Iterable[Any] = (), kwargs: dict[str, Any] | None = None) -> int:
        """Call an rpc, after the pushes so far; return the ref that its results have. Raises TooLarge.

        Only for a session that has joined.
        """
        values = {name: msgspec.Raw(encode_finite(value)) for name, value in (kwargs or {}).items()}
        raw = [msgspec.Raw(encode_finite(value)) for value in args]
        frame = messages.Call(self._last_call + 1, method, raw, values)
        self._limit.check(frame)
        self._last_call = frame.ref
        self._planned.add(frame.ref)
        self._pushes.call_after(lambda: self._begin(frame), self._resending.may_send)
        return frame.ref

    def _begin(self, call: messages.Call) -> None:
        if call.ref in self._planned:
            self._planned.discard(call.ref)
            self._calls.add(call.ref)
            self._send(call)

    def cancel(self, ref: int) -> None:
        """Wait no more for a call."""
        self._planned.discard(ref)
        if ref in self._calls:
            self._calls.discard(ref)
            self._send(messages.Cancel(ref))

    def send(self, data: Any) -> None:
        """Send an ordinary message, after the pushes so far. Only for a session that has joined. Raises TooLarge."""
        frame = messages.Message(msgspec.Raw(encode_finite(data)))
        self._limit.check(frame)
        self._send_after_pushes(frame)

    def send_binary(self, data: bytes) -> None:
        """Send a binary message, after the pushes so far. Only for a session that has joined. Raises TooLarge."""
        self._limit.check(data)
        self._send_after_pushes(data)

    def _send_after_pushes(self, message: messages.Message | bytes) -> None:
        if self.status == "online":
            self._frames += self._resending.count()
        self._pushes.call_after(lambda: self._say(message), self._resending.may_send)

    def _say(self, message: messages.Message | bytes) -> None:
        self._frames += self._resending.send(message)

    def finish(self) -> None:
        """Nothing more will be asked for: what was sent is to be known of."""
        frames = self._resending.finish()
        if self.status == "online":
            self._frames += frames

    def set_presence(self, data: Any) -> None:
        """Let others see `data` of this client, also on sockets to come; None for nothing. Raises TooLarge."""
        frame = messages.Presence(msgspec.Raw(encode_finite(data)))
        self._limit.check(frame)
        self._presences.set(frame)
        if self.status == "online":
            self._resending.put_presence(frame)
            self._send_due()

    def renew(self, token: str) -> None:
        """Show a fresh token."""
        if self.status == "online":
            self._resending.put_token(messages.Auth(token))
            self._send_due()

    # Sockets and time

    def opened(self, token: str | None = None) -> None:
        """A socket has opened."""
        self._disconnect()
        self.needs_socket = False
        self._frames = [messages.Join(self.client, self._replica.have, self._schema, token)]
        self.heard()

    def lost(self, code: int) -> None:
        """The socket was closed, or could not be opened."""
        if code == MESSAGE_TOO_BIG and self.status == "online":
            self._pushes.suspect()
        self._disconnect()
        if self.stopped is None:
            self.status = "offline"
        if codes.is_final(code):
            self.stop(code)

    def stop(self, code: int) -> None:
        """End it for good."""
        self._calls |= self._planned
        self._disconnect()
        self.stopped, self.status, self.needs_socket = code, "closed", False

    def heard(self) -> None:
        """Something has come from the server, whatever it was."""
        self._heartbeat.heard()

    @property
    def due(self) -> float | None:
        """When `tick` is to be called next."""
        if self.needs_socket or self.stopped is not None:
            return None
        is_online = self.status == "online"
        due = self._heartbeat.due(may_ask=is_online)
        resumes_at = self._resending.due if is_online else None
        return min(time for time in (due, self._pushes.resumes_at, resumes_at) if time is not None)

    def tick(self) -> None:
        """Do what has become due."""
        if self.needs_socket or self.stopped is not None:
            return
        self._pushes.tick()
        self._send_due()
        if self._heartbeat.is_dead:
            self._disconnect()
        elif self.status == "online" and self._heartbeat.ask():
            self._send(messages.Ping())

    def _disconnect(self) -> None:
        """Be without a socket: nothing that was on its way will be answered on it."""
        self.needs_socket = True
        if self.status == "online":
            self.status = "offline"
        self._frames.clear()
        self._pushes.disconnected()
        self._resending.reset()
        self._happenings += [CallLost(ref) for ref in sorted(self._calls)]
        self._calls.clear()

    # What comes

    def receive(self, frame: ServerMessage) -> None:
        """Take in a frame. What comes on a socket that is given up, or before `joined`, is not looked at."""
        if self.needs_socket or self.stopped is not None:
            return
        self.heard()
        if self.status != "online" and not isinstance(frame, messages.Joined | messages.Error):
            return
        try:
            self._receive(frame)
        except Gap:
            self._replica.forget()
            self._presences.forget()
            self._disconnect()

    def _receive(self, frame: ServerMessage) -> None:
        match frame:
            case messages.Joined():
                self._join(frame)
            case messages.Change() | messages.Changes() | messages.Snapshot():
                self._tell(self._document.change(frame))
            case messages.Ack():
                self._pushes.acked(frame, self.connection)
            case messages.Nack():
                self._pushes.nacked(frame)
            case messages.Result() | messages.Error():
                self._answered(frame)
            case messages.PresenceDiff():
                self._presences.receive(frame)
                self._tell(frame)
            case messages.Event() | messages.Message() | messages.AuthExpiring():
                self._tell(frame)
            case messages.Pong(messages=int(taken)):
                self._resending.answered(taken)
                self._send_due()
            case messages.Pong():
                pass

    def _join(self, frame: messages.Joined) -> None:
        change = self._document.join(frame)
        self.connection, self.thread, self.is_readonly = frame.connection, frame.thread, frame.readonly
        self.status = "online"
        self._tell(Joined())
        if change is not None:
            self._tell(change)
        self._limit.size = frame.max_frame
        self._frames += self._resending.take_messages(self._clock())
        self._pushes.joined()
        for presence in self._presences.again(self._limit):
            self._resending.put_presence(presence)
        self._send_due()

    def _answered(self, frame: messages.Result | messages.Error) -> None:
        if isinstance(frame, messages.Error):
            asked = self._resending.refused(frame, self._clock())
            if asked is not None:
                self._frames += asked
                return
        if frame.ref is None:
            self._tell(frame)
        elif frame.ref in self._calls:
            if isinstance(frame, messages.Error) or frame.done:
                self._calls.discard(frame.ref)
            self._tell(frame)

    def _send_due(self) -> None:
        """Send what was refused and may come again by this time, and what waits for that."""
        if self.status != "online":
            return
        self._frames += self._resending.take_messages(self._clock())
        self._pushes.send_due()
        self._frames += self._resending.take_latest(self._clock())

    def _send(self, frame: ClientMessage | bytes) -> None:
        self._frames.append(frame)

    def _tell(self, happening: Happening) -> None:
        self._happenings.append(happening)
