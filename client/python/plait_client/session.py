"""A client's side of the protocol `plait.v1`: frames in, frames out, what is shown. No socket and no clock in it."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from plait_client.document import Document
from plait_client.happenings import Acked, CallLost, Happening, Joined, Nacked
from plait_client.pending import Pending, Push
from plait_client.presence import Presences
from plait_client.replica import Gap, Replica
from plait_client.sending import Sending
from plait_schemas import codes, messages
from plait_schemas.codec import encode_json
from plait_schemas.messages import ClientMessage, ServerMessage
from plait_schemas.patch import Op

__all__ = ["Session", "Status"]

QUIET: Final = 20.0
DEAD: Final = 40.0
"""After how many seconds of silence to ask for a sign of life, and to open a new socket."""

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
        self._clock = clock
        self._schema = schema
        self._replica = Replica()
        self._pending = Pending()
        self._sending = Sending(self._pending)
        self._document = Document(self._replica, self._pending)
        self._presences = Presences()
        # The push that is taken to have been too large, unless the next join says that it was answered for.
        self._suspect: Push | None = None
        self._calls: set[int] = set()
        self._last_call = 0
        self._frames: list[ClientMessage] = []
        self._happenings: list[Happening] = []
        self._heard_at = 0.0
        self._has_asked = False

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
    def pending(self) -> list[Push]:
        """The pushes without an answer whose fate is open; those that were answered for already are left out."""
        return [push for push in self._pending if not push.is_settled]

    @property
    def has_unanswered(self) -> bool:
        """Whether an answer to a push may still come, also to one whose fate is known."""
        return len(self._pending) > 0

    @property
    def presence(self) -> dict[str, Any]:
        """What connections let others see of them, by their ids."""
        return self._presences.others

    def take_frames(self) -> list[ClientMessage]:
        """Return the frames to be sent since the last time."""
        frames, self._frames = self._frames, []
        return frames

    def take_happenings(self) -> list[Happening]:
        """Return what has happened since the last time."""
        happenings, self._happenings = self._happenings, []
        return happenings

    # Changing

    def edit(self, ops: Iterable[Op]) -> Push | None:
        """Change what is shown; None where there is nothing to do. Raises ValueError for what does not fit.

        Not before the first join: what is changed must be known.
        """
        push = self._document.edit(ops)
        self._send_pushes()
        return push

    def set(self, state: Any) -> Push | None:
        """Change what is shown to `state`; None where it is that already."""
        push = self._document.set(state)
        self._send_pushes()
        return push

    # Everything else that is said

    def call(self, method: str, args: Iterable[Any] = (), kwargs: dict[str, Any] | None = None) -> int:
        """Call an rpc; return the ref that its results have. Only for a session that has joined."""
        values = {name: msgspec.Raw(encode_json(value)) for name, value in (kwargs or {}).items()}
        raw = [msgspec.Raw(encode_json(value)) for value in args]
        self._last_call += 1
        self._calls.add(self._last_call)
        self._frames.append(messages.Call(self._last_call, method, raw, values))
        return self._last_call

    def cancel(self, ref: int) -> None:
        """Wait no more for a call."""
        if ref in self._calls:
            self._calls.discard(ref)
            self._frames.append(messages.Cancel(ref))

    def send(self, data: Any) -> None:
        """Send an ordinary message. Only for a session that has joined."""
        self._frames.append(messages.Message(msgspec.Raw(encode_json(data))))

    def set_presence(self, data: Any) -> None:
        """Let others see `data` of this client, also on sockets to come; None for nothing."""
        frame = self._presences.set(data)
        if self.status == "online":
            self._frames.append(frame)

    def renew(self, token: str) -> None:
        """Show a fresh token."""
        if self.status == "online":
            self._frames.append(messages.Auth(token))

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
            self._suspect = self._pending.largest_sent()
        self._disconnect()
        if self.stopped is None:
            self.status = "offline"
        if codes.is_final(code):
            self.stop(code)

    def stop(self, code: int) -> None:
        """End it for good."""
        self._disconnect()
        self.stopped, self.status, self.needs_socket = code, "closed", False

    def heard(self) -> None:
        """Something has come from the server, whatever it was."""
        self._heard_at, self._has_asked = self._clock(), False

    @property
    def due(self) -> float | None:
        """When `tick` is to be called next."""
        if self.needs_socket or self.stopped is not None:
            return None
        due = self._heard_at + (DEAD if self._has_asked or self.status != "online" else QUIET)
        resumes_at = self._sending.resumes_at
        return due if resumes_at is None else min(due, resumes_at)

    def tick(self) -> None:
        """Do what has become due."""
        if self.needs_socket or self.stopped is not None:
            return
        now = self._clock()
        if self._sending.resumes_at is not None and now >= self._sending.resumes_at:
            self._sending.resumes_at = None
            self._send_pushes()
        if now >= self._heard_at + DEAD:
            self._disconnect()
        elif now >= self._heard_at + QUIET and self.status == "online" and not self._has_asked:
            self._has_asked = True
            self._frames.append(messages.Ping())

    def _disconnect(self) -> None:
        """Be without a socket: nothing that was on its way will be answered on it."""
        self.needs_socket = True
        if self.status == "online":
            self.status = "offline"
        self._frames.clear()
        self._sending.close()
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
            self._disconnect()

    def _receive(self, frame: ServerMessage) -> None:
        match frame:
            case messages.Joined():
                self._join(frame)
            case messages.Change() | messages.Changes() | messages.Snapshot():
                self._happenings.append(self._document.change(frame))
            case messages.Ack():
                self._acked(frame)
            case messages.Nack():
                self._nacked(frame)
            case messages.Result() | messages.Error():
                self._answered(frame)
            case messages.PresenceDiff():
                self._presences.receive(frame)
                self._happenings.append(frame)
            case messages.Event() | messages.Message() | messages.AuthExpiring():
                self._happenings.append(frame)
            case messages.Pong():
                pass

    def _join(self, frame: messages.Joined) -> None:
        change = self._document.join(frame)
        self.connection, self.thread, self.is_readonly = frame.connection, frame.thread, frame.readonly
        self.status = "online"
        self._happenings.append(Joined())
        if change is not None:
            self._happenings.append(change)
        self._refuse_suspect()
        self._sending.open()
        self._send_pushes()
        self._frames += self._presences.again()

    def _refuse_suspect(self) -> None:
        """Refuse, in the server's place, the push that it closed the last socket for: it would do so again."""
        push, self._suspect = self._suspect, None
        if push is not None and not push.is_settled:
            self._refuse(push, "too_large", "the change is larger than the server takes")

    def _refuse(self, push: Push, code: str, message: str) -> None:
        """Refuse a push, in the place of the server, which has not seen it."""
        answer = messages.Nack(push.ref, code, message, self.version)
        self._document.refused(push, self._pending.skip(push))
        self._happenings.append(Nacked(push, answer))

    def _send_pushes(self) -> None:
        while (orphan := self._sending.next_orphan()) is not None:
            self._refuse(orphan, "conflict", "what it was made on was refused")
        for push in self._sending.take():
            # Where its place is gone it must not be taken to lead anywhere in the state that is known by now.
            base = push.lost_on or self._replica.base
            made = None if push.made == base else push.made
            answered = self._pending[0].ref - 1
            self._frames.append(
                messages.Push(push.ref, base, made, None if answered == push.ref - 1 else answered, push.ops)
            )

    def _acked(self, frame: messages.Ack) -> None:
        push = self._sending.look_up(frame.ref)
        change = self._document.ack(frame, push, self.connection)
        if change is not None:
            self._happenings.append(change)
        if push is not None:
            self._sending.drop(push)
            self._document.answered(push, change)
            self._happenings.append(Acked(push, frame.version))
            self._send_pushes()

    def _nacked(self, frame: messages.Nack) -> None:
        match frame:
            case messages.Nack(code="rate_limited", retry_after=float(delay)):
                self._sending.was_superseded(frame.ref)
                self._sending.wait(frame.ref, self._clock() + delay)
            case messages.Nack(code="gap", expected=int(expected)):
                if not self._sending.was_superseded(frame.ref):
                    self._sending.expect(frame.ref, expected)
            case _:
                push = self._sending.look_up(frame.ref)
                if push is not None:
                    self._document.refused(push, self._sending.drop(push))
                    self._happenings.append(Nacked(push, frame))
        self._send_pushes()

    def _answered(self, frame: messages.Result | messages.Error) -> None:
        if frame.ref is None:
            self._happenings.append(frame)
        elif frame.ref in self._calls:
            if isinstance(frame, messages.Error) or frame.done:
                self._calls.discard(frame.ref)
            self._happenings.append(frame)
