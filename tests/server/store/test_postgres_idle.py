"""Threads in PostgreSQL whose node was killed while they were awake: the next owner starts their idle clock."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fronts import OneOwner
from tests.postgres import Postgres, new_schema, private_folder
from tests.server.owning import owned
from tests.server.store.contract import OTHER, ROOM, beginning, put

from plait import Thread
from plait.cluster.owners import NodeId
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl
from plait.store.protocol import ThreadKey

SOON = 0.01


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with private_folder() as folder, Postgres(folder / "main") as server:
        yield server


def make_store(postgres: Postgres) -> PostgresStore:
    return PostgresStore(PostgresUrl.parse(new_schema(postgres.url)))


async def find_idle(store: PostgresStore, key: ThreadKey) -> int | None:
    found = await store.find(key)
    assert found is not None
    return found.idle_since


async def test_a_thread_that_wakes_meanwhile_is_not_idle(postgres: Postgres) -> None:
    store = make_store(postgres)
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER))

        def may_mark(key: ThreadKey) -> bool:
            if key == OTHER:  # Another node claims it, after it was read.
                schema = store.url.schema
                postgres.execute(f"UPDATE {schema}.plait_threads SET fence = fence + 1 WHERE name = '{key.name}'")
            return True

        await store.mark_idle(ROOM.kind, 100, may_mark)
        assert await find_idle(store, ROOM) == 100
        assert await find_idle(store, OTHER) is None


class Room(Thread[Any]):
    expires_after = 3600.0


class Gaining(OneOwner):
    """A node that owns some threads."""

    def __init__(self) -> None:
        super().__init__(0)
        self.mine: set[ThreadKey] = set()

    def find(self, key: ThreadKey) -> NodeId | None:
        return self.node if key in self.mine else None

    def check(self, key: ThreadKey) -> None:
        pass


async def test_a_node_starts_the_clock_of_threads_that_it_gains_and_that_are_asleep(postgres: Postgres) -> None:
    owners = Gaining()
    awake = ThreadKey("room", "awake")
    store = make_store(postgres)
    async with owned(store, ROOM, OTHER, awake):
        await put(store, beginning(), beginning(key=OTHER), beginning(key=awake))
    async with store, asyncio.timeout(20):
        node = Node([Room._kind], store, DEFAULT_LIMITS, owners=owners, expiry_interval=SOON)
        node.start()
        try:
            owners.mine = {awake}
            await node.actor(awake)
            owners.mine = {ROOM, awake}
            assert await find_idle(store, ROOM) is None
            node.gain()
            while await find_idle(store, ROOM) is None:  # noqa: ASYNC110
                await asyncio.sleep(SOON)
            assert await find_idle(store, OTHER) is None
            assert await find_idle(store, awake) is None
        finally:
            await node.stop(1.0)
        assert await find_idle(store, awake) is not None
