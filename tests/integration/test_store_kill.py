"""A store whose process is killed has units of writes whole or not at all, and no deleted thread comes back."""

import asyncio
import json
import logging
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.schedules import SEED, TIMES, schedules
from tests.server.store.contract import change
from tests.store_rows import HEADS

from plait.store.protocol import Write
from plait.store.rows import spaces
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import Record, RecordRange, Snapshot, ThreadKey

log = logging.getLogger(__name__)

ROUNDS = schedules() if TIMES > 1 else 3
THREADS = 8


def make_key(number: int) -> ThreadKey:
    return ThreadKey("room", str(number))


def make_records(version: int) -> Sequence[Record]:
    """Return the records that go with a version: both name it, and a third one is there for odd versions only."""
    value = b"%d" % version
    return [Record("p", "a", value), Record("q", "b", value), Record("q", "odd", value if version % 2 else None)]


# What runs in the process that is killed


async def write(store: SqliteStore, number: int, chance: random.Random) -> None:
    """Change, delete and begin a thread, and print what is durable."""
    key = make_key(number)
    stored = await store.load(key)
    epoch, version = (stored.epoch, stored.version) if stored else ("", -1)
    fence = await store.claim(key)
    while True:
        unit: list[Write]
        if version < 0:
            # Later beginnings have later epochs.
            epoch, version = f"{time.time_ns():x}", 0
            first = Write(key, epoch, None, 0, snapshots=(Snapshot(0, b"0"),), fence=fence)
            unit = [first, Write(key, epoch, 0, 0, records=make_records(0), fence=fence)]
        elif chance.random() < 0.1:
            unit = [
                Write(key, epoch, version, version, records=[Record("p", "last", b"1")], fence=fence),
                Write(key, epoch, version, version, is_deletion=True, fence=fence),
            ]
            version = -1
        else:
            version += 1
            rows = change(version).changes
            snapshots = (Snapshot(version, b"%d" % version),) if chance.random() < 0.1 else ()
            unit = [
                Write(key, epoch, version - 1, version, rows, snapshots, fence=fence),
                Write(key, epoch, version, version, records=make_records(version), fence=fence),
            ]
        await asyncio.gather(*map(store.submit, unit))
        os.write(1, json.dumps([number, epoch, version]).encode() + b"\n")


async def main(path: str, seed: int) -> None:
    chance = random.Random(seed)
    # So that most deleted threads leave rows that are removed later.
    spaces._STEP_BYTES = 1500  # type: ignore[misc]
    async with SqliteStore(path) as store, asyncio.TaskGroup() as tasks:
        for number in range(THREADS):
            tasks.create_task(write(store, number, chance))


# The test


@pytest.mark.soak
@pytest.mark.timeout(400 * TIMES)
async def test_a_killed_store_has_units_whole_and_no_deleted_thread_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    log.warning("PLAIT_SEED=%d, %d rounds", SEED, ROUNDS)
    chance = random.Random(SEED)
    # By thread: its epoch and version as they were last acknowledged, -1 for a deleted thread.
    told: dict[int, tuple[str, int]] = {}
    deletions = 0
    for round in range(ROUNDS):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.test_store_kill",
            str(path),
            str(SEED + round),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            lines = [await process.stdout.readline()]
            assert lines[0], "nothing was acknowledged"
            reading = asyncio.create_task(process.stdout.read())
            await asyncio.sleep(chance.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            lines += (await reading).splitlines()
            await process.wait()
        for line in lines:
            number, epoch, version = json.loads(line)
            told[number] = epoch, version
            deletions += version < 0
        async with SqliteStore(path) as store:
            for number in range(THREADS):
                told[number] = await check(store, number, told.get(number, ("", -1)))
        check_rows(path)
    assert deletions > ROUNDS


async def check(store: SqliteStore, number: int, told: tuple[str, int]) -> tuple[str, int]:
    """Compare a thread with what was told of it, after which one unit more may have been stored; return what is."""
    key = make_key(number)
    stored = await store.load(key)
    records = [*await store.records(key, RecordRange("p")), *await store.records(key, RecordRange("q"))]
    epoch, version = told
    if stored is None:
        assert records == []
        return epoch, -1  # A deletion need not have been acknowledged.
    assert records == [record for record in make_records(stored.version) if record.value is not None]
    if stored.epoch == epoch:
        assert version >= 0, "a deleted thread has come back"
        assert stored.version in (version, version + 1)
    else:
        assert stored.epoch > epoch, "the history is an earlier one"
        assert version < 0, "the history was lost"
        assert stored.version == 0
    return stored.epoch, stored.version


def check_rows(path: Path) -> None:
    """Check that each row belongs to a thread that is there, or that is being removed, and none to both."""
    removed = "SELECT key FROM rows WHERE thread = 0 AND part = '~removed'"
    known = f"SELECT json_extract(value, '$.space') FROM rows WHERE {HEADS} UNION ALL {removed}"
    with closing(sqlite3.connect(path)) as db:
        strays = db.execute(f"SELECT * FROM rows WHERE thread > 0 AND thread NOT IN ({known})").fetchall()
        spaces_found = [space for (space,) in db.execute(known)]
    assert strays == []
    assert len(spaces_found) == len(set(spaces_found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
