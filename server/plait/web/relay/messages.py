"""The messages of sockets and requests on a link, and the requests that travel with the first of them."""

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec
from starlette.types import Scope

from plait_schemas.encoding import EncodeError, encode_given

__all__ = [
    "BACKED",
    "BINARY",
    "CLOSE",
    "CLOSED",
    "ENDED",
    "FREE",
    "GONE",
    "LEAVE",
    "MARK",
    "MARKED",
    "OPEN",
    "PAUSE",
    "PONG",
    "REQUEST",
    "RESUME",
    "TAKEN",
    "TEXT",
    "SentScope",
    "pack_close",
    "pack_head",
    "unpack_close",
    "unpack_head",
]

# From the gateway of a socket that it has accepted: its messages, and its close code; GONE follows when its connection
# is lost.
OPEN: Final = 10
TEXT: Final = 11
BINARY: Final = 12
PONG: Final = 13
CLOSED: Final = 14
GONE: Final = 15
# The peer reads too slowly, or has caught up.
BACKED: Final = 16
FREE: Final = 17
# All frames before a MARK have been handed to the socket.
MARKED: Final = 18
# The gateway is shutting down: close the socket after its turns.
LEAVE: Final = 19
# From the owner: close the socket; pause and resume reading from its peer; answer with MARKED.
CLOSE: Final = 20
PAUSE: Final = 21
RESUME: Final = 22
MARK: Final = 23
# The last message of the owner: the socket is closed, and its turns have ended.
ENDED: Final = 24

# The first answer of the owner: it owns the thread, and accepts the socket.
TAKEN: Final = 25

# An HTTP request. The first chunk of its answer is the head; the other chunks and the reply are the body.
REQUEST: Final = 30

_CODE: Final = struct.Struct("<H")
_ASGI: Final[Mapping[str, str]] = {"version": "3.0", "spec_version": "2.3"}


def pack_close(code: int, reason: str) -> bytes:
    """Encode a close code and its reason."""
    return _CODE.pack(code) + reason.encode(errors="backslashreplace")


def unpack_close(data: bytes) -> tuple[int, str]:
    """Decode the bytes of `pack_close`."""
    return _CODE.unpack_from(data)[0], data[_CODE.size :].decode()


def pack_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode the status and the headers of an answer."""
    return msgspec.msgpack.encode((status, [(bytes(name), bytes(value)) for name, value in headers]))


def unpack_head(data: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Decode the bytes of `pack_head`."""
    return _decode_head(data)


class SentScope(msgspec.Struct, array_like=True, frozen=True):
    """The part of an ASGI scope that is sent: its standard keys, and the session that an app has added."""

    type: str
    http_version: str
    method: str
    scheme: str
    path: str
    raw_path: bytes | None
    query_string: bytes
    root_path: str
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int | None] | None
    server: tuple[str, int | None] | None
    subprotocols: list[str]
    # Whether pings reach the peer of a socket.
    can_ping: bool = False
    # For an HTTP request: the number of its endpoint, and the kind and name of its thread.
    endpoint: int = 0
    kind: str = ""
    thread: str = ""
    # The received part of the body of an HTTP request, and whether it is complete.
    body: bytes = b""
    is_whole: bool = True
    # The session that a middleware has found, as JSON.
    session: bytes | None = None

    @classmethod
    def of(cls, scope: Scope, **options: Any) -> Self:
        """Return the part of a scope that is sent, with further members."""
        return cls(
            scope["type"],
            scope.get("http_version", "1.1"),
            scope.get("method", "GET"),
            scope["scheme"],
            scope["path"],
            scope.get("raw_path"),
            scope.get("query_string", b""),
            scope.get("root_path", ""),
            [(bytes(name), bytes(value)) for name, value in scope["headers"]],
            scope.get("client"),
            scope.get("server"),
            list(scope.get("subprotocols") or ()),
            session=_encode_session(scope.get("session")),
            **options,
        )

    def encode(self) -> bytes:
        """Encode the scope for a link."""
        return _encode(self)

    @staticmethod
    def decode(data: bytes) -> "SentScope":
        """Decode the bytes of `encode`."""
        return _decode(data)

    def make(self) -> Scope:
        """Return a scope like the one that was sent."""
        scope: Scope = {
            "type": self.type,
            "asgi": dict(_ASGI),
            "http_version": self.http_version,
            "scheme": self.scheme,
            "path": self.path,
            "query_string": self.query_string,
            "root_path": self.root_path,
            "headers": self.headers,
            "client": self.client,
            "server": self.server,
            "state": {},
            "extensions": {},
        }
        if self.raw_path is not None:
            scope["raw_path"] = self.raw_path
        if self.type == "websocket":
            scope["subprotocols"] = self.subprotocols
        else:
            scope["method"] = self.method
        if self.session is not None:
            # Read-only, as a change would not reach the middleware.
            scope["session"] = MappingProxyType(msgspec.json.decode(self.session))
        return scope


def _encode_session(session: Any) -> bytes | None:
    """Return a session as JSON; None without one, or if JSON cannot express it."""
    if not isinstance(session, dict):
        return None
    getattr(session, "mark_accessed", bool)()  # Tells Starlette that the answer depends on the session.
    try:
        return encode_given(session)
    except EncodeError:
        return None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SentScope).decode
_decode_head = msgspec.msgpack.Decoder(tuple[int, list[tuple[bytes, bytes]]]).decode
