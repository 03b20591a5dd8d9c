"""What threads with schedules cost: 100,000 that are asleep, and 1,000 that are due in one second."""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.contest import Effort
from benchmarks.records import Reading
from plait import Schedule, SqliteStore, Thread, ThreadKey, Values, effect
from plait.clock import read_due_clock
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.parts.schedule.rows import Row
from plait.store.protocol import Write
from plait.store.thread_rows import Record
from plait.web.lifespan import collect_rarely

__all__ = ["LATE_AIM", "fill", "measure_memory", "schedules"]

PENDING = 100_000
DUE = 1_000
# Milliseconds that an effect may be late, and of processor time for each: to wake the thread, run it, and stop.
LATE_AIM = 250
EACH_AIM = 1
# MiB for all that wait, beside what the store's cache takes.
MEMORY_AIM = 8

_SECOND = 1_000_000
_AT_ONCE = 5_000
# Seconds before the first is due, in which the node begins.
_LEAD = 3


class _Reminder(Thread[None]):
    """Writes a value when it is due."""

    kind = "reminder"
    idle_timeout = 0.2
    values = Values()
    schedule = Schedule()

    @effect
    async def remind(self, late: str) -> None:
        run = self.schedule.current
        assert run is not None
        _late.append((read_due_clock() - run.due) / 1000)
        await self.values.set(late, 1)


_late: list[float] = []


def schedules(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Fill a store in each round, and wait until what is due has run."""
    pending = PENDING // 10 if effort.is_quick else PENDING
    due = DUE // 10 if effort.is_quick else DUE
    readings = [
        Reading(f"{due:,} due in one second, 99th percentile late: ms", [], LATE_AIM),
        Reading("the same, the median: ms", []),
        Reading("the same, processor time each: ms", [], EACH_AIM),
        Reading(f"{pending:,} pending, memory: MiB", [], MEMORY_AIM),
    ]
    for number in range(effort.rounds):
        with collect_rarely():  # As a server does.
            found = asyncio.run(_measure(folder / f"schedules-{number}.db", pending, due))
        for reading, value in zip(readings, found, strict=True):
            reading.rounds.append(value)
            tell(f"{reading.title}: {value:.2f}")
    return readings


async def _measure(path: Path, pending: int, due: int) -> tuple[float, float, float, float]:
    _late.clear()
    async with SqliteStore(path) as store:
        make = partial(_make_write, store)
        await fill(store, pending, make, first=read_due_clock() + 3600 * _SECOND)
        begin = read_due_clock() + _LEAD * _SECOND
        await fill(store, due, make, first=begin, prefix="due ", step=_SECOND // due)
    async with SqliteStore(path) as store:
        node = Node([_Reminder._kind], store, DEFAULT_LIMITS)
        before = measure_memory()
        node.start()
        while read_due_clock() < begin:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        grown = measure_memory() - before
        used = time.process_time()
        while len(_late) < due or node.actors:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        each = (time.process_time() - used) / due * 1000
        await node.stop(1)
    late = sorted(_late)
    assert late[0] >= 0
    assert len(late) == due
    return late[int(due * 0.99)], late[due // 2], each, max(grown, 0.0)


async def fill(
    store: SqliteStore,
    count: int,
    make: Callable[[str, int], Awaitable[Write]],
    *,
    first: int,
    prefix: str = "",
    step: int = 1,
) -> None:
    """Store sleeping threads, each with work that is due; `make` returns the write for a name and a time."""
    for start in range(0, count, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, count))
        writes = [await make(f"{prefix}{number}", first + number * step) for number in numbers]
        await asyncio.gather(*(store.submit(write) for write in writes))


async def _make_write(store: SqliteStore, name: str, at: int) -> Write:
    """Return the write of a thread with a schedule."""
    row = Row(id=name, effect="remind", args=msgspec.Raw(b'["late"]'), created_at=at, at=at, due=at)
    key = ThreadKey("reminder", name)
    records = [Record("schedule", row.id, row.encode())]
    return Write(key, "e", None, 0, records=records, due=at, fence=await store.claim(key))


def measure_memory() -> float:
    """Return the MiB that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20
