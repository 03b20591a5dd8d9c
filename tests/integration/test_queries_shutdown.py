"""A server with readers of queries that is told to stop: a reader is no turn, so nothing waits for it."""

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.integration.queries_app import Reading
from tests.integration.socket_client import TIMEOUT
from tests.running import Process

from plait_client import connect

# Seconds: a server that waited for its readers would wait for longer than the test.
LONG = {"PLAIT_SHUTDOWN_TIMEOUT": "600"}


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_does_not_wait_for_readers_of_queries(tmp_path: Path, by: signal.Signals) -> None:
    with Process("tests.integration.queries_app:app", cwd=tmp_path, environment=LONG) as server:
        async with AsyncExitStack() as stack:
            rooms = [
                await stack.enter_async_context(connect(f"ws://{server.address}/threads/shop/{number % 5}"))
                for number in range(25)
            ]
            # Each follows two queries.
            readings = [Reading(room) for room in rooms]
            for number in range(5):
                await rooms[number].call("add", "tea")
            for each in readings:
                await each.until_items(["tea"], timeout=TIMEOUT)
            assert await asyncio.to_thread(server.end, by, timeout=TIMEOUT) == 0
            assert "Traceback" not in server.log.read_text()
            await asyncio.to_thread(server.start)
            for number in range(5):
                await rooms[number].call("add", "milk")
            for each in readings:
                await each.until_items(["tea", "milk"], timeout=TIMEOUT)
                await each.close()
                assert each.wrong == []
