"""A server on Redis whose primary Sentinels replace, while it goes on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.redis import Redis
from tests.sentinels import Sentinels
from tests.server.store.writing import until

from plait import Plait, Thread
from plait.errors import PlaitError

NAMES = ("a", "b", "c", "d")


class Log(Thread[Any]):
    initial_state = ()


class Writing:
    """Appends numbers to threads, and records which of them were acknowledged, and after how many log lines."""

    def __init__(self, app: Plait, caplog: pytest.LogCaptureFixture) -> None:
        self._app = app
        self._caplog = caplog
        self._numbers = count()
        self.acknowledged: dict[int, bool] = {}

    @property
    def has_seen(self) -> bool:
        """Whether a beat has seen the failover."""
        return "the Sentinels name another primary" in self._caplog.text

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Write during the block."""
        tasks = [asyncio.create_task(self._write(name)) for name in NAMES]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _write(self, name: str) -> None:
        for number in self._numbers:
            try:
                await self._app.thread(Log, name).set_state(lambda state, number=number: [*state, number])
            except PlaitError:
                await asyncio.sleep(0.01)
            else:
                self.acknowledged[number] = self.has_seen
                await asyncio.sleep(0.005)

    async def find_lost(self) -> list[int]:
        """Return the acknowledged numbers that no thread has."""
        states = [await self._app.thread(Log, name).state() for name in NAMES]
        return sorted(self.acknowledged.keys() - {number for state in states for number in state})


async def pause_long(servers: Sentinels) -> None:
    """Suspend the primary until the Sentinels have replaced it."""
    servers.primary.pause()
    try:
        await until(lambda: servers.find_primary() == servers.replica.port)
    finally:
        servers.primary.resume()


async def plan(servers: Sentinels) -> None:
    servers.fail_over()


@pytest.mark.parametrize(
    ("make", "change"),
    [
        pytest.param(Redis, plan, id="planned, Redis", marks=pytest.mark.release),
        pytest.param(Redis.valkey, pause_long, id="paused, Valkey"),
    ],
)
async def test_what_is_acknowledged_after_the_beat_that_saw_a_failover_is_never_lost(
    tmp_path: Path,
    make: Callable[[Path], Redis],
    change: Callable[[Sentinels], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with Sentinels.run(tmp_path, make) as servers:
        async with Plait(Log, store=servers.url) as app:
            writing = Writing(app, caplog)
            async with writing.run():
                await until(lambda: len(writing.acknowledged) >= 50)
                await change(servers)
                await until(lambda: writing.has_seen)
                await until(lambda: sum(writing.acknowledged.values()) >= 50)
                # Then the former primary has become a replica of the other, and has nothing of its own.
                await until(lambda: servers.primary.execute("INFO", "replication")["role"] == "slave")
            lost = await writing.find_lost()
            assert [number for number in lost if writing.acknowledged[number]] == []
