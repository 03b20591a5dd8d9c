"""The bare limit of durable writes: `python -m benchmarks.bare_sqlite FOLDER one|group SECONDS`."""

import asyncio
import queue
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from benchmarks.results import Clock

__all__ = ["LIMITS", "commit", "main", "open_log"]

Pending = queue.SimpleQueue[asyncio.Future[None] | None]
WAITING = 256
INSERT = "INSERT INTO log (ops, at) VALUES (?, ?)"
CHANGE = (b'[{"op":"replace","path":"/n","value":1}]', 0.0)


def open_log(path: Path) -> sqlite3.Connection:
    """Open a log of changes with plait's default durability."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE log (version INTEGER PRIMARY KEY, ops BLOB, at REAL)")
    return connection


def commit(connection: sqlite3.Connection, changes: int) -> None:
    """Write `changes` changes in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    if changes == 1:
        connection.execute(INSERT, CHANGE)
    else:
        connection.executemany(INSERT, [CHANGE] * changes)
    connection.execute("COMMIT")


def commit_each(connection: sqlite3.Connection, seconds: float) -> int:
    """Commit each change in its own transaction, in the calling thread; returns their number."""
    count = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        commit(connection, 1)
        count += 1
    return count


def group_commits(connection: sqlite3.Connection, seconds: float) -> int:
    """Keep WAITING changes in flight in an event loop; one thread commits all that wait. Returns their number."""
    return uvloop.run(submit_all(connection, seconds))


async def submit_all(connection: sqlite3.Connection, seconds: float) -> int:
    """Submit changes for some seconds; returns how many became durable."""
    loop = asyncio.get_running_loop()
    pending: Pending = queue.SimpleQueue()
    writer = threading.Thread(target=write, args=(connection, pending, loop))
    writer.start()
    deadline = loop.time() + seconds
    count = 0

    async def submit() -> None:
        nonlocal count
        while loop.time() < deadline:
            done: asyncio.Future[None] = loop.create_future()
            pending.put(done)
            await done
            count += 1

    await asyncio.gather(*(submit() for _ in range(WAITING)))
    pending.put(None)
    writer.join()
    return count


def write(connection: sqlite3.Connection, pending: Pending, loop: asyncio.AbstractEventLoop) -> None:
    """Commit all pending writes together, again and again, until None ends the queue."""
    while (first := pending.get()) is not None:
        batch = [first]
        while not pending.empty() and (following := pending.get()) is not None:
            batch.append(following)
        commit(connection, len(batch))
        loop.call_soon_threadsafe(release, batch)


def release(waiting: list[asyncio.Future[None]]) -> None:
    """Wake the callers of durable changes."""
    for done in waiting:
        done.set_result(None)


LIMITS: dict[str, Callable[[sqlite3.Connection, float], int]] = {"one": commit_each, "group": group_commits}


def main() -> None:
    """Print one result as JSON."""
    folder, limit, seconds = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        connection = open_log(Path(place) / "bare.db")
        clock = Clock([])
        result = clock.result(LIMITS[limit](connection, float(seconds)))
        connection.close()
    # There is no generator: the time of this process counts as the server's.
    result = msgspec.structs.replace(result, server_cpu=result.generator_cpu, generator_cpu=0.0)
    print(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
