"""What a row of a thread's tables costs, compared with one value, and how many files of many threads are open."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import Effort
from benchmarks.records import Reading
from plait import Plait, Sql, SqliteStore, Thread, Values

__all__ = ["sql"]

THREADS = 64
ROWS = 30
MANY = 10_000
# How many times as long as the set of a value an insert may take, and how many descriptors the tables may have.
INSERT_AIM = 2.0
DESCRIPTORS_AIM = 200

Write = Callable[["Ledger"], Awaitable[object]]


class Ledger(Thread[Any]):
    """A thread with tables and values."""

    initial_state = 0
    values = Values()
    sql = Sql(migrations=["create table notes (n integer primary key, text text); create index texts on notes (text)"])


WRITES: dict[str, Write] = {
    "values.set of a new key, 100 bytes": lambda ledger: ledger.values.set(f"{time.perf_counter_ns()}", _make_text()),
    "an insert of 100 bytes, with an index": lambda ledger: ledger.sql(
        "insert into notes (text) values (?)", _make_text()
    ),
}


def sql(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Return the processor time of writes and selects in milliseconds, and descriptors."""
    return asyncio.run(_measure(folder, effort, tell))


async def _measure(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    readings, before = [Reading(title, []) for title in (*WRITES, "a select by key")], _count()
    async with Plait(Ledger, store=SqliteStore(folder / "sql.db"), limits=None) as app:
        ledgers = [await _find(app, f"{number}") for number in range(THREADS)]
        for _ in range(3 * effort.rounds):
            for reading, write in zip(readings, WRITES.values(), strict=False):
                start = time.process_time()
                await asyncio.gather(*(_write(ledger, write) for ledger in ledgers))
                reading.rounds.append((time.process_time() - start) * 1000 / THREADS / ROWS)
                tell(f"{reading.title}: {reading.rounds[-1] * 1000:.0f} µs")
            start = time.process_time()
            for _ in range(THREADS * ROWS):
                assert ledgers[0].sql("select text from notes where n = ?", 3).value
            readings[-1].rounds.append((time.process_time() - start) * 1000 / THREADS / ROWS)
        readings.append(await _count_descriptors(app, before, tell))
    readings[1].aim = readings[0].median * INSERT_AIM
    return readings


async def _count_descriptors(app: Plait, before: int, tell: Callable[[str], None]) -> Reading:
    reading = Reading(f"descriptors of {MANY:,} threads with tables", [], DESCRIPTORS_AIM)
    for number in range(MANY):
        await (await _find(app, f"many {number}")).sql("insert into notes (text) values ('a')")
        if number % 1000 == 0:
            reading.rounds.append(_count() - before)
    tell(f"{reading.title}: {max(reading.rounds)}")
    return reading


async def _write(ledger: Ledger, write: Write) -> None:
    for _ in range(ROWS):
        await write(ledger)


async def _find(app: Plait, name: str) -> Ledger:
    ledger = (await app._node.actor(app.thread(Ledger, name)._key)).thread
    assert isinstance(ledger, Ledger)
    return ledger


def _make_text() -> str:
    return f"{time.perf_counter_ns()}".ljust(100)


def _count() -> int:
    return len(os.listdir("/proc/self/fd"))
