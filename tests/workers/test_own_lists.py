"""The list of a user's own conversations, which are at several workers."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from tests.integration.socket_client import TIMEOUT, http
from tests.workers.group import Group

from plait import ThreadKey
from plait.store.shards import find_file
from plait_client import connect

__all__ = ["check_list"]

ADA = {"authorization": "Bearer ada"}
# One conversation of each worker.
NAMES = [next(name for name in map(str, range(99)) if find_file(ThreadKey("chat", name), 2) == n) for n in range(2)]


async def check_list(reader: str, writer: str, names: Sequence[str]) -> None:
    """Follow the list of a user at one address, while the user writes and reads at another one."""
    headers = {**ADA, "accept": "text/event-stream"}
    async with http(reader) as client, client.stream("GET", "/threads/chat?mine", headers=headers) as answer:
        lines = answer.aiter_lines()

        async def until(unread: dict[str, int]) -> None:
            """Read pages until one has these unread messages."""
            async with asyncio.timeout(TIMEOUT):
                async for line in lines:
                    rows = json.loads(line.removeprefix("data: "))["threads"] if line.startswith("data: ") else []
                    if {row["name"]: row["unread"] for row in rows} == unread:
                        return

        for name in names:
            async with connect(f"ws://{writer}/threads/chat/{name}", token="ada") as room:
                await room.messages.send("hi")
        await until(dict.fromkeys(names, 1))
        async with connect(f"ws://{writer}/threads/chat/{names[0]}", token="ada") as room:
            await room.messages.mark_read()
        await until(dict.fromkeys(names, 1) | {names[0]: 0})


async def test_a_list_of_own_threads_has_those_of_all_workers_and_follows_them(tmp_path: Path) -> None:
    with Group("tests.integration.unread_app:app", cwd=tmp_path) as group:
        await check_list(group.address, group.address, NAMES)
