"""A blocking client of the native protocol, which keeps a state up to date as far as the benchmark needs it."""

import socket
import time
from typing import Any

import msgspec

from benchmarks.protocols import NATIVE, join, native_call
from benchmarks.wire import PING, TEXT, pong, request
from plait_schemas.codec import decode_json
from plait_schemas.messages import Error, Joined, Result, decode_server
from plait_schemas.patch import apply

__all__ = ["NativeSocket"]

TIMEOUT = 60.0


class NativeSocket:
    """One socket, joined when it has been made; `have` and `document` are what an earlier one left."""

    def __init__(self, port: int, path: str, have: tuple[str, int] | None = None, document: Any = None) -> None:
        start = time.perf_counter()
        # Bytes received so far, and those of them that have not been looked at.
        self.bytes = 0
        self._rest = b""
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.sendall(request(path, f"127.0.0.1:{port}", NATIVE.subprotocol))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._take(1)
        assert head.startswith(b"HTTP/1.1 101"), head
        self._sock.sendall(join(have))
        frame = self._frame()
        # Seconds from the connect to the last byte, and to a state that is up to date.
        self.arrived = time.perf_counter() - start
        joined = decode_server(frame)
        assert isinstance(joined, Joined), frame[:500]
        # Whether it got the whole state.
        self.is_whole = isinstance(joined.state, msgspec.Raw)
        self.document = take(document, joined)
        self.shown = time.perf_counter() - start
        self.place = joined.epoch, joined.version

    def call(self, method: str, *args: int) -> Any:
        """Call an rpc; what it returned."""
        self._sock.sendall(native_call(method, list(args)))
        while True:
            message = decode_server(self._frame())
            assert not isinstance(message, Error), f"{method}: {message}"
            if isinstance(message, Result):
                return decode_json(message.value) if isinstance(message.value, msgspec.Raw) else None

    def detach(self) -> socket.socket:
        """The socket itself, for who goes on alone."""
        return self._sock

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _frame(self) -> bytes:
        """The next message; pings are answered."""
        while True:
            header = self._take(2)
            length = header[1]
            if length > 125:
                length = int.from_bytes(self._take(2 if length == 126 else 8))
            payload = self._take(length)
            if header[0] == PING:
                self._sock.sendall(pong(payload))
            else:
                assert header[0] == TEXT, f"not a message: first byte {header[0]:#x}, {payload!r}"
                return payload

    def _take(self, size: int) -> bytes:
        if len(self._rest) < size:
            # Pieces are put together once: a large state comes in many.
            pieces, missing = [self._rest], size - len(self._rest)
            while missing > 0:
                pieces.append(self._sock.recv(1 << 18))
                assert pieces[-1], "the server closed the connection"
                self.bytes += len(pieces[-1])
                missing -= len(pieces[-1])
            self._rest = b"".join(pieces)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def take(document: Any, joined: Joined) -> Any:
    """The state that a `joined` leads to."""
    if isinstance(joined.state, msgspec.Raw):
        return decode_json(joined.state)
    return document if isinstance(joined.ops, msgspec.UnsetType) else apply(document, joined.ops)
