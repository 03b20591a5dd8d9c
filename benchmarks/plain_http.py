"""One HTTP connection that is kept open, with next to no work a request."""

import re
import socket

__all__ = ["HttpClient"]

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class HttpClient:
    """Blocking requests, one after the other."""

    def __init__(self, port: int) -> None:
        self._host = f"127.0.0.1:{port}"
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, path: str) -> bytes:
        """The body of the answer."""
        return self._ask(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    def put(self, path: str, body: bytes) -> bytes:
        """Send a JSON body; the body of the answer."""
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return self._ask(head.encode() + body)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _ask(self, request: bytes) -> bytes:
        self._sock.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        status = int(head[9:12])
        assert 200 <= status < 300, f"{request[:80]!r} was answered with {data[:500]!r}"
        match = LENGTH.search(head)
        length = int(match[1]) if match else 0
        while len(body) < length:
            body += self._receive()
        return body

    def _receive(self) -> bytes:
        data = self._sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data
