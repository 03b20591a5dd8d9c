"""The TypeScript client in Node with many threads on one socket, and a server that is killed and started again."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.builds import CLIENT, Builds
from tests.integration.convergence_node import Driver, bundle_client, driving
from tests.running import Process

FOLDER = Path(__file__).parent / "channels_client"
APP = "tests.integration.channels_app:app"
NAMES = [f"card-{n}" for n in range(100)]


@asynccontextmanager
async def page(builds: Builds, address: str) -> AsyncIterator[Driver]:
    """Run the page of a server."""
    bundle, ws = bundle_client(builds), CLIENT / "node_modules" / "ws" / "wrapper.mjs"
    options = {"bundle": bundle.as_uri(), "ws": ws.as_uri(), "address": address}
    async with driving(str(FOLDER / "page.js"), options) as driver:
        yield driver


@pytest.fixture
def server(tmp_path: Path) -> Process:
    return Process(APP, cwd=tmp_path, environment={"PLAIT_STORE": "sqlite:///pages.db"})


async def test_a_page_of_a_hundred_threads_has_one_socket(builds: Builds, server: Process) -> None:
    with server:
        async with page(builds, server.address) as driver:
            assert await driver.tell("join", names=NAMES) == 1
            assert await driver.tell("call", names=NAMES, method="add", args=[2]) == [2] * 100
            assert await driver.tell("put", names=NAMES[:50], path="/n", value=7) == 1
            states = await driver.tell("states", names=NAMES)
            assert states == [{"n": 7}] * 50 + [{"n": 2}] * 50
            await driver.tell("close", names=NAMES)
            # A carrier without channels is closed.
            assert await driver.tell("ended") == 1


async def test_pushes_on_channels_outlive_a_server_that_is_killed(builds: Builds, server: Process) -> None:
    with server:
        async with page(builds, server.address) as driver:
            assert await driver.tell("join", names=NAMES) == 1
            for value in range(3):
                await asyncio.to_thread(server.end, signal.SIGKILL)
                # No server listens while they are made.
                putting = asyncio.create_task(driver.tell("put", names=NAMES, path="/n", value=value))
                await asyncio.to_thread(server.start)
                await putting
                assert await driver.tell("states", names=NAMES) == [{"n": value}] * 100
            versions = await driver.tell("call", names=NAMES, method="count", args=[])
            # Each change is stored once.
            assert versions == [3] * 100
            # Each loss of a carrier is followed by a few attempts at one, and not by one of each thread.
            assert await driver.tell("sockets") < 100


async def test_a_server_that_stops_closes_the_page_in_order(builds: Builds, server: Process) -> None:
    with server:
        async with page(builds, server.address) as driver:
            await driver.tell("join", names=NAMES[:10])
            assert await asyncio.to_thread(server.end) == 0
            await asyncio.to_thread(server.start)
            await driver.tell("put", names=NAMES[:10], path="/n", value=1)
            assert await driver.tell("states", names=NAMES[:10]) == [{"n": 1}] * 10
