"""The view of clients while the shard of their thread moves to another node."""

import asyncio
from typing import Any

from tests.integration.native_client import joined
from tests.integration.socket_client import TIMEOUT
from tests.running import running

from plait import Plait, Thread, rpc
from plait.store.shards import SHARDS


class Worker(Thread[Any]):
    """Works until it is told to end."""

    may_end: asyncio.Event
    is_begun: asyncio.Event
    looks = 0

    @rpc
    async def work(self) -> str:
        self.is_begun.set()
        await self.may_end.wait()
        return "done"

    @rpc
    def look(self) -> int:
        Worker.looks += 1
        return Worker.looks


async def test_a_move_answers_the_calls_that_were_read_and_runs_none_that_comes_later() -> None:
    Worker.may_end, Worker.is_begun, Worker.looks = asyncio.Event(), asyncio.Event(), 0
    app = Plait(Worker, store="memory://")
    async with (
        running(app) as address,
        asyncio.timeout(TIMEOUT),
        joined(address, "/threads/worker/one", "Ada") as client,
    ):
        await client.send("call", ref=1, method="work")
        await Worker.is_begun.wait()
        moving = asyncio.create_task(app._node.moving.vacate(range(SHARDS), TIMEOUT))
        await asyncio.sleep(0)  # It begins to read nothing more.
        await asyncio.sleep(0)
        await client.send("call", ref=2, method="look")
        Worker.may_end.set()
        assert await client.until_closed() == 1001
        await moving
        assert [(each["ref"], each["value"]) for each in client.of(("result", "error"))] == [(1, "done")]
        await client.join()
        assert await client.call("look") == 1
