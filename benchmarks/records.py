"""The time to read a thread's records by prefix from a SQLite store, in one page and in pages of 1,000."""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.contest import Effort
from plait.store.protocol import Record, ThreadKey, Write
from plait.store.sqlite import SqliteStore

__all__ = ["SIZE", "Reading", "records"]

# Records that are read, as many others before and after them, and bytes of each.
COUNT = 10_000
SIZE = 100
# Milliseconds.
AIM = 20
KEY = ThreadKey("bench", "records")


class Reading(msgspec.Struct):
    """Milliseconds of processor time from a call until all records are there, by round."""

    title: str
    rounds: list[float]
    aim: float | None = None

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)


def records(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Write records once, and read them in each round."""
    return asyncio.run(_measure(folder, effort, tell))


async def _measure(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    readings = [Reading(f"{COUNT:,} records in one page", [], AIM), Reading("the same in pages of 1,000", [])]
    async with SqliteStore(folder / "records.db") as store:
        rows = [Record("bench", f"{prefix}/{n:05}", b"x" * SIZE) for prefix in "abc" for n in range(COUNT)]
        await store.submit(Write(KEY, "e", None, 0, records=rows))
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
    while page := await store.records(KEY, "bench", prefix="b/", after=found[-1].key if found else "", limit=limit):
        found += page
    return found
