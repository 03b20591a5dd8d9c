"""The server that `benchmarks.walk` walks through, and clients that make and read frames without plait."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

import msgspec
import uvicorn

from benchmarks.message_socket import MessageSocket
from benchmarks.walk_threads import GameRoom, make_app
from benchmarks.wire import text
from plait.agents import run
from plait.web.addresses import Addresses
from plait.web.serve import listen, make_http_protocol
from plait.web.sockets.handshake import Handshake

__all__ = ["SLEEPERS", "Cloudflare", "Native", "request", "serve"]

SLEEPERS: Final = tuple(f"sleeper-{number}" for number in range(20))
"""The names of game rooms that are stored and asleep."""

# Iterations of the server's loop after which an operation has no work left.
REST: Final = 8
Profile = Callable[[FrameType, str, object], None]


class Native(MessageSocket):
    """A client of the native protocol. It makes and reads frames without plait, which would be noted."""

    def __init__(self, port: int, client: str, path: str = "/threads/game-room/one") -> None:
        super().__init__(port, path, "plait.v1")
        self._refs = 0
        self.tell({"type": "join", "client": client})
        joined = self.wait_for("joined")
        self._epoch, self._version = joined["epoch"], joined["version"]

    def tell(self, frame: dict[str, Any]) -> None:
        """Send a frame."""
        self.send(text(msgspec.json.encode(frame)))

    def wait_for(self, type: str) -> dict[str, Any]:
        """Return the next frame of a type."""
        while True:
            frame: dict[str, Any] = msgspec.json.decode(self.read())
            assert frame["type"] not in ("nack", "error"), frame
            self._version = frame.get("version", getattr(self, "_version", 0))
            if frame["type"] == type:
                return frame

    def push(self, score: int) -> None:
        """Set the score, and wait until that is durable."""
        self._refs += 1
        op = {"op": "replace", "path": "/score", "value": score}
        self.tell({"type": "push", "ref": self._refs, "base": [self._epoch, self._version], "ops": [op]})
        self.wait_for("ack")

    def call(self, method: str, argument: Any) -> None:
        """Call a method, and wait for its result."""
        self._refs += 1
        self.tell({"type": "call", "ref": self._refs, "method": method, "args": [argument]})
        self.wait_for("result")

    def write(self, content: str) -> None:
        """Send a message, and wait until that is durable."""
        self._refs += 1
        self.tell({"type": "send", "ref": self._refs, "part": "messages", "content": content, "key": content})
        self.wait_for("sent")


def request(port: int, method: str, path: str, body: bytes | None = None) -> None:
    """Send a request to a thread on a connection of its own."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, f"/threads{path}", body)
        response = connection.getresponse()
        assert response.status < 300, response.read()


class Cloudflare(MessageSocket):
    """A client of the Cloudflare protocol."""

    def __init__(self, port: int) -> None:
        super().__init__(port, "/agents/game-room/one")
        while b"cf_agent_mcp_servers" not in self.read():
            pass

    def push(self, score: int) -> None:
        """Write a whole state."""
        state = {"players": [], "score": score}
        self.send(text(msgspec.json.encode({"type": "cf_agent_state", "state": state})))


class Server(uvicorn.Server):
    """A server that tells another OS thread when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.is_ready.set()


async def store_sleepers(folder: Path) -> None:
    """Store the rooms that are to be woken."""
    async with make_app(folder) as app:
        for name in SLEEPERS:
            await app.thread(GameRoom, name).call(GameRoom.add, 1)


@contextmanager
def serve(profile: Profile, begin: Callable[[], object], folder: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """Serve the threads in an OS thread, which first calls `begin`, and in which all calls are told to `profile`.

    Yields the port, and a function that waits for the server.
    """
    asyncio.run(store_sleepers(folder))
    app, bound = make_app(folder), listen("127.0.0.1", 0)
    http: Any = make_http_protocol(Addresses(1000), 10.0)
    config = uvicorn.Config(app, http=http, ws=Handshake, log_config=None, lifespan="on")
    server = Server(config)

    def main() -> None:
        # Threads that the server starts, such as the store's, are profiled, too.
        begin()
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            asyncio.run(server.serve([bound]))
        finally:
            threading.setprofile(None)
            server.is_ready.set()

    thread = threading.Thread(target=main, name="walk")
    thread.start()
    server.is_ready.wait()
    loop = server.loop
    assert loop is not None, "the server did not start"
    try:
        # On a slow machine, a profiled run would be marked as one that takes long.
        with patch.object(run, "_DELAY", 60.0):
            yield bound.getsockname()[1], lambda: rest(loop)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


def rest(loop: asyncio.AbstractEventLoop) -> None:
    """Wait while the server's loop does the remaining work; without a task, which the server would see."""
    is_over = threading.Event()

    def pass_on(left: int) -> None:
        if left:
            loop.call_soon(pass_on, left - 1)
        else:
            is_over.set()

    loop.call_soon_threadsafe(pass_on, REST)
    is_over.wait(30)
