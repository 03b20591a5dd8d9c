"""One socket that is joined to one thread, as the thread sees it. No I/O but the transport that it is given."""

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from plait.actor.mailbox import Done
from plait.actor.transport import Frame, Session, Transport
from plait.errors import StoreError
from plait.state.revision import Revision
from plait_schemas.codec import encode_json
from plait_schemas.messages import PresenceDiff

__all__ = ["PLAIN", "Connection", "Gate", "PlainWire", "Principal", "Rights", "Source", "Wire"]

Gate = Callable[[Callable[[StoreError | None], None]], None]
"""Calls a function when all changes made so far are durable, with the error if they could not be made so."""


# Bytes that a turn counts for, beside what it was caused by.
_TURN: Final = 1024

_CLOSE_CODES = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


class Principal(msgspec.Struct, frozen=True):
    """Who is behind a connection, as the app's `authenticate` found."""

    id: str
    claims: dict[str, Any] = {}
    # When it is no longer known who that is, in seconds since the epoch; a socket gets a chance to send a fresh token.
    expires_at: float | None = None


class Rights(NamedTuple):
    """Who is behind a connection, and what the app's `authorize` lets them do."""

    principal: Principal | None = None
    may_write: bool = True
    may_call: bool = True


_EVERYTHING: Final = Rights()


class Wire(Protocol):
    """How a protocol writes what a thread tells; all connections with the same Wire get the same frames."""

    def encode_change(self, revision: Revision) -> Frame | None:
        """Return what tells of a change, or None if nothing does."""
        ...

    def encode_message(self, data: object) -> Frame:
        """Return an ordinary message: a str, bytes, or anything that is JSON."""
        ...

    def encode_event(self, name: str, data: object) -> Frame | None:
        """Return what tells of an event, or None if nothing does."""
        ...

    def encode_presence(self, diff: PresenceDiff) -> Frame | None:
        """Return what tells who is here, or None if nothing does."""
        ...


class PlainWire:
    """Ordinary messages only: a str as text, bytes as binary, anything else as JSON text."""

    def encode_change(self, revision: Revision) -> Frame | None:
        return None

    def encode_message(self, data: object) -> Frame:
        match data:
            case str():
                return Frame(data.encode())
            case bytes() | bytearray() | memoryview():
                return Frame(bytes(data), is_text=False)
            case _:
                return Frame(encode_json(data))

    def encode_event(self, name: str, data: object) -> Frame | None:
        return None

    def encode_presence(self, diff: PresenceDiff) -> Frame | None:
        return None


PLAIN: Final = PlainWire()


class Connection:
    """A client's socket on a thread. `state` is for the author's own use and is not sent anywhere."""

    __slots__ = (
        "_gate",
        "_is_readonly",
        "_on_turns_ended",
        "_transport",
        "backlog",
        "id",
        "is_closed",
        "presence",
        "protocol_enabled",
        "rights",
        "session",
        "state",
        "tags",
        "wire",
    )

    def __init__(
        self, id: str, transport: Transport, gate: Gate, *, rights: Rights = _EVERYTHING, wire: Wire = PLAIN
    ) -> None:
        self.id = id
        self.wire = wire
        # Who is behind it, and what the app lets them do.
        self.rights = rights
        self.tags: tuple[str, ...] = ()
        self._is_readonly = False
        # Whether the frames of the protocol (identity, state) are sent.
        self.protocol_enabled = True
        self.state: Any = {}
        # What the client lets others see of it; None for nothing.
        self.presence: Any = None
        self.session: Session | None = None
        # Whether nothing more is taken from the client, as it has been closed, or is gone.
        self.is_closed = False
        # Bytes of the turns that it has caused and that have not ended.
        self.backlog = 0
        # Is told when there are none any more.
        self._on_turns_ended: Callable[[], None] | None = None
        self._transport = transport
        self._gate = gate

    @property
    def principal(self) -> Principal | None:
        """Who is behind it, as the app's `authenticate` found."""
        return self.rights.principal

    @property
    def readonly(self) -> bool:
        """Whether its writes are refused, by the author, who may change that at any time, or by `authorize`."""
        return self._is_readonly or not self.rights.may_write

    @readonly.setter
    def readonly(self, is_readonly: bool) -> None:
        self._is_readonly = is_readonly

    def grant(self, rights: Rights) -> None:
        """Let it do what who is behind it may do by now; what the author has made readonly stays so."""
        self.rights = rights

    def send(self, data: object) -> None:
        """Send a str as a text message, bytes as a binary one, anything else as JSON text.

        It leaves after all changes of the thread made so far, and not at all if they could not be made durable.
        """
        self.send_frame(self.wire.encode_message(data))

    def send_frame(self, frame: Frame) -> None:
        """Send a frame when all changes made so far are durable."""
        carrier = self.session or self._transport
        self._gate(lambda error: carrier.send(frame) if error is None else None)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket, after what was sent before; from here on nothing is taken from the client.

        Raises ValueError for a code that may not be sent, and TypeError for a reason that is no str.
        """
        if not isinstance(reason, str):
            raise TypeError(f"a close reason is a str, not a {type(reason).__name__}")
        if code not in _CLOSE_CODES and not 3000 <= code <= 4999:
            raise ValueError(f"{code} is not a close code that may be sent (RFC 6455, section 7.4)")
        self.is_closed = True
        self._gate(lambda _: self.leave(code, reason))

    def leave(self, code: int, reason: str) -> None:
        """Close the socket at once, whatever is on its way to the disk."""
        self.is_closed = True
        if self.session is not None:
            self.session.finish()
        self._transport.close(code, reason)

    def stop_reading(self) -> None:
        """Take nothing more from the client until the socket is closed."""
        self._transport.stop_reading()

    def track_turn(self, size: int, done: Done) -> Done:
        """Count a turn that it causes by `size` bytes, until the Done that is returned is told."""
        size += _TURN
        self.backlog += size

        def ended(result: Any, error: BaseException | None) -> None:
            self.backlog -= size
            if not self.backlog and self._on_turns_ended is not None:
                on_ended, self._on_turns_ended = self._on_turns_ended, None
                on_ended()
            done(result, error)

        return ended

    def call_when_turns_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all turns that it has caused have ended: at once, when they have."""
        if self.backlog:
            self._on_turns_ended = callback
        else:
            callback()

    async def drain(self) -> None:
        """Wait while the peer does not read fast enough."""
        await self._transport.drain()

    def __repr__(self) -> str:
        return f"<Connection {self.id}>"


Source = Connection | Literal["server"]
"""Who caused a change."""
