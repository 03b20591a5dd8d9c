"""`python -m benchmarks.walk`: which files of plait a push, an rpc, a run and a join go through.

A server in this process is used over real sockets, while each call of a function of plait is recorded. A return is a
call into a file that an earlier call had left. The store's OS thread is counted separately. The last table has the
longest chains of imports.
"""

import argparse
import asyncio
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
import uvicorn

import plait_schemas
from benchmarks.chains import longest_chain, longest_chain_in
from benchmarks.message_socket import MessageSocket
from benchmarks.table import layout
from benchmarks.wire import text
from plait import Context, Plait, Thread, rpc
from plait.web.addresses import Addresses
from plait.web.serve import listen, make_http_protocol
from plait.web.sockets.handshake import Handshake

__all__ = ["LIMITS", "Walk", "walk_all"]

SCHEMAS: Final = str(Path(plait_schemas.__file__).parent)
SERVER: Final = str(Path(sys.modules["plait"].__file__ or "").parent)
# How many files of the server each may go through.
LIMITS: Final = {"push": 24, "rpc": 26, "join": 44}
# How often each is done. The walk with the fewest calls counts, as a timer of the server may run during others.
ROUNDS: Final = 5
# Iterations of the server's loop after which an operation has no work left.
REST: Final = 8
# In later versions of Python, comprehensions are not functions.
INLINED: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
PACKAGES: Final = ("store", "state", "actor", "parts", "agents", "node", "session", "web", "cli", "adapters")


class Walk(msgspec.Struct, frozen=True):
    """The calls of one operation."""

    # Files of the server and of plait_schemas in the order of their first calls, below the folders of these packages.
    server: Sequence[str]
    schemas: Sequence[str]
    calls: int
    returns: int
    # Files of the server in other OS threads than that of the event loop.
    beside: Sequence[str]


class Recorder:
    """Notes the files of plait's functions that are called, in each thread that has `profile` as its profiler."""

    def __init__(self) -> None:
        self.is_on = False
        # The OS thread in which the server's event loop runs.
        self.loop_thread = 0
        self._calls: dict[int, list[str]] = {}

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call."""
        if self.is_on and event == "call":
            code = frame.f_code
            if code.co_filename.startswith((SERVER, SCHEMAS)) and code.co_name not in INLINED:
                self._calls.setdefault(threading.get_ident(), []).append(code.co_filename)

    def take(self) -> Walk:
        """Return the recorded calls, and clear them."""
        noted, self._calls = self._calls, {}
        calls = noted.pop(self.loop_thread, [])
        return Walk(
            find_files(calls, SERVER),
            find_files(calls, SCHEMAS),
            len(calls),
            count_returns(calls),
            find_files([file for each in noted.values() for file in each], SERVER),
        )


def find_files(calls: Sequence[str], folder: str) -> list[str]:
    """Return the files in a folder, each once."""
    return [file.removeprefix(f"{folder}/") for file in dict.fromkeys(calls) if file.startswith(folder)]


def count_returns(files: Sequence[str]) -> int:
    """Count the calls into a file that another call had left."""
    seen: set[str] = set()
    last, found = "", 0
    for file in files:
        found += file != last and file in seen
        seen.add(file)
        last = file
    return found


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


class Input(msgspec.Struct):
    """The input of the agent."""

    by: int


async def answer(ctx: Context[GameRoom], input: Input) -> int:
    """Answer at once."""
    return input.by


class Native(MessageSocket):
    """A client of the native protocol. It makes and reads frames without plait, which would be noted."""

    def __init__(self, port: int, client: str) -> None:
        super().__init__(port, "/threads/game-room/one", "plait.v1")
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


@contextmanager
def serve(recorder: Recorder, folder: Path) -> Iterator[tuple[int, Callable[[], None]]]:
    """Serve the thread in an OS thread of its own; yields the port, and a function that waits for the server."""
    app = Plait(GameRoom, store=f"sqlite:///{folder / 'walk.db'}", secret="walk")
    app.agent("answer", thread=GameRoom)(answer)
    bound = listen("127.0.0.1", 0)
    http: Any = make_http_protocol(Addresses(1000), 10.0)
    config = uvicorn.Config(app, http=http, ws=Handshake, log_config=None, lifespan="on")
    server = Server(config)

    def main() -> None:
        # Threads that the server starts, such as the store's, are profiled, too.
        recorder.loop_thread = threading.get_ident()
        threading.setprofile(recorder.profile)
        sys.setprofile(recorder.profile)
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
        yield bound.getsockname()[1], lambda: asyncio.run_coroutine_threadsafe(rest(), loop).result(30)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


async def rest() -> None:
    """Wait while the server's loop does the remaining work."""
    for _ in range(REST):
        await asyncio.sleep(0)


def walk_all() -> dict[str, Walk]:
    """Return what each operation has called."""
    recorder, found = Recorder(), dict[str, Walk]()
    with (
        tempfile.TemporaryDirectory(prefix="plait-walk-") as folder,
        serve(recorder, Path(folder)) as (port, wait),
        ExitStack() as stack,
    ):
        watcher, writer = (stack.enter_context(closing(Native(port, name))) for name in ("watcher", "writer"))
        names, scores = map("client-{}".format, count()), count(1)

        def push() -> None:
            writer.push(next(scores))
            watcher.wait_for("change")

        def add() -> None:
            writer.call("add", 1)
            watcher.wait_for("change")

        found["push"] = record(push, recorder, wait)
        found["rpc"] = record(add, recorder, wait)
        found["rpc that only reads"] = record(partial(writer.call, "echo", 1), recorder, wait)
        found["run"] = record(partial(writer.call, "run:answer", {"by": 1}), recorder, wait)
        # Sockets stay open until the end, so that closing them is not counted.
        page = stack.enter_context(closing(Cloudflare(port)))

        def write() -> None:
            page.push(next(scores))
            watcher.wait_for("change")

        found["push, Cloudflare"] = record(write, recorder, wait)
        found["join"] = record(lambda: stack.enter_context(closing(Native(port, next(names)))), recorder, wait)
        found["join, Cloudflare"] = record(lambda: stack.enter_context(closing(Cloudflare(port))), recorder, wait)
    return found


def record(operation: Callable[[], object], recorder: Recorder, wait: Callable[[], None]) -> Walk:
    """Return the calls of an operation that has been done before."""
    walks = list[Walk]()
    operation()
    for _ in range(ROUNDS):
        wait()
        recorder.is_on = True
        operation()
        wait()
        recorder.is_on = False
        walks.append(recorder.take())
    return min(walks, key=lambda walk: walk.calls)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description=__doc__)
    parser.add_argument("--files", action="store_true", help="also list the files of each operation")
    options = parser.parse_args()
    walks = walk_all()
    rows: list[Sequence[str]] = [
        ("operation", "server files", "limit", "schemas", "calls", "returns", "in the store's thread")
    ]
    for name, walk in walks.items():
        limit = f"≤ {LIMITS[name]}" if name in LIMITS else ""
        rows.append(
            (
                name,
                str(len(walk.server)),
                limit,
                str(len(walk.schemas)),
                str(walk.calls),
                str(walk.returns),
                str(len(walk.beside)),
            )
        )
    print(layout(rows, right={1, 2, 3, 4, 5, 6}))
    if options.files:
        for name, walk in walks.items():
            print(f"\n{name}: {', '.join([*walk.server, *(f'plait_schemas/{each}' for each in walk.schemas)])}")
    chains = {"plait_schemas": longest_chain_in("plait_schemas")}
    chains |= {f"plait.{each}": longest_chain_in(f"plait.{each}") for each in PACKAGES}
    chains["the server"] = longest_chain()
    lines = [(name, str(len(chain)), " -> ".join(chain)) for name, chain in chains.items()]
    print("\n" + layout([("longest chain of imports in", "files", ""), *lines], right={1}))


if __name__ == "__main__":
    main()
