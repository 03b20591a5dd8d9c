"""The server that `benchmarks.walk` walks through, and clients that make and read frames without plait."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
import uvicorn

from benchmarks.message_socket import MessageSocket
from benchmarks.wire import text
from plait import Context, Messages, Plait, Schedule, Thread, effect, rpc
from plait.web.addresses import Addresses
from plait.web.serve import listen, make_http_protocol
from plait.web.sockets.handshake import Handshake

__all__ = ["SLEEPERS", "Cloudflare", "Native", "serve"]

SLEEPERS: Final = tuple(f"sleeper-{number}" for number in range(20))
"""The names of game rooms that are stored and asleep."""

# Iterations of the server's loop after which an operation has no work left.
REST: Final = 8
# Seconds after which an effect is due.
SOON: Final = 0.02

Profile = Callable[[FrameType, str, object], None]


class Game(msgspec.Struct, frozen=True):
    """A state of the usual kind."""

    players: tuple[str, ...] = ()
    score: int = 0


class GameRoom(Thread[Game]):
    """A thread of the usual kind."""

    initial_state = Game()

    def validate_state_change(self, next_state: Game, source: Any) -> None:
        if next_state.score < 0:
            raise ValueError("score cannot be negative")

    @rpc
    async def echo(self, value: int) -> int:
        return value

    @rpc
    async def add(self, by: int) -> int:
        self.set_state(lambda game: msgspec.structs.replace(game, score=game.score + by))
        return self.state.score


class Diary(GameRoom):
    """A thread with a schedule."""

    schedule = Schedule()

    @rpc
    async def plan(self, by: int) -> str:
        return await self.schedule.after(SOON, "add_later", by)

    @effect
    async def add_later(self, by: int) -> None:
        self.set_state(lambda game: msgspec.structs.replace(game, score=game.score + by))


class Desk(Thread[Game]):
    """A thread with a conversation that clients see."""

    initial_state = Game()
    messages = Messages(live=True)


class Input(msgspec.Struct):
    """The input of the agent."""

    by: int


async def answer(ctx: Context[GameRoom], input: Input) -> int:
    """Answer at once."""
    return input.by


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


def make_app(folder: Path) -> Plait:
    """Return the app, which keeps its data in a folder."""
    app = Plait(GameRoom, Desk, Diary, store=f"sqlite:///{folder / 'walk.db'}", secret="walk")
    app.agent("answer", thread=GameRoom)(answer)
    return app


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
