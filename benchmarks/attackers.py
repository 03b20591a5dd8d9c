"""Clients that cost as much as the limits allow: `python -m benchmarks.attackers JOB` runs until it is ended."""

import itertools
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from benchmarks.native_socket import NativeSocket
from benchmarks.protocols import native_call
from benchmarks.shapes import SHAPES, TYPED_SHAPES, bodies
from benchmarks.wire import request, text

__all__ = ["ATTACKS", "Attack", "AttackJob"]

# Frames that a socket sends at once, and how long it waits for answers before it starts again.
FRAMES = 50
PATIENCE = 3.0
# Operations that make about 0.84 MB.
OPS = 20_000

_names = itertools.count()


class Attack(msgspec.Struct, frozen=True):
    """What is sent, by which protocol, and on how many sockets or connections at once."""

    name: str
    shape: str
    sockets: int = 1

    @property
    def title(self) -> str:
        """Its name in the tables."""
        many = f", {self.sockets} at once" if self.sockets > 1 else ""
        return f"{WAYS[self.name]}, {self.shape}{many}"


WAYS = {
    "native": "plait.v1, states",
    "ops": "plait.v1",
    "cloudflare": "Cloudflare, states",
    "crossing": "Cloudflare, crossing states",
    "typed": "Cloudflare, crossing typed states without a field",
    "http": "HTTP PUT",
    "ag-ui": "AG-UI",
    "programs": "run_code",
}

KINDS = {"ag-ui": "/ag-ui/echo", "typed": "/threads/table", "programs": "/threads/runner"}

CROSSING = ("members", "shuffled rows", "rows without ids", "many lists", "big integers", "changed rows")

NATIVE = ("pairs", "shuffled numbers", "shuffled rows", "many lists", "deep", "big integers")

ATTACKS = (
    Attack("native", "members"),
    Attack("native", "members", 8),
    Attack("ops", "operations"),
    Attack("cloudflare", "members", 8),
    Attack("http", "members", 8),
    Attack("ag-ui", "messages"),
    Attack("programs", "programs", 8),
    *(Attack(name, shape) for shape in SHAPES for name in ("cloudflare", "http")),
    *(Attack("crossing", shape, 2) for shape in CROSSING),
    *(Attack("typed", shape, 2) for shape in TYPED_SHAPES),
    *(Attack("native", shape) for shape in NATIVE),
)


class AttackJob(msgspec.Struct, frozen=True):
    """The settings of one process of attackers."""

    attack: Attack
    port: int


def messages(n: int) -> bytes:
    """A body of AG-UI with many messages."""
    one = {"id": "", "role": "user", "content": ""}
    body = {"threadId": "t", "runId": str(n), "messages": [one] * 26_000, "tools": [], "context": []}
    return msgspec.json.encode({**body, "state": None, "forwardedProps": None})


def make_bodies(attack: Attack) -> list[bytes]:
    """Two bodies, which are sent in turn."""
    if attack.shape in SHAPES or attack.shape in TYPED_SHAPES:
        whole = b'[{"op":"replace","path":"","value":%b}]' if attack.name == "native" else b"%b"
        return [whole % body for body in bodies(attack.shape)]
    return [(operations if attack.name == "ops" else messages)(n) for n in range(2)]


def operations(n: int) -> bytes:
    """A push with many operations."""
    return msgspec.json.encode([{"op": "add", "path": f"/key{i:05d}", "value": n} for i in range(OPS)])


def call_frames() -> Iterator[bytes]:
    """Calls that run one program after the other."""
    for n in range(FRAMES):
        yield native_call("run", [n])


def native_frames(bodies: list[bytes], place: tuple[str, int]) -> Iterator[bytes]:
    """Pushes of one socket that has joined at a place."""
    base = msgspec.json.encode(place)
    for n in range(FRAMES):
        body = bodies[n % len(bodies)]
        yield text(b'{"type":"push","ref":%d,"base":%b,"ops":%b}' % (n + 1, base, body))


def join(sock: socket.socket, opening: bytes) -> None:
    """Open a WebSocket, and wait for the server's answer, before which it accepts no frames."""
    sock.sendall(opening)
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(1 << 16)
    assert head.startswith(b"HTTP/1.1 101"), head


class Attacker:
    """One socket or connection after the other."""

    def __init__(self, job: AttackJob, bodies: list[bytes]) -> None:
        self._name, self._port = job.attack.name, job.port
        kind = KINDS.get(self._name, "/threads/note")
        number = next(_names)
        # Crossing attackers write to one thread, and begin with different states.
        is_crossing = self._name in ("crossing", "typed")
        self._path = f"{kind}/attacked-{number // job.attack.sockets if is_crossing else number}"
        self._bodies = bodies[::-1] if is_crossing and number % 2 else bodies
        self._sock, self._unsent = self._open()
        self._until = time.perf_counter() + PATIENCE

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._sock.fileno()

    @property
    def wants_to_write(self) -> bool:
        """Whether it has more to send."""
        return bool(self._unsent)

    def write(self) -> None:
        """Send as much as the server takes."""
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent[: 1 << 20]) :]
        except BlockingIOError:
            pass
        except OSError:
            self.again()
        if not self._unsent:
            self._until = time.perf_counter() + PATIENCE

    def read(self) -> None:
        """Drop what the server sends."""
        try:
            if not self._sock.recv(1 << 20):
                self.again()
        except BlockingIOError:
            pass
        except OSError:
            self.again()

    def tick(self) -> None:
        """Start again when everything was sent and answered."""
        if not self._unsent and time.perf_counter() > self._until:
            self.again()

    def again(self) -> None:
        """Start again, with another socket."""
        self._sock.close()
        self._sock, self._unsent = self._open()

    def _open(self) -> tuple[socket.socket, memoryview]:
        name, port = self._name, self._port
        frames: Callable[[], Iterator[bytes]]
        if name in ("native", "ops", "programs"):
            native = NativeSocket(port, self._path)
            sock = native.detach()
            frames = call_frames if name == "programs" else partial(native_frames, self._bodies, native.place)
        else:
            sock = socket.create_connection(("127.0.0.1", port), timeout=30)
            is_socket = name in ("cloudflare", "crossing", "typed")
            frames = self._states if is_socket else self._requests
            if is_socket:
                join(sock, request(self._path, f"127.0.0.1:{port}"))
        unsent = memoryview(b"".join(frames()))
        sock.setblocking(False)
        return sock, unsent

    def _states(self) -> Iterator[bytes]:
        for n in range(FRAMES):
            yield text(b'{"type":"cf_agent_state","state":%b}' % self._bodies[n % 2])

    def _requests(self) -> Iterator[bytes]:
        line = b"%b %b HTTP/1.1" % (b"POST" if self._name == "ag-ui" else b"PUT", self._path.encode())
        for n in range(FRAMES):
            body = self._bodies[n % 2]
            yield b"%b\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (line, len(body))
            yield body


def main() -> None:
    """Attack until the process is ended."""
    job = msgspec.json.decode(sys.argv[1], type=AttackJob)
    made = make_bodies(job.attack)
    attackers = [Attacker(job, made) for _ in range(job.attack.sockets)]
    print("ready", flush=True)
    while True:
        writers = [each for each in attackers if each.wants_to_write]
        readable, writable, _ = select.select(attackers, writers, [], 0.1)
        for each in readable:
            each.read()
        for each in writable:
            each.write()
        for each in attackers:
            each.tick()


if __name__ == "__main__":
    main()
