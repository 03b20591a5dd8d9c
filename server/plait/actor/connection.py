"""A client's connection to a thread. No I/O except through its transport."""

from collections.abc import Callable, Collection, Hashable
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

import msgspec

from plait.actor.rpc import Method
from plait.actor.transport import ClientSession, Frame, Transport
from plait.errors import Forbidden, PlaitError
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.state.principal import Principal
from plait.state.revision import Revision
from plait.state.view import EVERYTHING, View
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import encode_json
from plait_schemas.encoding import encode_given
from plait_schemas.messages import PresenceDiff

__all__ = [
    "PLAIN",
    "Connection",
    "ConnectionGroup",
    "Gate",
    "Lease",
    "Party",
    "Rights",
    "SentClient",
    "Source",
    "Wire",
    "prepare_message",
]

Gate = Callable[[Callable[[PlaitError | None], None]], None]
"""Calls a function when all changes made so far are durable, or with the error if they could not be stored."""

# The bytes that are charged for a turn in addition to the message that caused it.
_TURN: Final = 1024

_CLOSE_CODES = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


class Party(NamedTuple):
    """The party that limits charge: a principal by its id, or the address of clients without a principal."""

    user: str | None
    address: str = ""


class SentClient(msgspec.Struct):
    """A client, as handles send it to the node of a thread."""

    id: str
    user: str | None
    principal: Principal | None
    trace: object = None


class Rights(NamedTuple):
    """The principal of a connection, and its rights by the app's `authorize`."""

    principal: Principal | None = None
    may_write: bool = True
    may_call: bool = True
    # Whether the client may open the parts that clients see, and send messages to them.
    may_open: bool = True
    may_send: bool = True
    # Whether the client may write and remove files, and attach them to messages.
    may_upload: bool = True
    # Whether the client may send events to runs of tasks, cancel such runs, and end runs that others have begun.
    may_approve: bool = False

    def check_call(self, method: Method) -> None:
        """Raise Forbidden if the client may not call a method."""
        match method.action:
            case "approve":
                may = self.may_approve
            case "send":
                may = self.may_send
            case "messages":
                may = self.may_open
            case _:
                may = self.may_call
        if not may:
            raise Forbidden("Forbidden")

    def check_own(self, sender: str) -> None:
        """Raise Forbidden if the client may not change the branch at the question of a sender."""
        if not self.may_approve and (self.principal is None or self.principal.id != sender):
            raise Forbidden("another user has asked the question: changing its branch needs the right to approve")

    def check_end(self, users: Collection[str]) -> None:
        """Raise Forbidden if the client may not end a run that messages or calls of these users have begun."""
        is_own = self.principal is not None and self.principal.id in users
        if users and not (is_own or self.may_approve):
            raise Forbidden("another user has begun the run: ending it needs the right to approve")


_EVERYTHING: Final = Rights()


class Lease(Protocol):
    """The time for which a client has its rights."""

    # Whether the rights are certain to hold; if not, call `check`.
    holds: bool

    def check(self) -> None:
        """Raise Unauthenticated if the rights have ended."""
        ...


class Wire:
    """Encodes the frames of one protocol; all connections with the same Wire get the same frames.

    This one has ordinary messages only: a str as text, bytes as binary, anything else as JSON text.
    """

    sends_operations: ClassVar[bool] = False
    """Whether the frame of a change has operations, and not the whole state."""

    def encode_change(self, revision: Revision, view: View) -> Frame | None:
        """Return the frame for a change, as readers with a view see it; None if the protocol has none."""
        return None

    def encode_message(self, data: object) -> Frame:
        """Return the frame for an ordinary message: a str, bytes, or any value that can be JSON."""
        match data:
            case str():
                return Frame(data.encode())
            case bytes() | bytearray() | memoryview():
                return Frame(bytes(data), is_text=False)
            case _:
                return Frame(encode_json(data))

    def encode_event(self, name: str, data: object, sender: str | None = None) -> Frame | None:
        """Return the frame for an event of the thread, or of a client by the id `sender`; None if there is none."""
        return None

    def encode_presence(self, diff: PresenceDiff) -> Frame | None:
        """Return the frame for a change of presence; None if the protocol has none."""
        return None


PLAIN: Final = Wire()


def prepare_message(data: object) -> object:
    """Return a message for `encode_message`: a str or bytes as it is, anything else as JSON. Raises EncodeError."""
    if isinstance(data, bytes | bytearray | memoryview):
        return data
    encoded = encode_given(data)
    return data if isinstance(data, str) else msgspec.Raw(encoded)


class Connection:
    """A client's socket on a thread. `state` is for the author's own use; it is not sent or stored."""

    __slots__ = (
        "_gate",
        "_is_readonly",
        "_on_turns_ended",
        "_transport",
        "arrival",
        "backlog",
        "follows",
        "group",
        "id",
        "is_closed",
        "lease",
        "party",
        "presence",
        "rights",
        "session",
        "state",
        "tags",
        "trace",
        "traceparent",
        "view",
        "wire",
    )

    def __init__(
        self,
        id: str,
        transport: Transport,
        gate: Gate,
        *,
        rights: Rights = _EVERYTHING,
        wire: Wire = PLAIN,
        arrival: int | None = None,
        party: Hashable | None = None,
        view: View = EVERYTHING,
    ) -> None:
        self.id = id
        # The party that is charged for the waiting turns.
        self.party: Hashable = self if party is None else party
        # The number of the join, in order of arrival, if the client uses only the last of its sockets.
        self.arrival = arrival
        self.wire = wire
        # The client's view of the last durable state.
        self.view = view
        # The principal and its rights, replaced when the client authenticates again.
        self.rights = rights
        # Checked when a turn of the client begins; None if the rights never end.
        self.lease: Lease | None = None
        self.tags: tuple[str, ...] = ()
        self._is_readonly = False
        # Whether the frames of the protocol are sent: `protocol_enabled`.
        self.follows = True
        self.state: Any = {}
        # The client's presence; None if it has not set one.
        self.presence: Any = None
        self.session: ClientSession | None = None
        # The group of connections that share frames of changes; None if this connection gets its own.
        self.group: ConnectionGroup | None = None
        # Whether the connection is closed or closing: nothing more is accepted from the client.
        self.is_closed = False
        # The trace of the client's last message, for its effects, and the `traceparent` header of its request.
        self.trace: object = None
        self.traceparent: str | None = None
        # Bytes of the messages whose turns have not ended.
        self.backlog = 0
        # Called when all turns have ended.
        self._on_turns_ended: Callable[[], object] | None = None
        self._transport = transport
        self._gate = gate

    @property
    def principal(self) -> Principal | None:
        """The user of the connection, as returned by the app's `authenticate`."""
        return self.rights.principal

    @property
    def user(self) -> str | None:
        """The id of the principal; None without one."""
        return None if self.principal is None else self.principal.id

    @property
    def readonly(self) -> bool:
        """Whether writes are refused, by `authorize` or by the author, who may set this at any time."""
        return self._is_readonly or not self.rights.may_write

    @readonly.setter
    def readonly(self, is_readonly: bool) -> None:
        self._is_readonly = is_readonly

    @property
    def protocol_enabled(self) -> bool:
        """Whether the frames of the protocol (identity, state) are sent."""
        return self.follows

    @protocol_enabled.setter
    def protocol_enabled(self, is_enabled: bool) -> None:
        self.leave_group()
        self.follows = is_enabled

    def leave_group(self) -> None:
        """Receive changes separately from now on, as some of them are held back or left out."""
        if self.group is not None:
            self.group.remove(self)

    def begin_message(self, type: str, instruments: Instruments, key: ThreadKey) -> None:
        """Tell the instruments about a message. It is the cause of the connection's actions from now on."""
        if instruments is not NO_INSTRUMENTS:
            self.trace = instruments.message_began(key.kind, key.name, type, self.traceparent)

    def refuse_message(self, type: str, error: PlaitError, instruments: Instruments, key: ThreadKey) -> None:
        """Tell the instruments about a message that is not handled."""
        self.begin_message(type, instruments, key)
        instruments.message_ended(self.trace, error.code)

    def send(self, data: object) -> None:
        """Send a str as a text message, bytes as a binary message, anything else as JSON text.

        The message is sent when all changes of the thread made so far are durable, and dropped if they fail.
        """
        self.send_frame(self.wire.encode_message(prepare_message(data)))

    def send_frame(self, frame: Frame) -> None:
        """Send a frame when all changes made so far are durable."""
        carrier = self.session or self._transport
        self._gate(lambda error: carrier.send(frame) if error is None else None)

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket after everything that was sent before; accept nothing from the client from now on.

        Raises ValueError for a code that may not be sent, and TypeError for a reason that is not a str.
        """
        if not isinstance(reason, str):
            raise TypeError(f"a close reason is a str, not a {type(reason).__name__}")
        if code not in _CLOSE_CODES and not 3000 <= code <= 4999:
            raise ValueError(f"{code} is not a close code that may be sent (RFC 6455, section 7.4)")
        self.is_closed = True
        self._gate(lambda _: self.leave(code, reason))

    def leave(self, code: int, reason: str) -> None:
        """Close the socket without waiting for changes to be durable."""
        self.is_closed = True
        if self.session is not None:
            self.session.finish()
        self._transport.close(code, reason)

    def stop_reading(self) -> None:
        """Read nothing more from the client until the socket is closed."""
        self._transport.stop_reading()

    def begin_turn(self, size: int) -> int:
        """Charge a turn for a message of `size` bytes, and return the bytes that are charged until `end_turn`."""
        size += _TURN
        self.backlog += size
        return size

    def end_turn(self, size: int) -> None:
        """Stop charging the `size` bytes of a turn."""
        self.backlog -= size
        if not self.backlog and self._on_turns_ended is not None:
            on_ended, self._on_turns_ended = self._on_turns_ended, None
            on_ended()

    def call_when_turns_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when all turns of the connection have ended; at once if none is running or waiting."""
        if self.backlog:
            self._on_turns_ended = callback
        else:
            callback()

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer reads too slowly."""
        return self._transport.is_backed_up

    async def drain(self) -> None:
        """Wait while the peer reads too slowly."""
        await self._transport.drain()

    def __repr__(self) -> str:
        return f"<Connection {self.id}>"


class ConnectionGroup(Protocol):
    """Connections that get each change together."""

    def deliver(self, revision: Revision, source: object) -> int:
        """Send the change that made `revision` to all members but its source; return the number of receivers."""
        ...

    def remove(self, connection: Connection) -> None:
        """Send changes to a connection separately from now on."""
        ...


Source = Connection | Literal["server"]
"""The cause of a change: a connection, or "server" for code of the server."""
