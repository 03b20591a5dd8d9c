"""Queries that are followed at all workers, while workers are killed and replaced."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.integration.queries_app import Reading
from tests.integration.socket_client import TIMEOUT
from tests.workers.group import Group
from tests.workers.test_kills import MOST_SOCKETS, find_ports

from plait_client import ClientError, Room, connect


async def add(room: Room[object], item: str) -> list[str]:
    """Add an item, again if the answer is lost, and return all items."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                await room.call("add", item)
                return [row["item"] for row in await anext(room.query("orders"))]
            except ClientError:
                await asyncio.sleep(0.05)


@pytest.mark.timeout(180)
async def test_readers_at_two_workers_go_on_after_kills_and_a_reload(tmp_path: Path) -> None:
    with Group("tests.integration.queries_app:app", cwd=tmp_path) as group:
        url = f"ws://{group.address}/threads/shop/one"
        async with AsyncExitStack() as stack:
            rooms: list[Room[object]] = []
            while not all(find_ports(each) for each in group.processes().values()) or len(rooms) < 4:
                assert len(rooms) < MOST_SOCKETS
                rooms.append(await stack.enter_async_context(connect(url)))
            readings = [Reading(room) for room in rooms]
            for fault in ("owner", "gateway", "reload"):
                items = await add(rooms[0], fault)
                for each in readings:
                    await each.until_items(items, timeout=TIMEOUT)
                owner = await rooms[0].call("where")
                if fault == "reload":
                    group.signal(signal.SIGHUP)
                    await asyncio.to_thread(group.until, lambda: group.count_lines("all workers are replaced"))
                else:
                    found = next(
                        n for n, each in group.processes().items() if (each.pid == owner) == (fault == "owner")
                    )
                    starts = group.starts(found)
                    os.kill(group.processes()[found].pid, signal.SIGKILL)
                    await asyncio.to_thread(group.until, lambda: group.starts(found) > starts)  # noqa: B023
            items = await add(rooms[-1], "last")
            for each in readings:
                await each.until_items(items, timeout=TIMEOUT)
                await each.close()
                assert each.wrong == []
                assert each.seen == {"owner", "gateway", "reload", "last"}
        assert group.end() == 0
    assert "Traceback" not in group.log.read_text()
