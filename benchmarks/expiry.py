"""What sleeping threads with `expires_after` cost: `python -m benchmarks.expiry [count]`."""

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plait import SqliteStore, Store, Thread, ThreadKey
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.store.protocol import Write
from plait.store.thread_rows import Snapshot

__all__ = ["main"]

_HOUR = 3600.0
_AT_ONCE = 5_000


class Draft(Thread[Any]):
    """A thread that expires."""

    initial_state = 0
    expires_after = _HOUR


async def _fill(store: Store, count: int) -> None:
    later = time.time_ns() // 1000 + int(_HOUR * 1e6)
    for start in range(0, count, _AT_ONCE):
        await asyncio.gather(
            *(_create(store, n, later + 2 * n | 1) for n in range(start, min(start + _AT_ONCE, count)))
        )


async def _create(store: Store, number: int, due: int) -> None:
    key = ThreadKey("draft", str(number))
    fence = await store.claim(key)
    await store.submit(Write(key, "e", None, 0, snapshots=(Snapshot(0, b"0"),), fence=fence, due=due))
    store.release(key, fence)


def _memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def _measure(path: Path, count: int) -> None:
    async with SqliteStore(path) as store:
        began = time.perf_counter()
        await _fill(store, count)
        print(f"filled with {count} sleeping threads in {time.perf_counter() - began:.1f} s")
    async with SqliteStore(path) as store:
        before = _memory()
        node = Node([Draft._kind], store, DEFAULT_LIMITS, sweep_interval=1000, timer_interval=0.05)
        began, used = time.perf_counter(), time.process_time()
        node.start()
        await asyncio.sleep(10)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        looks = seconds / 0.05
        print(
            f"{used / looks * 1000:.2f} ms of a core for each look; every 30 s that is {used / looks / 30:.4%} of one"
        )
        print(f"{_memory() - before:.1f} MiB more in memory than before")
        await node.stop(1)


def main() -> None:
    """Measure with a store in a temporary folder."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(Path(folder) / "threads.db", count))


if __name__ == "__main__":
    main()
