"""Queries of a server that is killed: results are of rows that are stored, and readers go on by themselves."""

import asyncio
import random
import signal
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.integration.queries_app import Reading
from tests.integration.socket_client import TIMEOUT
from tests.running import Process
from tests.schedules import SEED, schedules

from plait_client import ClientError, Room, connect

# A server is killed this often.
KILLS = 3


class Writer:
    """Adds rows to the shop one by one, until it is told to stop."""

    def __init__(self, room: Room[object], name: str) -> None:
        self.name = name
        self.sent: list[str] = []
        self.answered: list[str] = []
        self.is_stopped = False
        # Set at each answer.
        self.news = asyncio.Event()
        self._room = room

    async def run(self) -> None:
        while not self.is_stopped:
            self.sent.append(item := f"{self.name}{len(self.sent)}")
            try:
                await self._room.call("add", item)
            except ClientError:  # It may be stored.
                await asyncio.sleep(0)
                continue
            self.answered.append(item)
            self.news.set()

    async def until_answered(self, count: int) -> None:
        """Wait for some more answers."""
        most = len(self.answered) + count
        while len(self.answered) < most:
            self.news.clear()
            await self.news.wait()


async def soon(awaitable: Awaitable[object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        await awaitable


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(SEED, SEED + schedules(6)))
async def test_readers_of_a_killed_server_see_stored_rows_alone_and_then_all(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with Process("tests.integration.queries_app:app", cwd=tmp_path) as server:
        url = f"ws://{server.address}/threads/shop/one"
        async with connect(url) as first, connect(url) as second, connect(url) as third:
            reading, writers = Reading(third), [Writer(first, "a"), Writer(second, "b")]
            tasks = [asyncio.create_task(each.run()) for each in writers]
            for _ in range(KILLS):
                await soon(chance.choice(writers).until_answered(chance.randrange(1, 30)))
                await asyncio.to_thread(server.end, signal.SIGKILL)
                await asyncio.to_thread(server.start)
            for each in writers:
                await soon(each.until_answered(1))
                each.is_stopped = True
            await soon(asyncio.gather(*tasks))
            stored = [row["item"] for row in await anext(first.query("orders"))]
            await reading.until_items(stored, timeout=TIMEOUT)
            await reading.close()
            assert reading.wrong == []
            sent = {item for each in writers for item in each.sent}
            answered = {item for each in writers for item in each.answered}
            assert len(stored) == len(set(stored))
            assert answered | reading.seen <= set(stored) <= sent
            assert first.confirmed == {"n": len(stored)}
