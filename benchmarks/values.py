"""What it costs to set one value of a thread, with few and with many keys, and to wake a thread that has values."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import Effort
from benchmarks.records import Reading
from plait import Plait, SqliteStore, Thread, Values

__all__ = ["values"]

FEW = 10
MANY = 50_000
SETS = 200
WAKES = 300
# How many times as long a set may take with many keys as with few, and a wake with values as one without any.
SET_AIM = 2.0
WAKE_AIM = 1.25


class Note(Thread[Any]):
    """A thread with values."""

    initial_state = 0
    values = Values()


class Plain(Thread[Any]):
    """A thread without values."""

    initial_state = 0


def values(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    """Return the processor time of a set and of a wake, in milliseconds."""
    return asyncio.run(_measure(folder, effort, tell))


async def _measure(folder: Path, effort: Effort, tell: Callable[[str], None]) -> list[Reading]:
    sets = [Reading(f"values.set, {count:,} keys", []) for count in (FEW, MANY)]
    wakes = [Reading("waking a thread, no values", []), Reading(f"the same, {FEW} values", [])]
    async with Plait(Note, Plain, store=SqliteStore(folder / "values.db"), limits=None) as app:
        notes = [await _fill(app, f"{count} keys", count) for count in (FEW, MANY)]
        for number in range(WAKES):
            await _fill(app, str(number), FEW)
            await app.thread(Plain, str(number)).set_state(1)
        for _ in range(3 * effort.rounds):
            for reading, note, count in zip(sets, notes, (FEW, MANY), strict=True):
                start = time.process_time()
                for number in range(SETS):
                    await note.values.set(str(number * 37 % count), f"a value {time.perf_counter_ns()}")
                reading.rounds.append((time.process_time() - start) * 1000 / SETS)
                tell(f"{reading.title}: {reading.rounds[-1] * 1000:.0f} µs")
        for _ in range(3 * effort.rounds):
            for reading, kind in zip(wakes, (Plain, Note), strict=True):
                await app.__aexit__(None, None, None)
                await app.__aenter__()
                start = time.process_time()
                for number in range(WAKES):
                    await app._node.actor(app.thread(kind, str(number))._key)
                reading.rounds.append((time.process_time() - start) * 1000 / WAKES)
                tell(f"{reading.title}: {reading.rounds[-1] * 1000:.0f} µs")
    sets[1].aim, wakes[1].aim = sets[0].median * SET_AIM, wakes[0].median * WAKE_AIM
    return [*sets, *wakes]


async def _fill(app: Plait, name: str, count: int) -> Note:
    """Return an awake thread with so many values."""
    note = (await app._node.actor(app.thread(Note, name)._key)).thread
    assert isinstance(note, Note)
    async with note.transaction():
        for number in range(count):
            note.values.set(str(number), number)
    return note
