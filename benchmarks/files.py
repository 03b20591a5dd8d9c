"""What 100 MB cost a server, in and out, at the owner of a thread and at a gateway, and what waking costs."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.contest import Effort
from benchmarks.records import Reading
from benchmarks.servers import ROOT, Recipe, serve
from plait import Files, Plait, SqliteStore, Thread

__all__ = ["files"]

BYTES = 100_000_000
PATHS = 1_000
# Milliseconds of processor time, and MiB of memory that a process may take for it.
IN_AIM, OUT_AIM, GATEWAY_AIM, WAKE_AIM, MEMORY_AIM = 1_100.0, 400.0, 700.0, 3.0, 16.0
# Below so many milliseconds, a process has not carried the file.
IDLE = 100.0
MOST_TRIES = 12
PIECE = os.urandom(64 * 1024)


class Shelf(Thread[Any]):
    """A thread with files."""

    files = Files()
    idle_timeout = 3600


app = Plait(Shelf, limits=None)


def files(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Return the processor time of transfers and of waking in milliseconds, and the memory of transfers in MiB."""
    return [*_transfer(folder, effort, tell), asyncio.run(_wake(folder, effort, tell))]


def _transfer(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    titles = {"PUT": ("100 MB in", IN_AIM), "GET": ("100 MB out", OUT_AIM)}
    owners = {method: Reading(title, [], aim) for method, (title, aim) in titles.items()}
    gateways = {method: Reading(f"{title}, at a gateway", [], GATEWAY_AIM) for method, (title, _) in titles.items()}
    memory = Reading("MiB of memory for it, a process", [], MEMORY_AIM)
    plait_command = str(Path(sys.executable).parent / "plait")
    recipe = Recipe(
        (plait_command, "serve", "benchmarks.files:app", "--port", "{port}", "--workers", "2"),
        {"PLAIT_STORE": "sqlite:///{folder}/files.db", "PYTHONPATH": str(ROOT)},
    )
    with serve("plait", folder / "files", recipe) as server:
        url = f"http://127.0.0.1:{server.port}/threads/shelf/one/files/a.bin"
        workers = _find_workers(server.pid)
        with httpx.Client(timeout=120) as client:
            _send(client, "PUT", url)
        owner: int | None = None
        for _ in range(MOST_TRIES):
            # Each connection comes to one of the workers, by chance.
            with httpx.Client(timeout=120) as client:
                for method in ("PUT", "GET"):
                    with _measuring(workers) as costs:
                        _send(client, method, url)
                    busy = [pid for pid, (spent, _) in costs.items() if spent > IDLE]
                    if len(busy) == 1:
                        owner = busy[0]
                    if owner is None:
                        continue
                    owners[method].rounds.append(costs[owner][0])
                    gateways[method].rounds += [costs[pid][0] for pid in busy if pid != owner]
                    memory.rounds += [grown for spent, grown in costs.values() if spent > IDLE]
                    tell(
                        f"{method}: " + ", ".join(f"{spent:.0f} ms, {grown:.1f} MiB" for spent, grown in costs.values())
                    )
            if min(len(each.rounds) for each in (*owners.values(), *gateways.values())) >= effort.rounds:
                break
    memory.rounds = [max(memory.rounds)]
    return [each for each in (*owners.values(), *gateways.values(), memory) if each.rounds]


def _find_workers(pid: int) -> list[psutil.Process]:
    """Return the workers of a server when all have started."""
    while True:
        children = psutil.Process(pid).children(recursive=True)
        workers = [each for each in children if "worker" in " ".join(each.cmdline())]
        if len(workers) == 2:
            return workers
        time.sleep(0.1)


@contextmanager
def _measuring(workers: list[psutil.Process]) -> Iterator[dict[int, tuple[float, float]]]:
    """Measure the milliseconds that each worker spends during the block, and the MiB by which it grows."""
    costs: dict[int, tuple[float, float]] = {}
    before = {worker.pid: (sum(worker.cpu_times()[:2]), worker.memory_info().rss) for worker in workers}
    most, is_over = {pid: rss for pid, (_, rss) in before.items()}, threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            for worker in workers:
                most[worker.pid] = max(most[worker.pid], worker.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield costs
        time.sleep(0.5)  # The replaced content is removed.
    finally:
        is_over.set()
        watcher.join()
    for worker in workers:
        spent, rss = before[worker.pid]
        costs[worker.pid] = (sum(worker.cpu_times()[:2]) - spent) * 1000, (most[worker.pid] - rss) / 2**20


def _send(client: httpx.Client, method: str, url: str) -> None:
    if method == "PUT":
        assert client.put(url, content=_pieces()).status_code in (200, 201)
    else:
        with client.stream("GET", url) as answer:
            assert sum(len(piece) for piece in answer.iter_raw()) == BYTES


def _pieces() -> Iterator[bytes]:
    left = BYTES
    while left > 0:
        yield PIECE[:left]
        left -= len(PIECE)


async def _wake(folder: Path, effort: Effort, tell: Callable[[str], None]) -> Reading:
    reading = Reading(f"waking a thread with {PATHS:,} files", [], WAKE_AIM)
    async with Plait(Shelf, store=SqliteStore(folder / "paths.db"), limits=None) as shelves:
        key = shelves.thread(Shelf, "one")._key
        thread: Any = (await shelves._node.actor(key)).thread
        uploads = [await thread.files.receive(b"") for _ in range(PATHS)]
        async with thread.transaction():
            for number, upload in enumerate(uploads):
                thread.files.put(f"dir{number % 10}/file-number-{number}.txt", upload)
        for _ in range(3 * effort.rounds):
            await shelves.__aexit__(None, None, None)
            await shelves.__aenter__()
            start = time.process_time()
            await shelves._node.actor(key)
            reading.rounds.append((time.process_time() - start) * 1000)
            tell(f"{reading.title}: {reading.rounds[-1]:.1f} ms")
    return reading
