"""Many client sockets on one epoll loop, with as little work a frame as Python allows."""

import itertools
import select
import socket
import time
from collections.abc import Callable, Iterable

from benchmarks.protocols import CLOUDFLARE, Protocol
from benchmarks.wire import FrameReader, pong, request

__all__ = ["Client", "Clients", "LoadError"]

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
SPIN = 0.05
WELCOME = 1024


class LoadError(Exception):
    """The server did not do what the load needs."""


class Client:
    """One WebSocket client."""

    __slots__ = ("bytes", "head", "is_joined", "opening", "protocol", "reader", "sock", "unsent", "welcome")

    def __init__(self, sock: socket.socket, protocol: Protocol) -> None:
        self.sock = sock
        self.protocol = protocol
        # What is sent when the protocol's cue has come.
        self.opening = protocol.opening()
        self.reader = FrameReader()
        self.unsent = memoryview(b"")
        # The bytes up to the first state frame.
        self.head = b""
        # The beginning of these.
        self.welcome = b""
        self.is_joined = False
        # The number of bytes received so far.
        self.bytes = 0

    @property
    def texts(self) -> int:
        """Text frames received so far."""
        return self.reader.texts

    def receive(self, data: bytearray, size: int) -> None:
        """Take received bytes; frames begin after the response to the handshake."""
        self.bytes += size
        if self.is_joined:
            self.reader.feed(data, size)
            return
        is_open = b"\r\n\r\n" in self.head
        self.head += data[:size]
        if is_open:
            self.reader.feed(data, size)
        elif b"\r\n\r\n" in self.head:
            response, _, rest = self.head.partition(b"\r\n\r\n")
            if not response.startswith(b"HTTP/1.1 101"):
                raise LoadError(f"handshake refused: {response.decode(errors='replace')}")
            self.reader.feed(rest, len(rest))
        if self.protocol.marker in self.head:
            self.is_joined = True
            self.welcome, self.head = self.head[:WELCOME], b""


class Clients:
    """The sockets of one load, all to one server."""

    def __init__(self, port: int, *, timeout: float = 60.0, protocol: Protocol = CLOUDFLARE) -> None:
        self.port = port
        self.protocol = protocol
        # Seconds after which a load that waits fails.
        self.timeout = timeout
        # Seconds to wait between two reads, so that frames pile up, which makes reading many sockets cheaper.
        self.pause = 0.0
        # Longest sleep for the next frame; 0 spins, which keeps the wake-up of this process out of a round trip.
        self.wait = 1.0
        # Seconds spun away; they are no work.
        self.spun = 0.0
        self._epoll = select.epoll()
        self._by_fd: dict[int, Client] = {}
        self._buffer = bytearray(1 << 18)
        # Sockets that have had their first state, and text frames received by all of them.
        self.joined = 0
        self.texts = 0
        # Connections spread over loopback addresses, so that ports never run short.
        self._sources = itertools.cycle([f"127.0.0.{n}" for n in range(1, 9)])

    # Sockets

    def open(self, path: str, *, buffer: int = 0) -> Client:
        """Connect and send the handshake; `is_joined` becomes True when the first state has come.

        `buffer` is the size of the kernel's receive buffer, 0 for the default.
        """
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        sock.bind((next(self._sources), 0))
        sock.connect(("127.0.0.1", self.port))
        sock.setblocking(False)
        client = Client(sock, self.protocol)
        self._by_fd[sock.fileno()] = client
        self._epoll.register(sock.fileno(), READ)
        self.send(client, request(path, f"127.0.0.1:{self.port}", self.protocol.subprotocol))
        return client

    def ignore(self, client: Client) -> None:
        """Stop reading from a socket."""
        self._epoll.unregister(client.sock.fileno())

    def heed(self, client: Client) -> None:
        """Read from an ignored socket again."""
        self._epoll.register(client.sock.fileno(), READ)

    def join(self, paths: Iterable[str]) -> list[Client]:
        """Open one socket for each path, and wait until each has its first state and nothing more arrives."""
        clients = self.rush(paths)
        self.settle()
        return clients

    def rush(self, paths: Iterable[str]) -> list[Client]:
        """Open one socket for each path, all at once, and wait until each has its first state."""
        before = self.joined
        clients = [self.open(path) for path in paths]
        self.run(lambda: self.joined - before >= len(clients))
        return clients

    def close(self, clients: Iterable[Client]) -> None:
        """Drop these sockets."""
        for client in clients:
            self._by_fd.pop(client.sock.fileno(), None)
            client.sock.close()

    def close_all(self) -> None:
        """Drop every socket."""
        self.close(list(self._by_fd.values()))
        self._epoll.close()

    # Bytes

    def send(self, client: Client, data: bytes | memoryview) -> None:
        """Write as much as the kernel takes now, and the rest later, in order."""
        if client.unsent:
            client.unsent = memoryview(bytes(client.unsent) + bytes(data))
            return
        try:
            sent = client.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            client.unsent = memoryview(data)[sent:]
            self._epoll.modify(client.sock.fileno(), READ | WRITE)

    def run(self, is_done: Callable[[], bool], *, touched: Callable[[Client], None] | None = None) -> None:
        """Serve the sockets until `is_done`; `touched` is called with each socket that received something."""
        deadline = time.perf_counter() + self.timeout
        while not is_done():
            if self.pause:
                time.sleep(self.pause)
            if time.perf_counter() > deadline:
                raise LoadError(f"nothing more came within {self.timeout:g} s")
            self.poll(self.wait, touched)

    def settle(self, quiet: float = 0.1) -> None:
        """Serve the sockets until nothing has arrived for a moment."""
        while self.poll(quiet, None):
            pass

    def poll(self, wait: float, touched: Callable[[Client], None] | None) -> int:
        """One turn of the loop; the number of sockets that were ready."""
        ready = self._epoll.poll(wait) if wait else self._spin()
        for fd, event in ready:
            client = self._by_fd.get(fd)
            if client is None:
                continue
            if event & WRITE:
                self._flush(client)
            if event & ~WRITE:
                self._read(client)
                if touched is not None:
                    touched(client)
        return len(ready)

    def _spin(self) -> list[tuple[int, int]]:
        start = time.perf_counter()
        while not (ready := self._epoll.poll(0)) and time.perf_counter() - start < SPIN:
            pass
        self.spun += time.perf_counter() - start
        return ready

    def _flush(self, client: Client) -> None:
        rest, client.unsent = client.unsent, memoryview(b"")
        self.send(client, rest)
        if not client.unsent:
            self._epoll.modify(client.sock.fileno(), READ)

    def _read(self, client: Client) -> None:
        size = client.sock.recv_into(self._buffer)
        reader = client.reader
        texts, was_joined = reader.texts, client.is_joined
        client.receive(self._buffer, size)
        self.texts += reader.texts - texts
        self.joined += client.is_joined - was_joined
        if not size or reader.closed:
            raise LoadError("the server closed a socket")
        if client.opening and (client.is_joined or client.protocol.cue in client.head):
            opening, client.opening = client.opening, b""
            self.send(client, opening)
        if reader.pings:
            self.send(client, b"".join(map(pong, reader.pings)))
            reader.pings.clear()
