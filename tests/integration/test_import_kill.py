"""An import whose process is killed is there whole or not at all, and nothing is left of it after the next start."""

import asyncio
import hashlib
import json
import logging
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.schedules import SEED, TIMES, schedules

from plait import Plait, SqliteStore, Thread, ThreadKey, Values
from plait.cli.maintenance import check_store
from plait.store.protocol import INCOMPLETE

log = logging.getLogger(__name__)

ROUNDS = schedules()
RECORDS = 4000


class Box(Thread[Any]):
    values = Values()


def make_file(number: int) -> bytes:
    """Return a file whose state and records tell of a number."""
    lines: list[object] = [{"format": 2, "kind": "box", "name": str(number)}, {"state": number}]
    lines += ({"part": "values", "key": f"value/{index:05}", "value": number} for index in range(RECORDS))
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    end = {"records": RECORDS, "sha256": hashlib.sha256(data).hexdigest()}
    return data + json.dumps(end).encode() + b"\n"


# What runs in the process that is killed


async def main(path: str, first: int) -> None:
    async with Plait(Box, store=SqliteStore(path)) as app:
        number = first
        while True:
            # One that replaces the one before, and one that does not.
            for name in ("kept", None):
                await app.import_thread(make_file(number), name=name, replace=name is not None)
                os.write(1, f"{name or number} {number}\n".encode())
            number += 1


# The test


@pytest.mark.soak
@pytest.mark.timeout(400 * TIMES)
async def test_an_import_that_is_killed_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "boxes.db"
    log.warning("PLAIT_SEED=%d, %d rounds", SEED, ROUNDS)
    chance = random.Random(SEED)
    # By name: the number of the last import that was acknowledged.
    told: dict[str, int] = {}
    interrupted = 0
    for round in range(ROUNDS):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.test_import_kill",
            str(path),
            str(1000 * round),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            lines = [await process.stdout.readline()]
            assert lines[0], "nothing was acknowledged"
            reading = asyncio.create_task(process.stdout.read())
            await asyncio.sleep(chance.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            lines += (await reading).splitlines()
            await process.wait()
        told |= {name: int(number) for name, number in (line.decode().split() for line in lines)}
        interrupted += await check(path, told)
    assert interrupted > 0


async def check(path: Path, told: dict[str, int]) -> int:
    """Check what is stored after a start, and return how many imports were incomplete before it."""
    async with SqliteStore(path, readonly=True) as store:
        incomplete = await store.due_threads(until=INCOMPLETE)
        listed = [row.key.name for row in await store.threads()]
    assert not {each.key.name for each in incomplete} & set(listed)
    async with Plait(Box, store=SqliteStore(path)) as app:
        names = [row.key.name async for row in app.threads()]
        assert names == listed
        assert await app._store.due_threads(until=2**62) == []
        for each in incomplete:
            assert await app._store.find(each.key) is None
        # One that was being replaced may be gone.
        assert set(told) - set(names) <= {"kept"}
        for name in names:
            number = await app.thread(Box, name).state()
            # One more may be stored than was told.
            assert number >= told.get(name, number)
            assert name in ("kept", str(number))
            key = ThreadKey("box", name)
            records = await app._store.records(key, "values", limit=RECORDS + 1)
            assert [each.value for each in records] == [str(number).encode()] * RECORDS
            if name != "kept":
                await app.destroy(Box, name)
                told.pop(name, None)
    assert not any(is_damage for _, is_damage in check_store(path))
    return len(incomplete)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
