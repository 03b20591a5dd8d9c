"""A node whose app has not started yet answers no other node."""

import asyncio
from typing import Any

import pytest
from tests.ports import hold_port
from tests.postgres import Postgres, new_schema

from plait import Plait, Thread, rpc
from plait.store.thread_rows import ThreadKey


def make_node(monkeypatch: pytest.MonkeyPatch, name: str, store: str) -> tuple[Plait, asyncio.Event, asyncio.Event]:
    """Return a node, what its start waits for, and what it has then done."""
    may_start, has_started = asyncio.Event(), asyncio.Event()

    class Room(Thread[Any]):
        kind = "room"

        @rpc
        def look(self) -> list[Any]:
            """Return the name of the node that has it awake, and whether its app has started."""
            return [name, has_started.is_set()]

    with hold_port() as held:
        port = held.getsockname()[1]
    for variable, value in (("CLUSTER", "1"), ("NODE", name), ("LISTEN_NODES", f"127.0.0.1:{port}")):
        monkeypatch.setenv(f"PLAIT_{variable}", value)
    app = Plait(Room, store=store)

    @app.on_startup
    async def start() -> None:
        await may_start.wait()
        # More than a beat of the node, a look of another one, and the hand-over of some shards.
        await asyncio.sleep(3)
        has_started.set()

    return app, may_start, has_started


async def test_a_node_whose_app_has_not_started_serves_no_thread(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_schema(postgres.url)
    a, a_may_start, _ = make_node(monkeypatch, "a", store)
    b, b_may_start, b_has_started = make_node(monkeypatch, "b", store)
    a_may_start.set()
    async with a, asyncio.timeout(60):
        starting = asyncio.create_task(b.__aenter__())
        b_may_start.set()
        looks: list[list[Any]] = []
        number = 0
        try:
            while not b_has_started.is_set() or not any(name == "b" for name, _ in looks):
                number += 1
                key = ThreadKey("room", str(number))
                if a._owners.find(key) != a._owners.node or not number % 50:
                    looks.append(await a.thread(a._node.kinds["room"].cls, key.name).call("look"))
                assert all(is_ready for _, is_ready in looks)
                await asyncio.sleep(0.001)
        finally:
            await starting
            await b.__aexit__(None, None, None)
