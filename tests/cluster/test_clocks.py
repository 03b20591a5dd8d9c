"""Nodes whose clocks differ, and an engine whose clock does."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cluster.proxy import Direction, Proxy
from tests.failover import failover
from tests.schedules import in_soak
from tests.server.store.engines import ENGINES
from tests.server.store.writing import until

from plait import Plait, Schedule, Thread, effect, rpc
from plait.clock import CLOCK, read_due_clock, read_wall_clock

MINUTE = 60_000_000
# Seconds until an effect is due: less than clocks differ.
DELAY = 2.0
_TIME = re.compile(rb"^\*2\r\n\$10\r\n(\d{10})\r\n")


class Bell(Thread[Any]):
    initial_state = 0
    schedule = Schedule()

    @rpc
    async def plan(self) -> None:
        await self.schedule.after(DELAY, "ring")

    @effect
    def ring(self) -> None:
        self.set_state(1)


@contextmanager
def clock_ahead(seconds: float) -> Iterator[None]:
    """Set the wall clock of this process."""
    CLOCK.use(lambda: time.time_ns() + round(seconds * 1e9))
    try:
        yield
    finally:
        CLOCK.use()


class AheadProxy(Proxy):
    """Passes Redis's time on as if its clock were ahead."""

    seconds = 0

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        write = writer.write
        writer.write = lambda data: write(_TIME.sub(self._shift, bytes(data)))  # type: ignore[method-assign]
        await super()._pass(reader, writer, direction)

    def _shift(self, found: re.Match[bytes]) -> bytes:
        return b"*2\r\n$10\r\n%d\r\n" % (int(found[1]) + self.seconds)


async def until_rung(app: Plait) -> float:
    """Return when the effect has run, by the clock of the loop. It is late long before clocks have passed a minute."""
    async with asyncio.timeout(30):
        while await app.thread(Bell, "one").state() != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return asyncio.get_running_loop().time()


# Most faults of engines were found with NATS.
@pytest.mark.parametrize("name", ["nats", *in_soak(*([name] for name in ENGINES if name != "nats"))])
async def test_a_takeover_by_a_node_whose_clock_differs_by_minutes_runs_nothing_early_or_late(
    name: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(ENGINES[name].fixture).make_store()
    for before, after in ((-60.0, 60.0), (60.0, -60.0)):
        with clock_ahead(before):
            async with Plait(Bell, store=url) as app:
                await app.thread(Bell, "one").set_state(0)
                planned = asyncio.get_running_loop().time()
                await app.thread(Bell, "one").call(Bell.plan)
        with clock_ahead(after):
            async with Plait(Bell, store=url) as app:
                assert await until_rung(app) - planned >= DELAY


async def test_a_failover_to_an_engine_whose_clock_is_a_minute_behind_sets_nothing_back() -> None:
    async with failover("redis") as servers, AheadProxy(servers.primary.port) as proxy:
        proxy.seconds = 60
        url = servers.url.replace(re.findall(r":(\d+)/", servers.url)[0], str(proxy.port))
        async with Plait(Bell, store=url) as app:
            assert abs(read_due_clock() - read_wall_clock() - MINUTE) < MINUTE / 10
            planned = asyncio.get_running_loop().time()
            await app.thread(Bell, "one").call(Bell.plan)
            servers.wait()
            before = read_due_clock()
            await asyncio.to_thread(servers.promote)
            proxy.target, proxy.seconds = servers.replica.port, 0
            assert await until_rung(app) - planned >= DELAY
            assert before + DELAY / 2 * 1e6 < read_due_clock() < before + MINUTE
            await until(lambda: read_due_clock() > before + 4_000_000)
