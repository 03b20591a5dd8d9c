"""`python -m benchmarks.walk`: which files of plait an ordinary push, rpc, run, join and others go through.

A server in this process is used over real sockets, while each call of a function of plait is recorded. A return is a
call into a file that an earlier call had left. The store's OS thread is counted separately. The last table has the
longest chains of imports.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

import plait_schemas
from benchmarks.chains import longest_chain, longest_chain_in
from benchmarks.table import layout
from benchmarks.walk_server import SLEEPERS, Cloudflare, Native, request, serve

__all__ = ["LIMITS", "MOST_CALLS", "Walk", "walk_all"]

SCHEMAS: Final = str(Path(plait_schemas.__file__).parent)
SERVER: Final = str(Path(sys.modules["plait"].__file__ or "").parent)
# How many files of the server each may go through.
LIMITS: Final = {
    "push": 22,
    "rpc": 26,
    "run": 27,
    "join": 40,
    "message": 35,
    "effect": 34,
    "value": 34,
    "insert": 34,
    "spawn": 68,
    "run with a tool": 96,
    "task with a step": 54,
    "endpoint": 32,
    "upload": 56,
    "wake": 57,
}
# How many calls.
MOST_CALLS: Final = {"spawn": 720, "run with a tool": 2_150, "task with a step": 770, "upload": 465}
# How often each is done. Only what most walks have counts, as a timer of the server may run during some.
ROUNDS: Final = 5
# What each second begins, whatever is done: on a slow machine, that is during most runs with a tool.
BEAT: Final = ("actor/loop_watcher.py", "node/sweeping.py")
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

    def begin(self) -> None:
        """Note that the calling OS thread is that of the event loop."""
        self.loop_thread = threading.get_ident()

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


def walk_all() -> dict[str, Walk]:
    """Return what each operation has called."""
    recorder, found = Recorder(), dict[str, Walk]()
    with (
        tempfile.TemporaryDirectory(prefix="plait-walk-") as folder,
        serve(recorder.profile, recorder.begin, Path(folder)) as (port, wait),
        ExitStack() as stack,
    ):
        # Sockets stay open until the end, so that closing them is not counted.
        def join(*arguments: str) -> Native:
            return stack.enter_context(closing(Native(port, *arguments)))

        watcher, writer = map(join, ("watcher", "writer"))
        reader, sender = (join(name, "/threads/desk/one") for name in ("reader", "sender"))
        planner = join("planner", "/threads/diary/one")
        reader.tell({"type": "open", "part": "messages"})
        names, scores, sleepers = map("client-{}".format, count()), count(1), iter(SLEEPERS)

        def push() -> None:
            writer.push(next(scores))
            watcher.wait_for("change")

        def add() -> None:
            writer.call("add", 1)
            watcher.wait_for("change")

        def send() -> None:
            sender.write(next(names))
            reader.wait_for("part")

        found["push"] = record(push, recorder, wait)
        found["rpc"] = record(add, recorder, wait)
        found["rpc that only reads"] = record(partial(writer.call, "echo", 1), recorder, wait)
        found["run"] = record(partial(writer.call, "run:answer", {"by": 1}), recorder, wait)
        found["message"] = record(send, recorder, wait)
        found["effect"] = record(partial(planner.wait_for, "change"), recorder, wait, partial(planner.call, "plan", 1))
        page = stack.enter_context(closing(Cloudflare(port)))

        def write() -> None:
            page.push(next(scores))
            watcher.wait_for("change")

        found["push, Cloudflare"] = record(write, recorder, wait)
        found["join"] = record(lambda: join(next(names)), recorder, wait)
        found["join, Cloudflare"] = record(lambda: stack.enter_context(closing(Cloudflare(port))), recorder, wait)
        office = join("employee", "/threads/office/one")
        for name, method in (("value", "keep"), ("insert", "insert"), ("spawn", "spawn"), ("run with a tool", "ask")):
            found[name] = record(partial(call_next, office, method, scores), recorder, wait)
        found["task"] = record(partial(office.call, "work", 0), recorder, wait)
        found["task with a step"] = record(partial(office.call, "work", 1), recorder, wait)
        found["endpoint"] = record(partial(request, port, "GET", "/office/one/score?more=2"), recorder, wait)
        found["upload"] = record(lambda: upload(port, next(names)), recorder, wait)
        found["wake"] = record(lambda: join(next(names), f"/threads/game-room/{next(sleepers)}"), recorder, wait)
    return found


def call_next(client: Native, method: str, numbers: Iterator[int]) -> None:
    """Call a method with a number that it was not called with before."""
    client.call(method, next(numbers))


def upload(port: int, name: str) -> None:
    """Upload a file of 1 kB."""
    request(port, "PUT", f"/office/one/files/{name}.txt", b"x" * 1000)


def record(
    operation: Callable[[], object],
    recorder: Recorder,
    wait: Callable[[], None],
    prepare: Callable[[], object] = lambda: None,
) -> Walk:
    """Return the usual calls of an operation that has been done before, each time after `prepare`."""
    walks = list[Walk]()
    prepare()
    operation()
    for _ in range(ROUNDS):
        prepare()
        wait()
        recorder.is_on = True
        operation()
        wait()
        recorder.is_on = False
        walks.append(recorder.take())
    usual = sorted(walks, key=lambda walk: walk.calls)[ROUNDS // 2]
    own = [file for file in usual.server if file not in BEAT]
    most = [file for file in own if sum(file in walk.server for walk in walks) > ROUNDS // 2]
    return msgspec.structs.replace(usual, server=most)


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
