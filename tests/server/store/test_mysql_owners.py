"""Two stores in one MariaDB database: of two owners of a thread, only the later one writes."""

import asyncio
import logging
from contextlib import AsyncExitStack

import msgspec
import pytest
from tests.mariadb import Mariadb, new_prefix
from tests.schedules import TIMES
from tests.server.store.contract import ROOM, beginning, change, client_row, outcomes
from tests.server.store.contract_records import delete, put_records
from tests.server.store.owners import check_fence_of_deleted, take_over_many

from plait.errors import Fenced
from plait.store.mysql.store import MysqlStore
from plait.store.mysql.url import MysqlUrl
from plait.store.protocol import ThreadKey

log = logging.getLogger(__name__)


def make_stores(mariadb: Mariadb, count: int = 2) -> list[MysqlStore]:
    """Return stores in the same tables."""
    url = MysqlUrl.parse(new_prefix(mariadb.url))
    return [MysqlStore(url) for _ in range(count)]


@pytest.mark.soak
async def test_takeovers_while_writes_are_under_way_lose_and_repeat_nothing(mariadb: Mariadb) -> None:
    stores = make_stores(mariadb)
    async with stores[0], stores[1]:
        refused = await take_over_many(stores, 1000 * TIMES)
    log.warning("%d takeovers, %d writes refused", 1000 * TIMES, refused)
    assert refused > 200


async def test_two_stores_that_both_write_the_same_threads_at_once_do_not_hang(mariadb: Mariadb) -> None:
    first, second = make_stores(mariadb)
    keys = [ThreadKey("room", str(number)) for number in range(40)]
    async with first, second:
        fences = {}
        for key in keys:
            fences[key] = await first.claim(key)
            await first.submit(msgspec.structs.replace(beginning(key=key), fence=fences[key]))
        for round in range(1, 10):
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


async def test_a_thread_that_was_deleted_keeps_its_fence_and_one_that_nobody_owns_takes_no_room(
    mariadb: Mariadb,
) -> None:
    first, second = make_stores(mariadb)
    async with first, second:
        third = await check_fence_of_deleted(first, second)
    assert mariadb.execute(f"SELECT count(*) FROM plait.{first.url.prefix}threads") == "0"
    async with first:
        assert await first.claim(ROOM) > third


async def test_the_rows_of_deleted_threads_are_removed_in_steps_by_any_of_the_stores(mariadb: Mariadb) -> None:
    first, second = make_stores(mariadb)
    async with first:
        keys = [ThreadKey("room", str(number)) for number in range(130)]
        fences = dict(zip(keys, await asyncio.gather(*map(first.claim, keys)), strict=True))
        for key in keys:
            first.submit(msgspec.structs.replace(beginning(key=key), fence=fences[key]))
        rows = [put_records(*((str(n), b"x") for n in range(2500)), key=keys[0])]
        rows += [change(version, key=keys[1], client=client_row()) for version in range(1, 30)]
        await asyncio.gather(*(first.submit(msgspec.structs.replace(row, fence=fences[row.key])) for row in rows))
        async with second:
            gone = [delete(29 if key == keys[1] else 0, key=key) for key in keys]
            await asyncio.gather(
                *(first.submit(msgspec.structs.replace(each, fence=fences[each.key])) for each in gone)
            )
            assert await first.threads() == []
        tables = ("removed", "changes", "snapshots", "clients", "records")
        counts = "+".join(f"(SELECT count(*) FROM plait.{first.url.prefix}{table})" for table in tables)
        async with asyncio.timeout(30):
            while mariadb.execute(f"SELECT {counts}") != "0":
                await first.threads()


async def test_stores_that_are_opened_at_once_make_the_tables_once(mariadb: Mariadb) -> None:
    stores = make_stores(mariadb, 5)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(store) for store in stores))
        assert len({await store.claim(ROOM) for store in stores}) == 5
