"""Every frame of the native protocol, `plait.v1`; docs/protocol.md says what they mean and in which order they come."""

from collections.abc import Sequence
from typing import Final

import msgspec

from plait_schemas.codec import NOT_JSON, complete_pairs
from plait_schemas.patch import Op

__all__ = [
    "SUBPROTOCOL",
    "UNANSWERED",
    "Ack",
    "Auth",
    "AuthExpiring",
    "Call",
    "Cancel",
    "Change",
    "Changes",
    "ClientMessage",
    "Error",
    "Event",
    "Join",
    "Joined",
    "Message",
    "Nack",
    "Ping",
    "Pong",
    "Presence",
    "PresenceDiff",
    "Push",
    "Result",
    "ServerMessage",
    "Snapshot",
    "Version",
    "decode_broken",
    "decode_client",
    "decode_server",
    "encode",
]

SUBPROTOCOL: Final = "plait.v1"

UNANSWERED: Final = 64
"""How many pushes of one client may be without an answer: the server remembers what became of as many."""

Version = tuple[str, int]
"""An epoch, and a version in it."""

Unset = msgspec.UnsetType
UNSET: Final = msgspec.UNSET


class _Frame(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, omit_defaults=True):
    """A JSON object with a `type`; a field that is UNSET is left out."""


# Client to server


class Join(_Frame, frozen=True):
    """The first frame on a socket. `client` names the client over all its sockets; `have` is what it holds already."""

    client: str
    have: Version | None = None
    schema: str | None = None
    token: str | None = None


class Push(_Frame, frozen=True):
    """A change of the state: `ops` on `base`.

    `made` is the version on which the user made it, where it has been rebased onto a newer one since. `answered` is the
    last of the client's pushes whose answer it knew of, where that is not the one before.
    """

    ref: int
    base: Version
    ops: Sequence[Op]
    made: Version | None = None
    answered: int | None = None


class Call(_Frame, frozen=True):
    """A call of an rpc. `ref` is chosen by the client, and no other call under way on this socket has it."""

    ref: int
    method: str
    args: Sequence[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


class Cancel(_Frame, frozen=True):
    """Nobody waits for the call `ref` any more."""

    ref: int


class Message(_Frame, frozen=True):
    """An ordinary message, of either side."""

    data: msgspec.Raw


class Presence(_Frame, frozen=True):
    """What others are to see of this connection; null for nothing."""

    data: msgspec.Raw


class Auth(_Frame, frozen=True):
    """A fresh token on a live socket."""

    token: str


class Ping(_Frame, frozen=True):
    """Asks for a Pong: browsers do not show their pages WebSocket pings.

    With `messages` the client counts the ordinary messages of this socket: so many came before the next one.
    """

    messages: int | None = None


ClientMessage = Join | Push | Call | Cancel | Message | Presence | Auth | Ping


# Server to client


class Joined(_Frame, frozen=True):
    """The answer to a Join.

    `state` is the whole state at `version`; or `ops` lead to it from what the client has. With neither, the client
    has it already, or there is no state yet (version 0). `max_frame` is how many bytes one message of the client may
    have. `list_keys` names the members that identify the elements of lists, by the JSON pointers of these, in which `*`
    is any part, where it is not `id`, `key` or `_id`. `texts` are the places of the strings in which changes are found
    when whole states are compared, by JSON pointers in which `*` is any part.
    """

    connection: str
    thread: str
    epoch: str
    version: int
    last_ref: int = 0
    readonly: bool = False
    state: msgspec.Raw | Unset = UNSET
    ops: Sequence[Op] | Unset = UNSET
    max_frame: int | None = None
    list_keys: dict[str, str] = {}
    texts: Sequence[str] = []


class Change(_Frame, frozen=True):
    """The next version. `source` is a connection's id, "server", "migration", or "undo", a version and its source.

    Without one it is that of the last change on this socket that had one, and "server" before the first.
    """

    version: int
    ops: Sequence[Op]
    source: str | None = None


class Changes(_Frame, frozen=True):
    """Several versions at once, for a client that lags: those after `from_`, up to `to`."""

    from_: int = msgspec.field(name="from")
    to: int
    ops: Sequence[Op]


class Snapshot(_Frame, frozen=True):
    """The whole state: where operations would be larger, or are not there."""

    epoch: str
    version: int
    state: msgspec.Raw


class Ack(_Frame, frozen=True):
    """The push is durable, as `version`. `ops` is what was applied, where that is not what was pushed."""

    ref: int
    version: int
    rebased: bool = False
    ops: Sequence[Op] | Unset = UNSET


class Nack(_Frame, frozen=True):
    """The push was refused; `version` is the current one.

    `rate_limited` and `gap` say that it was not looked at: it is to be sent again after `retry_after` seconds, or
    from `expected` on.
    """

    ref: int
    code: str
    message: str
    version: int
    path: str | None = None
    retry_after: float | None = None
    expected: int | None = None


class Result(_Frame, frozen=True):
    """What an rpc returned, or with `done` false one chunk of what it streams."""

    ref: int
    done: bool
    value: msgspec.Raw | Unset = UNSET


class Error(_Frame, frozen=True):
    """The call `ref` failed; without a ref, another frame was bad, or was refused.

    Of a frame that came too fast, `refused` is the type, and `retry_after` the seconds after which it may come again;
    `messages` is how many ordinary messages of this socket were taken before it, where the client counts them.
    """

    code: str
    message: str
    ref: int | None = None
    path: str | None = None
    refused: str | None = None
    retry_after: float | None = None
    messages: int | None = None


class Event(_Frame, frozen=True):
    """What the thread emitted."""

    name: str
    data: msgspec.Raw


class PresenceDiff(_Frame, frozen=True, tag="presence"):
    """Who is here, by connection id: all of them in `snapshot`, or what has changed since the frame before."""

    snapshot: dict[str, msgspec.Raw] | Unset = UNSET
    joined: dict[str, msgspec.Raw] = {}
    updated: dict[str, msgspec.Raw] = {}
    left: Sequence[str] = []


class AuthExpiring(_Frame, frozen=True, tag="auth_expiring"):
    """The token is good for so many seconds more."""

    in_: float = msgspec.field(name="in")


class Pong(_Frame, frozen=True):
    """The answer to a Ping; to one that counts messages, with how many of them were taken."""

    messages: int | None = None


ServerMessage = (
    Joined
    | Change
    | Changes
    | Snapshot
    | Ack
    | Nack
    | Result
    | Error
    | Event
    | Message
    | PresenceDiff
    | AuthExpiring
    | Pong
)

_client: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_server: msgspec.json.Decoder[ServerMessage] = msgspec.json.Decoder(ServerMessage)
_encoder = msgspec.json.Encoder()


def decode_client(data: bytes | str) -> ClientMessage:
    """Return a frame that a client sent. Raises one of NOT_JSON."""
    return _client.decode(data)


def decode_broken(data: bytes) -> ClientMessage | None:
    """Return a client's frame that was not decoded because a text in it has half a surrogate pair; U+FFFD is there.

    None when that is not what was wrong.
    """
    completed = complete_pairs(data)
    try:
        return None if completed is None else _client.decode(completed)
    except NOT_JSON:
        return None


def decode_server(data: bytes | str) -> ServerMessage:
    """Return a frame that a server sent. Raises one of NOT_JSON."""
    return _server.decode(data)


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """Return the text of a frame."""
    return _encoder.encode(message)
