"""A blocking WebSocket client, which counts what it receives."""

import socket
import time

from benchmarks.wire import BEGIN, BINARY, END, PING, TEXT, pong, request

__all__ = ["MessageSocket"]

TIMEOUT = 60.0


class MessageSocket:
    """One socket, which is open when the constructor returns."""

    def __init__(self, port: int, path: str, subprotocol: str | None = None) -> None:
        self._start = time.perf_counter()
        # Bytes received so far, and those of them that have not been looked at.
        self.bytes = 0
        self._rest = b""
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.sendall(request(path, f"127.0.0.1:{port}", subprotocol))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._take(1)
        assert head.startswith(b"HTTP/1.1 101"), head

    @property
    def age(self) -> float:
        """Seconds since the connect."""
        return time.perf_counter() - self._start

    def send(self, data: bytes) -> None:
        """Send frames that are already encoded."""
        self._sock.sendall(data)

    def detach(self) -> socket.socket:
        """The raw socket, for a caller that reads and writes it directly."""
        return self._sock

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def read(self) -> bytes:
        """The next message; pings are answered."""
        begun = b""
        while True:
            header = self._take(2)
            length = header[1]
            if length > 125:
                length = int.from_bytes(self._take(2 if length == 126 else 8))
            payload = self._take(length)
            if header[0] == PING:
                self._sock.sendall(pong(payload))
            elif header[0] == BEGIN:
                begun = payload
            else:
                assert header[0] in (TEXT, BINARY, END), f"not a message: first byte {header[0]:#x}, {payload!r}"
                return begun + payload

    def _take(self, size: int) -> bytes:
        if len(self._rest) < size:
            # Join the pieces once, as a large state comes in many.
            pieces, missing = [self._rest], size - len(self._rest)
            while missing > 0:
                pieces.append(self._sock.recv(1 << 18))
                assert pieces[-1], "the server closed the connection"
                self.bytes += len(pieces[-1])
                missing -= len(pieces[-1])
            self._rest = b"".join(pieces)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data
