"""Queries that are followed at two nodes, while the thread moves and its owner is killed."""

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.nodes import open_cluster
from tests.integration.queries_app import Reading
from tests.integration.socket_client import TIMEOUT, websocket
from tests.postgres import Postgres

from plait_client import ClientError, Room, connect


async def add(room: Room[Any], item: str) -> None:
    """Add an item, again if the answer is lost."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            with suppress(ClientError):
                await room.call("add", item)
                return
            await asyncio.sleep(0.05)


async def ask(address: str, have: str, name: str) -> Any:
    """Follow the orders on a socket of its own, and return the first chunk."""
    async with (
        asyncio.timeout(TIMEOUT),
        await websocket(f"ws://{address}/threads/shop/{name}", subprotocols=["plait.v1"]) as socket,
    ):
        await socket.send(json.dumps({"type": "join", "client": "raw", "state": False}))
        await socket.send(json.dumps({"type": "call", "ref": 1, "method": "orders", "have": have}))
        while (frame := json.loads(await socket.recv()))["type"] != "result":
            pass
        return frame["value"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM], ids=["is-killed", "stops"])
async def test_a_reader_goes_on_at_another_node(postgres: Postgres, tmp_path: Path, by: signal.Signals) -> None:
    async with open_cluster(postgres, tmp_path, target="tests.integration.queries_app:app") as cluster:
        (name,) = cluster.find_names("a", "one", 1, kind="shop")
        a, b = (cluster.nodes[each] for each in "ab")
        at_a, at_b = (f"ws://{each.address}/threads/shop/{name}" for each in (a, b))
        async with connect(at_b) as room, connect(at_a) as other:
            reading, at_owner = Reading(room), Reading(other)
            assert await other.call("where") == a.pid
            await add(room, "tea")
            for each in (reading, at_owner):
                await each.until_items(["tea"], timeout=TIMEOUT)
            await asyncio.to_thread(a.end, by)
            await add(room, "milk")
            assert await room.call("where") == b.pid
            await reading.until_items([row["item"] for row in await anext(room.query("orders"))], timeout=TIMEOUT)
            # The node comes back, and so do the clients of its address.
            before = await ask(b.address, "", name)
            await cluster.start("a")
            await add(other, "salt")
            items = [row["item"] for row in await anext(other.query("orders"))]
            for each in (reading, at_owner):
                await each.until_items(items, timeout=TIMEOUT)
                await each.close()
                assert each.wrong == []
            after = await ask(b.address, "", name)
            assert before["tag"] != after["tag"]
            for node in (a, b):
                assert (await ask(node.address, after["tag"], name)).keys() == {"at", "tag"}
                assert (await ask(node.address, before["tag"], name))["rows"] == after["rows"]
