"""Resident memory of idle sockets and awake threads, and the time a sleeping thread takes to wake."""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.clients import Clients
from benchmarks.documents import revisions
from benchmarks.plain_http import HttpClient
from benchmarks.results import resident, tree
from benchmarks.servers import Server, serve

__all__ = ["Finding", "idle_sockets", "threads"]

# Threads that are woken from sleep, each once.
WAKES = 2000
STATE = 1_100
SETTLE = 2.0


class Finding(msgspec.Struct, frozen=True):
    """One measured number, with the most that is aimed at."""

    server: str
    title: str
    value: float
    unit: str
    aim: float | None = None


@contextmanager
def http(port: int) -> Iterator[HttpClient]:
    """A connection to a server."""
    client = HttpClient(port)
    try:
        yield client
    finally:
        client.close()


def idle_sockets(name: str, folder: Path, count: int, aim: float | None = None) -> Finding:
    """Resident bytes a socket, with a hundred sockets to each thread."""
    with serve(name, folder / f"{name}-sockets") as server:
        clients = Clients(server.port)
        paths = [f"/agents/bench-agent/idle-{n}" for n in range(max(1, count // 100))]
        try:
            # Wake the threads and warm the server up before anything is measured.
            clients.rush(paths)
            before = rest(server, clients)
            for _ in range(100):
                clients.rush(paths)
            grown = rest(server, clients) - before
        finally:
            clients.close_all()
    return Finding(name, f"idle socket, {len(paths) * 100:,} of them", grown / len(paths) / 100, "bytes", aim)


def rest(server: Server, clients: Clients) -> int:
    """Serve the sockets for a moment, then look at the server's resident memory."""
    deadline = time.perf_counter() + SETTLE
    while time.perf_counter() < deadline:
        clients.poll(0.1, None)
    return resident(tree(server.pid))


def threads(name: str, kind: str, folder: Path, count: int, aim: float | None = None) -> list[Finding]:
    """Resident bytes an awake thread with 1 kB of state; then, after a restart, the time to wake."""
    place = folder / f"{name}-threads"
    state = next(iter(revisions(STATE)))
    paths = [f"/agents/{kind}/note-{n}" for n in range(count)]
    with serve(name, place) as server, http(server.port) as client:
        for n in range(200):
            client.put(f"/agents/{kind}/warm-{n}", state)
        server.settle()
        before = resident(tree(server.pid))
        for path in paths:
            client.put(path, state)
        server.settle()
        grown = resident(tree(server.pid)) - before
    memory = Finding(name, f"awake thread with {len(state)} B of state, {count:,} of them", grown / count, "bytes", aim)
    with serve(name, place) as server, http(server.port) as client:
        for n in range(200):
            client.get(f"/agents/{kind}/warm-{n}")
        some = random.Random(0).sample(paths, min(count, WAKES))
        asleep = time_requests(client.get, some)
        awake = time_requests(client.get, some)
    return [
        memory,
        Finding(name, "GET of a sleeping thread, p50", percentile(asleep, 50), "ms"),
        Finding(name, "GET of a sleeping thread, p99", percentile(asleep, 99), "ms"),
        Finding(name, "GET of the same when awake, p50", percentile(awake, 50), "ms"),
    ]


def time_requests(get: Callable[[str], bytes], paths: list[str]) -> list[float]:
    """The milliseconds of each request."""
    spent: list[float] = []
    for path in paths:
        start = time.perf_counter()
        body = get(path)
        spent.append((time.perf_counter() - start) * 1000)
        assert b'"cards"' in body, f"not the state that was put: {body[:200]!r}"
    return spent


def percentile(values: list[float], percent: int) -> float:
    """A percentile of the values."""
    return statistics.quantiles(values, n=100)[percent - 1]
