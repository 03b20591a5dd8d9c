"""One socket that is joined to one thread, as the thread sees it. No I/O but the transport that it is given."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from plait.errors import StoreError
from plait.revision import Revision
from plait_schemas.codec import encode_json
from plait_schemas.messages import PresenceDiff

__all__ = [
    "PLAIN",
    "Connection",
    "Connections",
    "Frame",
    "Gate",
    "PlainWire",
    "Principal",
    "Rights",
    "Session",
    "Source",
    "Transport",
    "Wire",
]

Gate = Callable[[Callable[[StoreError | None], None]], None]
"""Calls a function when all changes made so far are durable, with the error if they could not be made so."""


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


class Frame:
    """One message to clients. `wire` keeps what a transport made of it, so that it is made once for all sockets."""

    __slots__ = ("data", "is_text", "wire")

    def __init__(self, data: bytes, *, is_text: bool = True) -> None:
        self.data = data
        self.is_text = is_text
        self.wire: bytes | None = None


class Transport(Protocol):
    """Carries frames to one peer; nothing that it does waits."""

    # Whether `ping` reaches the peer, and its pong comes back to the session.
    can_ping: bool

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer does not read as fast as is written; its session is told when it has caught up."""
        ...

    def send(self, frame: Frame) -> None:
        """Send a frame, or drop it when the socket is closed."""
        ...

    def ping(self, payload: bytes) -> None:
        """Send a WebSocket ping."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Begin to close the socket; more calls change nothing."""
        ...

    def pause(self) -> None:
        """Read nothing more from the peer until `resume`, or until the socket is closed."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    async def drained(self) -> None:
        """Wait while the peer does not read fast enough; returns at once when the socket is closed."""
        ...


class Wire(Protocol):
    """How a protocol writes what a thread tells; all connections with the same Wire get the same frames."""

    def change(self, revision: Revision) -> Frame | None:
        """Return what tells of a change, or None if nothing does."""
        ...

    def message(self, data: object) -> Frame:
        """Return an ordinary message: a str, bytes, or anything that is JSON."""
        ...

    def event(self, name: str, data: object) -> Frame | None:
        """Return what tells of an event, or None if nothing does."""
        ...

    def presence(self, diff: PresenceDiff) -> Frame | None:
        """Return what tells who is here, or None if nothing does."""
        ...


class PlainWire:
    """Ordinary messages only: a str as text, bytes as binary, anything else as JSON text."""

    def change(self, revision: Revision) -> Frame | None:
        return None

    def message(self, data: object) -> Frame:
        match data:
            case str():
                return Frame(data.encode())
            case bytes() | bytearray() | memoryview():
                return Frame(bytes(data), is_text=False)
            case _:
                return Frame(encode_json(data))

    def event(self, name: str, data: object) -> Frame | None:
        return None

    def presence(self, diff: PresenceDiff) -> Frame | None:
        return None


PLAIN: Final = PlainWire()


class Session(Protocol):
    """The protocol's end of a connection: between its transport and its thread."""

    def deliver(self, frame: Frame, revision: Revision) -> None:
        """Send the frame that tells of a change to `revision`."""
        ...

    def send(self, frame: Frame) -> None:
        """Send any other frame."""
        ...

    def present(self, frame: Frame) -> None:
        """Send who has come and gone."""
        ...

    def shown_version(self) -> int:
        """Return the version that the client shows, as far as is known; -1 for none."""
        ...

    def receive(self, data: bytes, *, is_text: bool) -> None:
        """Take a message from the peer; text is known to be UTF-8."""
        ...

    def pong(self, payload: bytes) -> None:
        """Take the peer's answer to a ping."""
        ...

    def drained(self) -> None:
        """Take note that the peer, which did not read fast enough, has caught up."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Take note that the socket is closed. Called once."""
        ...


class Connection:
    """A client's socket on a thread. `state` is for the author's own use and is not sent anywhere."""

    __slots__ = (
        "_gate",
        "_transport",
        "id",
        "presence",
        "protocol_enabled",
        "readonly",
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
        # A readonly connection receives, but its writes are refused; may be changed at any time.
        self.readonly = not rights.may_write
        # Whether the frames of the protocol (identity, state) are sent.
        self.protocol_enabled = True
        self.state: Any = {}
        # What the client lets others see of it; None for nothing.
        self.presence: Any = None
        self.session: Session | None = None
        self._transport = transport
        self._gate = gate

    @property
    def principal(self) -> Principal | None:
        """Who is behind it, as the app's `authenticate` found."""
        return self.rights.principal

    def grant(self, rights: Rights) -> None:
        """Let it do what who is behind it may do by now; what the author has made readonly stays so."""
        if rights.may_write != self.rights.may_write:
            self.readonly = not rights.may_write
        self.rights = rights

    def send(self, data: object) -> None:
        """Send a str as a text message, bytes as a binary one, anything else as JSON text.

        It leaves after all changes of the thread made so far, and not at all if they could not be made durable.
        """
        self.send_frame(self.wire.message(data))

    def send_frame(self, frame: Frame) -> None:
        """Send a frame when all changes made so far are durable."""
        carrier = self.session or self._transport
        self._gate(lambda error: carrier.send(frame) if error is None else None)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket, after what was sent before. Raises ValueError for a code that may not be sent."""
        if code not in _CLOSE_CODES and not 3000 <= code <= 4999:
            raise ValueError(f"{code} is not a close code that may be sent (RFC 6455, section 7.4)")
        self._gate(lambda _: self._transport.close(code, reason))

    def leave(self, code: int, reason: str) -> None:
        """Close the socket at once, whatever is on its way to the disk."""
        self._transport.close(code, reason)

    def pause(self) -> None:
        """Take nothing more from the client until the socket is closed."""
        self._transport.pause()

    async def drained(self) -> None:
        """Wait while the peer does not read fast enough."""
        await self._transport.drained()

    def __repr__(self) -> str:
        return f"<Connection {self.id}>"


Source = Connection | Literal["server"]
"""Who caused a change."""


# Nobody is connected to most threads that are awake; they share this.
_NOTHING: Final[dict[Any, Any]] = {}


class Connections:
    """The open connections of one thread, in the order in which they joined."""

    __slots__ = ("_framed", "_frames", "_ids", "_members")

    def __init__(self) -> None:
        self._members: dict[Connection, None] = _NOTHING
        # How many have each id: nearly always one, and who joins asks for its own.
        self._ids: dict[str, int] = _NOTHING
        # The revision that was sent last, and the frames that were made of it.
        self._framed: Revision | None = None
        self._frames: dict[Wire, Frame | None] = _NOTHING

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._members))

    def tagged(self, tag: str | None) -> list[Connection]:
        """Return those that carry `tag`, or all."""
        return [each for each in self._members if tag is None or tag in each.tags]

    def with_id(self, id: str) -> list[Connection]:
        """Return those of one client."""
        return [each for each in self._members if each.id == id] if id in self._ids else []

    def add(self, connection: Connection) -> None:
        """Let a connection receive from here on."""
        if self._members is _NOTHING:
            self._members, self._ids = {}, {}
        self._members[connection] = None
        self._ids[connection.id] = self._ids.get(connection.id, 0) + 1

    def discard(self, connection: Connection) -> None:
        """Let a connection receive nothing more."""
        if connection in self._members:
            del self._members[connection]
            self._ids[connection.id] -= 1
            if not self._ids[connection.id]:
                del self._ids[connection.id]

    def broadcast_change(self, revision: Revision, *, source: Source) -> None:
        """Tell every connection that follows the state of a change, but its source; encoded once a protocol."""
        for connection in self:
            session = connection.session
            if session is not None and connection is not source and connection.protocol_enabled:
                frame = self.change_frame(connection.wire, revision)
                if frame is not None:
                    session.deliver(frame, revision)

    def change_frame(self, wire: Wire, revision: Revision) -> Frame | None:
        """Return the frame of `wire` for a revision; made once as long as that is the last."""
        if revision is not self._framed:
            self._framed = revision
            self._frames = {}
        elif wire in self._frames:
            return self._frames[wire]
        frame = self._frames[wire] = wire.change(revision)
        return frame

    def broadcast(self, write: Callable[[Wire], Frame | None], *, without: Collection[Connection] = ()) -> None:
        """Send what `write` makes of something to every connection but some; made once a protocol."""
        frames: dict[Wire, Frame | None] = {}
        for connection in self:
            if connection in without:
                continue
            if connection.wire not in frames:
                frames[connection.wire] = write(connection.wire)
            frame = frames[connection.wire]
            if frame is not None:
                connection.send_frame(frame)
