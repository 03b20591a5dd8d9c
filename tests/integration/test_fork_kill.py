"""A fork whose process is killed is there whole, of one moment, or not at all, and its original loses nothing."""

import asyncio
import logging
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.schedules import SEED, TIMES, schedules

from plait import Messages, Plait, SqliteStore, Thread, ThreadKey, Values, rpc
from plait.cli.maintenance import check_store
from plait.store.protocol import INCOMPLETE

log = logging.getLogger(__name__)

ROUNDS = schedules()
RECORDS = 8000


class Box(Thread[Any]):
    initial_state = 0
    values = Values()
    messages = Messages()

    @rpc
    def count(self) -> int:
        """Count in the state, a value and a message, at once."""
        with self.transaction():
            self.set_state(lambda number: number + 1)
            self.values.set("number", self.state)
            self.messages.inject("user", str(self.state))
        return int(self.state)


# What runs in the process that is killed


async def main(path: str, first: int) -> None:
    async with Plait(Box, store=SqliteStore(path)) as app:
        box = app.thread(Box, "box")
        if not await box.values.size():
            await asyncio.gather(*(box.values.set(f"{number:05}", number) for number in range(RECORDS)))

        async def count() -> None:
            while True:
                os.write(1, f"box {await box.count()}\n".encode())

        counting = asyncio.create_task(count())
        number = first
        while not counting.done():
            fork = await app.fork_thread(Box, "box", str(number))
            os.write(1, f"{number} {await fork.state()}\n".encode())
            number += 1


# The test


@pytest.mark.soak
@pytest.mark.timeout(400 * TIMES)
async def test_a_fork_that_is_killed_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "boxes.db"
    log.warning("PLAIT_SEED=%d, %d rounds", SEED, ROUNDS)
    chance = random.Random(SEED)
    interrupted = 0
    for round in range(ROUNDS):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.test_fork_kill",
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
            await asyncio.sleep(chance.uniform(0, 0.8))
            process.send_signal(signal.SIGKILL)
            lines += (await reading).splitlines()
            await process.wait()
        told = {name: int(number) for name, number in (line.decode().split() for line in lines)}
        interrupted += await check(path, told)
    assert interrupted > 0


async def check(path: Path, told: dict[str, int]) -> int:
    """Check what is stored after a start, and return how many forks were incomplete before it."""
    async with SqliteStore(path, readonly=True) as store:
        incomplete = await store.due_threads(until=INCOMPLETE)
        listed = [row.key.name for row in await store.threads()]
    assert not {each.key.name for each in incomplete} & set(listed)
    async with Plait(Box, store=SqliteStore(path)) as app:
        names = [row.key.name async for row in app.threads()]
        assert names == listed
        assert set(told) <= set(names)
        assert await app._store.due_threads(until=2**62) == []
        for each in incomplete:
            assert await app._store.find(each.key) is None
        for name in names:
            box = app.thread(Box, name)
            number = await box.state()
            if name == "box":
                assert number >= told.get(name, 0)
            else:
                assert number == told.get(name, number)
            found = await box.messages.list(1)
            assert found.total == number
            if number:
                assert await box.values.get("number") == number
                assert found.messages[0].content == str(number)
            assert await box.values.size() == RECORDS + bool(number)
            rows = await app._store.records(ThreadKey("box", name), "messages", prefix="m/", limit=10**6)
            assert len(rows) == number
            if name != "box":
                await app.destroy(Box, name)
    assert not any(is_damage for _, is_damage in check_store(path))
    return len(incomplete)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
