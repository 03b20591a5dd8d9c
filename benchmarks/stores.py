"""Durable changes in SQLite, JSON files and engines: `python -m benchmarks.stores [ROUNDS [SECONDS]]`.

Each round measures all stores one after the other, as other work on the machine then slows all of them. A private
PostgreSQL is started for it, in the same folder as SQLite's file, three NATS servers that sync each write, and a Redis
and a MariaDB server that do. Exits with 1 if a median breaks an aim.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import uvloop
from tests.mariadb import Mariadb
from tests.nats import NatsCluster, new_stream
from tests.postgres import Postgres, new_schema, private_folder
from tests.redis import Redis

from plait.store.protocol import Store, Write
from plait.store.thread_rows import ChangeRow, ClientRow, Prune, Snapshot, ThreadKey
from plait.store.urls import open_store

__all__ = ["main", "measure"]

# The least ratio of an engine's changes to SQLite's, and the least changes a second of NATS.
AIMS: Final[dict[str, dict[str, float]]] = {
    "PostgreSQL": {"64 threads": 0.7, "one at a time": 0.5},
    "NATS": {},
    "Redis": {"64 threads": 0.12},
    "JSON files": {},
    "MariaDB": {"64 threads": 0.06},
}
NATS_AIMS: Final = {"64 threads": 4000}
THREADS: Final = 64
OPS: Final = b'[{"op":"replace","path":"/text","value":"%s"}]' % (b"x" * 960)
# Every so many changes, clients' changes come with a snapshot, as those of a state of some kilobytes do.
SNAPSHOT_EVERY: Final = 16


class Rate(NamedTuple):
    """Changes a second, and the processor time of one, in microseconds, here and in the server."""

    rate: float
    client: float
    server: float


class Load(NamedTuple):
    """How many threads are written at once, and how each change is made."""

    threads: int
    make: Callable[[ThreadKey, int, int], Write]


def make_plain(key: ThreadKey, version: int, fence: int) -> Write:
    """Return a change by the server."""
    return Write(key, "e", version - 1, version, (ChangeRow(version, OPS, "server", 1),), fence=fence)


def make_pushed(key: ThreadKey, version: int, fence: int) -> Write:
    """Return a change by a client, some with a snapshot."""
    is_rewritten = version % SNAPSHOT_EVERY == 0
    return Write(
        *(key, "e", version - 1, version, (ChangeRow(version, OPS, "c", time.time_ns() // 1000),)),
        snapshots=(Snapshot(version, OPS),) if is_rewritten else (),
        prune=Prune(version - 1000) if is_rewritten else None,
        clients=(ClientRow("c", version, b"[]", time.time_ns() // 1000),),
        fence=fence,
    )


LOADS: Final = {
    "64 threads": Load(THREADS, make_plain),
    "one at a time": Load(1, make_plain),
    "64 threads, by clients": Load(THREADS, make_pushed),
    "one at a time, by clients": Load(1, make_pushed),
}


async def measure(store: Store, load: Load, seconds: float, servers: Sequence[psutil.Process]) -> Rate:
    """Write for some seconds; each thread waits until its change is durable before it makes the next one."""
    keys = [ThreadKey("bench", os.urandom(8).hex()) for _ in range(load.threads)]
    async with store:
        fences = {key: await store.claim(key) for key in keys}
        begin = (Write(key, "e", None, 0, snapshots=(Snapshot(0, OPS),), fence=fences[key]) for key in keys)
        await asyncio.gather(*map(store.submit, begin))
        used, began, client = _server_time(servers), time.perf_counter(), time.process_time()
        counts = await asyncio.gather(*(_write(store, key, fences[key], load, began + seconds) for key in keys))
        took, count = time.perf_counter() - began, sum(counts)
        client, used = time.process_time() - client, _server_time(servers) - used
    return Rate(count / took, client / count * 1e6, used / count * 1e6)


async def _write(store: Store, key: ThreadKey, fence: int, load: Load, deadline: float) -> int:
    version = 0
    while time.perf_counter() < deadline:
        version += 1
        await store.submit(load.make(key, version, fence))
    return version


def _server_time(servers: Sequence[psutil.Process]) -> float:
    """Return the processor time of servers with all their processes, those that have ended, too."""
    found = 0.0
    for server in servers:
        own = server.cpu_times()
        found += own.user + own.system + own.children_user + own.children_system
        for child in server.children():
            times = child.cpu_times()
            found += times.user + times.system
    return found


def run(folder: Path, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Print a line for each measurement, and return the changes a second by load and store."""
    rates: dict[str, dict[str, list[float]]] = {name: {} for name in LOADS}
    with (
        Postgres(folder / "data", "--fsync=on", "--full_page_writes=on", "--shared_buffers=128MB") as postgres,
        NatsCluster(folder / "nats", sync="always") as nats,
        Redis(folder / "redis") as redis,
        Mariadb(folder / "mariadb", "--innodb-flush-method=fsync", "--innodb-buffer-pool-size=128M") as mariadb,
    ):
        servers = {
            "SQLite": [],
            "JSON files": [],
            "PostgreSQL": [psutil.Process(postgres.pid)],
            "NATS": [psutil.Process(each.pid) for each in nats.servers],
            "Redis": [psutil.Process(redis.pid)],
            "MariaDB": [psutil.Process(mariadb.pid)],
        }
        for number in range(rounds):
            for name, load in LOADS.items():
                urls = {
                    "SQLite": f"sqlite:///{folder}/{number}-{load.threads}-{name[-3:]}.db",
                    "JSON files": f"file://{folder}/{number}-{load.threads}-{name[-3:]}",
                    "PostgreSQL": new_schema(postgres.url),
                    "NATS": new_stream(nats.url),
                    "Redis": redis.make_store(),
                    "MariaDB": mariadb.make_store(),
                }
                for engine, url in urls.items():
                    rate = uvloop.run(measure(open_store(url), load, seconds, servers[engine]))
                    cost = f"{rate.client:5.0f} µs" + (f" + {rate.server:.0f} µs in the server" if rate.server else "")
                    print(f"{name:26} {engine:11} {rate.rate:8,.0f}/s  {cost}")
                    rates[name].setdefault(engine, []).append(rate.rate)
    return rates


def main(arguments: Sequence[str]) -> int:
    """Measure, and return whether an aim is broken."""
    rounds, seconds = (*(float(each) for each in arguments), 3.0, 3.0)[:2]
    with private_folder() as folder:
        rates = run(folder, int(rounds), seconds)
    is_broken = False
    for name, found in rates.items():
        for engine, aims in AIMS.items():
            pairs = zip(found[engine], found["SQLite"], strict=True)
            ratio, rate = statistics.median(own / other for own, other in pairs), statistics.median(found[engine])
            aim = ""
            if name in aims:
                aim, is_broken = f" (aim {aims[name]})", is_broken or ratio < aims[name]
            elif engine == "NATS" and name in NATS_AIMS:
                aim, is_broken = f" (aim {NATS_AIMS[name]:,}/s)", is_broken or rate < NATS_AIMS[name]
            print(f"{name:26} {engine} has {ratio:.2f} of SQLite's rate, {rate:,.0f}/s{aim}")
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
