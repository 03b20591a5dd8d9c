"""Two stores of the same data: of two owners of a thread, only the later one writes, on each engine.

What is special to one is in `test_nats_owners.py` and so on.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.schedules import TIMES
from tests.server.store.contract import ROOM, beginning, change, client_row, outcomes
from tests.server.store.contract_records import delete, put_records
from tests.server.store.engines import Engine, Server, only
from tests.server.store.owners import check_fence_of_deleted, take_over_many
from tests.server.store.writing import begin

from plait.errors import Fenced
from plait.store.protocol import Store, ThreadKey
from plait.store.urls import open_store

log = logging.getLogger(__name__)


def make_stores(server: Server, count: int = 2) -> list[Store]:
    """Return stores of the same data."""
    url = server.make_store()
    return [open_store(url) for _ in range(count)]


@asynccontextmanager
async def no_deadlock(engine: Engine, server: Any) -> AsyncIterator[None]:
    """Check that there is no deadlock of a server that counts them."""
    before = server.execute(engine.deadlocks) if engine.deadlocks else ""
    yield
    assert not engine.deadlocks or server.execute(engine.deadlocks) == before


@pytest.mark.soak
async def test_takeovers_while_writes_are_under_way_lose_and_repeat_nothing(engine: Engine, server: Server) -> None:
    stores = make_stores(server)
    async with no_deadlock(engine, server), stores[0], stores[1]:
        refused = await take_over_many(stores, 1000 * TIMES)
    log.warning("%d takeovers, %d writes refused", 1000 * TIMES, refused)
    assert refused > 200


async def test_two_stores_that_both_write_the_same_threads_at_once_do_not_hang(engine: Engine, server: Server) -> None:
    first, second = make_stores(server)
    keys = [ThreadKey("room", str(number)) for number in range(40)]
    async with no_deadlock(engine, server), first, second:
        fences = await begin(first, *keys)
        for round in range(1, 20):
            owners = dict(zip(keys, await asyncio.gather(*map(second.claim, keys)), strict=True))
            # In another order, some as plain changes and some not.
            stale = [
                first.submit(msgspec.structs.replace(change(round, key=key), fence=fences[key]))
                for key in reversed(keys)
            ]
            snapshot = b"1" if round % 2 else None
            fresh = [
                second.submit(msgspec.structs.replace(change(round, key=key, snapshot=snapshot), fence=owners[key]))
                for key in keys
            ]
            assert await outcomes(stale) == [Fenced] * len(keys)
            assert await outcomes(fresh) == [None] * len(keys)


async def test_a_thread_that_was_deleted_keeps_its_fence_and_one_without_an_owner_takes_no_room(
    engine: Engine, server: Server
) -> None:
    first, second = make_stores(server)
    async with first, second:
        third = await check_fence_of_deleted(first, second)
    async with first:
        assert await engine.count_heads(server, first) == 0
        assert await first.claim(ROOM) > third
        assert await engine.count_heads(server, first) == 1


@only("postgres", "mysql", "redis")
async def test_the_rows_of_deleted_threads_are_removed_in_steps_by_any_of_the_stores(
    engine: Engine, server: Server
) -> None:
    first, second = make_stores(server)
    async with first:
        keys = [ThreadKey("room", str(number)) for number in range(130)]
        fences = dict(zip(keys, await asyncio.gather(*map(first.claim, keys)), strict=True))
        for key in keys:
            first.submit(msgspec.structs.replace(beginning(key=key), fence=fences[key]))
        rows = [put_records(*((str(n), b"x") for n in range(2500)), key=keys[0])]
        rows += [change(version, key=keys[1], client=client_row()) for version in range(1, 30)]
        await asyncio.gather(*(first.submit(msgspec.structs.replace(row, fence=fences[row.key])) for row in rows))
        assert await engine.count_rows(server, first) > 0
        async with second:
            gone = [delete(29 if key == keys[1] else 0, key=key) for key in keys]
            await asyncio.gather(
                *(first.submit(msgspec.structs.replace(each, fence=fences[each.key])) for each in gone)
            )
            assert await first.threads() == []
        async with asyncio.timeout(60):
            while await engine.count_rows(server, first):
                await first.threads()


async def test_stores_that_are_opened_at_once_make_their_tables_once(server: Server) -> None:
    stores = make_stores(server, 5)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(store) for store in stores))
        assert len({await store.claim(ROOM) for store in stores}) == 5
