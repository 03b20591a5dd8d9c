"""Starts and ends the servers that are compared, each a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from benchmarks.peer import AGENTUITY, COLYSEUS, PEER, YJS
from benchmarks.results import cpu_seconds, tree

__all__ = ["SERVERS", "Recipe", "Server", "ServerError", "plait", "serve"]

ROOT = Path(__file__).parent.parent
START_TIMEOUT = 30.0


class ServerError(Exception):
    """A server did not start; the message ends with its output."""


class Server(msgspec.Struct, frozen=True):
    """A running server."""

    name: str
    port: int
    pid: int

    def settle(self, limit: float = 10.0) -> None:
        """Wait until the server is idle."""
        processes = tree(self.pid)
        deadline = time.perf_counter() + limit
        while time.perf_counter() < deadline:
            before = cpu_seconds(processes)
            time.sleep(0.2)
            if cpu_seconds(processes) - before <= 0.02:
                return


class Recipe(msgspec.Struct, frozen=True):
    """How a server is started; `{folder}` and `{port}` stand for its data folder and its port."""

    command: Sequence[str]
    environment: Mapping[str, str] = {}
    cwd: Path = ROOT


def plait(root: Path, python: Path, app: str = "agents:app") -> Recipe:
    """The server of a checkout, run with the Python that has it installed."""
    return Recipe(
        (str(python.parent / "plait"), "serve", f"benchmarks.{app}", "--port", "{port}"),
        {"BENCH_STORE": "sqlite:///{folder}/plait.db", "PYTHONPATH": str(root), "PLAIT_SECRET": "benchmark"},
        root,
    )


SERVERS = {
    "plait": plait(ROOT, Path(sys.executable)),
    "guarded": plait(ROOT, Path(sys.executable), app="guarded:app"),
    "plait-agents": plait(ROOT, Path(sys.executable), app="agents_app:app"),
    "cloudflare": Recipe(("node", str(PEER / "serve.mjs"), "{folder}", "{port}")),
    "colyseus": Recipe(("node", str(COLYSEUS / "serve.mjs"), "{folder}", "{port}")),
    "yjs": Recipe(("node", "--expose-gc", str(YJS / "serve.mjs"), "{folder}", "{port}")),
    "yjs-stored": Recipe(("node", "--expose-gc", str(YJS / "serve.mjs"), "{folder}", "{port}", "stored")),
    "agentuity": Recipe(
        (str(AGENTUITY / "node_modules/.bin/bun"), str(AGENTUITY / "serve.mjs")),
        {"HOME": "{folder}", "PORT": "{port}", "NODE_ENV": "production", "AGENTUITY_LOG_LEVEL": "error"},
    ),
    "starlette": Recipe((sys.executable, "-m", "benchmarks.agents_bare", "{port}")),
    "socket": Recipe((sys.executable, "-m", "benchmarks.bare", "{folder}", "{port}")),
}


@contextmanager
def serve(name: str, folder: Path, recipe: Recipe | None = None) -> Iterator[Server]:
    """Run a server that keeps its data in a folder, until the block ends."""
    recipe, port = recipe or SERVERS[name], free_port()
    told = {"folder": str(folder), "port": str(port)}
    log = folder.with_suffix(".log")
    folder.mkdir(exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [part.format(**told) for part in recipe.command],
            cwd=recipe.cwd,
            env={**os.environ, **{key: value.format(**told) for key, value in recipe.environment.items()}},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(process, port, name, log)
        yield Server(name=name, port=port, pid=process.pid)
    finally:
        end(process)


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(process: subprocess.Popen[bytes], port: int, name: str, log: Path) -> None:
    """Return when the server accepts a connection."""
    deadline = time.perf_counter() + START_TIMEOUT
    while time.perf_counter() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise ServerError(f"{name} did not start:\n{log.read_text()[-2000:]}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to stop, then kill it; its children are killed, too."""
    if process.poll() is not None:
        return
    started = tree(process.pid)[1:]
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in psutil.wait_procs(started, timeout=2)[1]:
        child.kill()
