"""One socket that is joined to one thread, as the thread sees it. No I/O but the transport that it is given."""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, Protocol

import msgspec

from plait.errors import StoreError
from plait_schemas.codec import encode_json

__all__ = [
    "Connection",
    "Connections",
    "Frame",
    "Gate",
    "Principal",
    "Session",
    "Source",
    "Transport",
    "Wire",
    "encode_message",
]

Gate = Callable[[Callable[[StoreError | None], None]], None]
"""Calls a function when all changes made so far are durable, with the error if they could not be made so."""


_CLOSE_CODES = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


class Principal(msgspec.Struct, frozen=True):
    """Who is behind a connection, as the app's `authenticate` found."""

    id: str
    claims: dict[str, Any] = {}


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
    """How a protocol writes a thread's state; all connections with the same Wire get the same frame."""

    def state_frame(self, state: bytes) -> Frame:
        """Return the frame that carries `state`, which is JSON."""
        ...


class Session(Protocol):
    """The protocol's end of a connection: between its transport and its thread."""

    @property
    def wire(self) -> Wire:
        """How this session's state frames are written."""
        ...

    def deliver(self, frame: Frame, version: int) -> None:
        """Send a state frame of `wire`."""
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

    def close(self, code: int, reason: str) -> None:
        """Take note that the socket is closed. Called once."""
        ...


class Connection:
    """A client's socket on a thread. `state` is for the author's own use and is not sent anywhere."""

    __slots__ = (
        "_close_code",
        "_gate",
        "_transport",
        "id",
        "may_call",
        "principal",
        "protocol_enabled",
        "readonly",
        "session",
        "state",
        "tags",
    )

    def __init__(self, id: str, transport: Transport, gate: Gate, *, principal: Principal | None = None) -> None:
        self.id = id
        self.principal = principal
        self.tags: tuple[str, ...] = ()
        # A readonly connection receives, but its writes are refused; may be changed at any time.
        self.readonly = False
        # Whether `authorize` lets it call rpcs.
        self.may_call = True
        # Whether the frames of the protocol (identity, state) are sent.
        self.protocol_enabled = True
        self.state: Any = {}
        self.session: Session | None = None
        self._transport = transport
        self._gate = gate

    def send(self, data: object) -> None:
        """Send a str as a text message, bytes as a binary one, anything else as JSON text.

        It leaves after all changes of the thread made so far, and not at all if they could not be made durable.
        """
        self.send_frame(encode_message(data))

    def send_frame(self, frame: Frame) -> None:
        """Send a frame when all changes made so far are durable."""
        self._gate(lambda error: self._transport.send(frame) if error is None else None)

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


class Connections:
    """The open connections of one thread, in the order in which they joined."""

    __slots__ = ("_framed", "_frames", "_members")

    def __init__(self) -> None:
        self._members: dict[Connection, None] = {}
        # The state that was sent last, and the frames that were made of it.
        self._framed: bytes | None = None
        self._frames: dict[Wire, Frame] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._members))

    def tagged(self, tag: str | None) -> list[Connection]:
        """Return those that carry `tag`, or all."""
        return [each for each in self._members if tag is None or tag in each.tags]

    def add(self, connection: Connection) -> None:
        """Let a connection receive from here on."""
        self._members[connection] = None

    def discard(self, connection: Connection) -> None:
        """Let a connection receive nothing more."""
        self._members.pop(connection, None)

    def broadcast_state(self, state: bytes, version: int, *, source: Source) -> None:
        """Send a state to every connection that follows it but its source, encoded once a protocol."""
        for connection in self:
            session = connection.session
            if session is not None and connection is not source and connection.protocol_enabled:
                session.deliver(self.state_frame(session.wire, state), version)

    def state_frame(self, wire: Wire, state: bytes) -> Frame:
        """Return the frame of `wire` that carries `state`; made once as long as the state stays the same."""
        if state is not self._framed:
            self._framed = state
            self._frames = {}
        frame = self._frames.get(wire)
        if frame is None:
            frame = self._frames[wire] = wire.state_frame(state)
        return frame

    def broadcast(self, frame: Frame, *, without: Collection[Connection]) -> None:
        """Send a frame to every connection but some."""
        for connection in self:
            if connection not in without:
                connection.send_frame(frame)


def encode_message(data: object) -> Frame:
    """Return `data` as a frame: a str as text, bytes as binary, anything else as JSON text."""
    match data:
        case str():
            return Frame(data.encode())
        case bytes() | bytearray() | memoryview():
            return Frame(bytes(data), is_text=False)
        case _:
            return Frame(encode_json(data))
