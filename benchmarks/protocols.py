"""How a raw client opens a socket and changes a board, in each of the protocols that are compared."""

import http.client
import itertools
from collections.abc import Callable, Sequence

import msgspec

from benchmarks.documents import call
from benchmarks.wire import binary, text

__all__ = ["CLOUDFLARE", "COLYSEUS", "NATIVE", "PROTOCOLS", "YJS", "Protocol", "join", "seats"]

_numbers = itertools.count(1)


class Protocol(msgspec.Struct, frozen=True):
    """What a load must know about a protocol."""

    name: str
    # What the client sends when it has seen the cue, and what comes with the first state.
    opening: Callable[[], bytes]
    cue: bytes
    marker: bytes
    # Messages that a client gets until it has joined.
    greetings: int
    # One frame that calls a method of the board; the caller gets `answers` frames for the change.
    call: Callable[[str, list[int]], bytes]
    answers: int
    subprotocol: str | None = None


def join(have: tuple[str, int] | None = None) -> bytes:
    """The first frame of the native protocol, from a client of its own."""
    frame: dict[str, object] = {"type": "join", "client": f"bench-{next(_numbers)}"}
    return text(msgspec.json.encode({**frame, "have": have} if have else frame))


def native_call(method: str, args: Sequence[object]) -> bytes:
    """A call in the native protocol."""
    return text(msgspec.json.encode({"type": "call", "ref": next(_numbers), "method": method, "args": args}))


def colyseus_call(method: str, args: list[int]) -> bytes:
    """A message of room data, in MessagePack."""
    return binary(b"\x0d" + msgspec.msgpack.encode(method) + msgspec.msgpack.encode(args))


CLOUDFLARE = Protocol(
    name="cloudflare",
    opening=lambda: b"",
    cue=b"\r\n\r\n",
    marker=b'"cf_agent_state"',
    greetings=3,
    call=lambda method, args: text(call(1, method, *args)),
    answers=2,
)

NATIVE = Protocol(
    name="native",
    opening=join,
    cue=b"\r\n\r\n",
    marker=b'"state":',
    greetings=1,
    call=native_call,
    answers=2,
    subprotocol="plait.v1",
)

# The server names its serializer when it has accepted the client, which answers with the same code, 10. Then it sends
# the state, which contains the name of the first card.
COLYSEUS = Protocol(
    name="colyseus",
    opening=lambda: binary(b"\x0a"),
    cue=b"schema",
    marker=b"card-00000",
    greetings=2,
    call=colyseus_call,
    answers=1,
)

# The client asks for the text; the server does so, too, before it answers.
YJS = Protocol(
    name="yjs",
    opening=lambda: binary(b"\x00\x00\x01\x00"),
    cue=CLOUDFLARE.cue,
    marker=CLOUDFLARE.cue,
    greetings=2,
    call=lambda *_: b"",
    answers=0,
)

# benchmarks/bare.py, which relays each frame to all other sockets: a frame about as large as that of the change.
BARE = Protocol(
    name="bare",
    opening=lambda: b"",
    cue=CLOUDFLARE.cue,
    marker=CLOUDFLARE.marker,
    greetings=1,
    call=lambda _, args: text(b"-" * (60 + args[1] * (60 + args[2]))),
    answers=0,
)

PROTOCOLS = {protocol.name: protocol for protocol in (CLOUDFLARE, NATIVE, COLYSEUS, YJS, BARE)}


def seats(port: int, size: int, count: int) -> list[str]:
    """Make a room of Colyseus with a board of `size` bytes; returns the socket URLs of `count` seats in it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    target, paths = "create/board", list[str]()
    while len(paths) < count:
        body = msgspec.json.encode({"size": size})
        connection.request("POST", f"/matchmake/{target}", body, {"content-type": "application/json"})
        response = connection.getresponse()
        seat = msgspec.json.decode(response.read(), type=dict[str, str])
        paths.append(f"/{seat['processId']}/{seat['roomId']}?sessionId={seat['sessionId']}")
        target = f"joinById/{seat['roomId']}"
    connection.close()
    return paths
