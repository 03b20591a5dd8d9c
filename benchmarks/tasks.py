"""What tasks cost: a step, runs that are asleep, and 1,000 runs that are due in one second."""

import asyncio
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from benchmarks.contest import Effort
from benchmarks.records import Reading
from benchmarks.schedules import LATE_AIM, fill, measure_memory
from plait import SqliteStore, Step, Tasks, Thread, ThreadKey, Values, task
from plait.clock import read_due_clock
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.parts.tasks.rows import JournalEntry, TaskRow
from plait.store.protocol import Write
from plait.store.thread_rows import Record
from plait.web.lifespan import collect_rarely
from plait_schemas.codec import encode_json

__all__ = ["tasks"]

STEPS = 900
DUE = 1_000
ASLEEP = 10_000
# Microseconds of processor time of a step, and milliseconds of a run that is due: to wake its thread, replay it, finish
# it, and stop.
STEP_AIM = 300
EACH_AIM = 2
# MiB for all that are asleep.
MEMORY_AIM = 8

_SECOND = 1_000_000
# Seconds before the first is due, in which the node begins.
_LEAD = 3


class _Nap(Thread[None]):
    """Sleeps, or takes many steps."""

    kind = "nap"
    idle_timeout = 0.2
    values = Values()
    tasks = Tasks()

    @task
    async def nap(self, step: Step, due: int) -> None:
        await step.sleep("until", 3600)  # It has begun before, with the time that is stored.
        _late.append((read_due_clock() - due) / 1000)
        self.values.set("late", 1)

    @task
    async def walk(self, step: Step, count: int) -> None:
        for number in range(count):
            await step.do(f"step {number}", _walk)


_late: list[float] = []


def _walk() -> int:
    return 1


def tasks(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Measure in each round."""
    part = 10 if effort.is_quick else 1
    due, asleep = DUE // part, ASLEEP // part
    readings = [
        Reading("a step, processor time: µs", [], STEP_AIM),
        Reading("a step, writes", [], 1.1),
        Reading(f"{due:,} runs due in one second, 99th percentile late: ms", [], LATE_AIM),
        Reading("the same, the median: ms", []),
        Reading("the same, processor time each: ms", [], EACH_AIM),
        Reading(f"{asleep:,} runs asleep with their threads, memory: MiB", [], MEMORY_AIM),
        Reading("a run asleep in an awake thread, memory: bytes", []),
    ]
    for number in range(effort.rounds):
        with collect_rarely():  # As a server does.
            found = (
                *uvloop.run(_measure_steps(folder / f"steps-{number}.db")),
                *uvloop.run(_measure_due(folder / f"naps-{number}.db", asleep, due)),
                uvloop.run(_measure_awake(folder / f"awake-{number}.db", asleep)),
            )
        for reading, value in zip(readings, found, strict=True):
            reading.rounds.append(value)
            tell(f"{reading.title}: {value:.2f}")
    return readings


async def _measure_steps(path: Path) -> tuple[float, float]:
    async with SqliteStore(path) as store:
        node = Node([_Nap._kind], store, DEFAULT_LIMITS)
        node.start()
        nap = (await node.actor(ThreadKey("nap", "one"))).thread
        assert isinstance(nap, _Nap)
        await nap.tasks.wait((await nap.tasks.run("walk", 50)).id)
        submit, count = store.submit, 0

        def counting(write: Write) -> asyncio.Future[int]:
            nonlocal count
            count += 1
            return submit(write)

        store.submit = counting  # type: ignore[method-assign]
        used = time.process_time()
        await nap.tasks.wait((await nap.tasks.run("walk", STEPS)).id)
        used = time.process_time() - used
        await node.stop(1)
    return used / STEPS * 1e6, count / STEPS


def _make_write(key: ThreadKey, ids: range, due: int, fence: int) -> Write:
    """Return the write of a new thread, whose runs have left the memory until a time."""
    records = []
    for number in ids:
        args = msgspec.Raw(b"[%d]" % due)
        row = TaskRow(id=f"{number}", effect="nap", args=args, created_at=due, at=due, due=due, asleep_since=1)
        nap = encode_json(JournalEntry("sleep", is_done=True, due=due))
        records += [Record("tasks", f"r/{number}", row.encode()), Record("tasks", f"j/{number}/s/until", nap)]
    return Write(key, "e", None, 0, records=records, due=due, fence=fence)


async def _measure_due(path: Path, asleep: int, due: int) -> tuple[float, float, float, float]:
    _late.clear()
    async with SqliteStore(path) as store:

        async def make(name: str, at: int) -> Write:
            key = ThreadKey("nap", name)
            return _make_write(key, range(1), at, await store.claim(key))

        await fill(store, asleep, make, first=read_due_clock() + 3600 * _SECOND)
        begin = read_due_clock() + _LEAD * _SECOND
        await fill(store, due, make, first=begin, prefix="due ", step=_SECOND // due)
    async with SqliteStore(path) as store:
        node = Node([_Nap._kind], store, DEFAULT_LIMITS)
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


async def _measure_awake(path: Path, count: int) -> float:
    key = ThreadKey("nap", "one")
    async with SqliteStore(path) as store:
        write = _make_write(key, range(count), read_due_clock() + 3600 * _SECOND, await store.claim(key))
        await store.submit(write)
    async with SqliteStore(path) as store:
        node = Node([_Nap._kind], store, DEFAULT_LIMITS)
        node.start()
        await node.actor(ThreadKey("nap", "other"))
        tracemalloc.start()
        actor = await node.actor(key)
        found = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert isinstance(actor.thread, _Nap)
        await node.stop(1)
    return found / count
