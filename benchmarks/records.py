"""The time to read a thread's records from SQLite, and how long others wait while a large thread is deleted."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.contest import Effort
from plait.store.protocol import Write
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ChangeRow, Record, RecordRange, ThreadKey

__all__ = ["SIZE", "Reading", "records"]

# Records that are read, with as many others before and after them; and bytes of each.
COUNT = 10_000
SIZE = 100
# Milliseconds.
AIM = 20
KEY = ThreadKey("bench", "records")
# The records of a thread that is deleted, and milliseconds that the changes of another one may wait.
CHUNKS = 440
CHUNK = 256 * 1024
WAIT_AIM = 250


class Reading(msgspec.Struct):
    """Milliseconds of each round: the processor time to read all records, or the longest wait of another thread."""

    title: str
    rounds: list[float]
    aim: float | None = None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)


def records(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Write records once, and read them in each round; and delete a large thread in each round."""
    return [*asyncio.run(_measure(folder, effort, tell)), asyncio.run(_delete(folder, effort, tell))]


async def _measure(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    readings = [Reading(f"{COUNT:,} records in one page", [], AIM), Reading("the same in pages of 1,000", [])]
    async with SqliteStore(folder / "records.db") as store:
        rows = [Record("bench", f"{prefix}/{n:05}", b"x" * SIZE) for prefix in "abc" for n in range(COUNT)]
        await store.submit(Write(KEY, "e", None, 0, records=rows, fence=await store.claim(KEY)))
        for _ in range(3 * effort.rounds):
            for reading, limit in zip(readings, (COUNT, 1000), strict=True):
                start = time.process_time()
                found = await _read(store, limit)
                reading.rounds.append((time.process_time() - start) * 1000)
                assert len(found) == COUNT
                tell(f"{reading.title}: {reading.rounds[-1]:.1f} ms")
    return readings


async def _read(store: SqliteStore, limit: int) -> Sequence[Record]:
    found: list[Record] = []
    while page := await store.records(
        KEY, RecordRange("bench", prefix="b/", after=found[-1].key if found else "", limit=limit)
    ):
        found += page
    return found


async def _delete(folder: Path, effort: Effort, tell: Callable[[str], None]) -> Reading:
    reading = Reading(f"longest wait of others, {CHUNKS * CHUNK / 1e6:.0f} MB deleted", [], WAIT_AIM)
    large, other, version = ThreadKey("bench", "large"), ThreadKey("bench", "other"), 0
    async with SqliteStore(folder / "deletions.db") as store:
        fence, others = await store.claim(large), await store.claim(other)
        await store.submit(Write(other, "e", None, 0, fence=others))
        for _ in range(effort.rounds):
            await store.submit(Write(large, "e", None, 0, fence=fence))
            for n in range(CHUNKS):
                row = Record("bench", f"{n:05}", bytes(CHUNK))
                await store.submit(Write(large, "e", 0, 0, records=(row,), fence=fence))
            deletion = store.submit(Write(large, "e", 0, 0, fence=fence, is_deletion=True))
            begun, waits = time.perf_counter(), list[float]()
            while time.perf_counter() - begun < 2:
                version, start = version + 1, time.perf_counter()
                change = ChangeRow(version, b"[]", "server", 0)
                await store.submit(Write(other, "e", version - 1, version, (change,), fence=others))
                waits.append((time.perf_counter() - start) * 1000)
                await asyncio.sleep(0.001)
            await deletion
            reading.rounds.append(max(waits))
            tell(f"{reading.title}: {reading.rounds[-1]:.0f} ms")
    return reading
