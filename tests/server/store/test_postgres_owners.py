"""Two stores in one PostgreSQL database: of two owners of a thread, only the later one writes."""

import asyncio
import logging
from contextlib import AsyncExitStack

import msgspec
import pytest
from tests.postgres import Postgres, new_schema
from tests.schedules import TIMES
from tests.server.store.contract import ROOM, beginning, change, client_row, outcomes
from tests.server.store.contract_records import delete, put_records
from tests.server.store.owners import check_fence_of_deleted, found, take_over_many

from plait.errors import Fenced
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl
from plait.store.protocol import ThreadKey

log = logging.getLogger(__name__)


def make_stores(postgres: Postgres, count: int = 2, options: str = "") -> list[PostgresStore]:
    """Return stores in the same tables."""
    url = PostgresUrl.parse(new_schema(postgres.url, options))
    return [PostgresStore(url) for _ in range(count)]


@pytest.mark.soak
async def test_takeovers_while_writes_are_under_way_lose_and_repeat_nothing(postgres: Postgres) -> None:
    stores = make_stores(postgres)
    async with stores[0], stores[1]:
        refused = await take_over_many(stores, 1000 * TIMES)
    log.warning("%d takeovers, %d writes refused", 1000 * TIMES, refused)
    assert refused > 200


async def test_two_stores_that_both_write_the_same_threads_at_once_do_not_hang(postgres: Postgres) -> None:
    first, second = make_stores(postgres)
    keys = [ThreadKey("room", str(number)) for number in range(40)]
    async with first, second:
        fences = {}
        for key in keys:
            fences[key] = await first.claim(key)
            await first.submit(msgspec.structs.replace(beginning(key=key), fence=fences[key]))
        for round in range(1, 20):
            owners = {key: await second.claim(key) for key in keys}
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
    assert postgres.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") == "0"


async def test_a_thread_that_was_deleted_keeps_its_fence_and_one_that_nobody_owns_takes_no_room(
    postgres: Postgres,
) -> None:
    first, second = make_stores(postgres)
    async with first, second:
        third = await check_fence_of_deleted(first, second)
    table = f"{first.url.schema}.plait_threads"
    assert postgres.execute(f"SELECT count(*) FROM {table}") == "0"
    async with first:
        assert await first.claim(ROOM) > third


async def test_the_rows_of_deleted_threads_are_removed_in_steps_by_any_of_the_stores(postgres: Postgres) -> None:
    first, second = make_stores(postgres)
    async with first:
        keys = [ThreadKey("room", str(number)) for number in range(130)]
        fences = {key: await first.claim(key) for key in keys}
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
        schema = first.url.schema
        tables = ("removed", "changes", "snapshots", "clients", "records")
        counts = " UNION ALL ".join(f"SELECT count(*) FROM {schema}.plait_{table}" for table in tables)
        async with asyncio.timeout(30):
            while postgres.execute(f"SELECT sum(count) FROM ({counts}) c") != "0":
                await first.threads()


async def test_stores_that_are_opened_at_once_make_the_tables_once(postgres: Postgres) -> None:
    stores = make_stores(postgres, 5)
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(store) for store in stores))
        assert len({await store.claim(ROOM) for store in stores}) == 5


async def test_behind_a_pooler_no_statement_is_prepared_and_each_write_says_how_durable_it_is(
    postgres: Postgres,
) -> None:
    (store,) = make_stores(postgres, 1, "&statement_cache_size=0&synchronous_commit=off")
    async with store:
        fence = await store.claim(ROOM)
        for write in (beginning(), change(1), change(2, client=client_row()), put_records(("a", b"1"), after=2)):
            await store.submit(msgspec.structs.replace(write, fence=fence))
        assert await found(store, ROOM) == (2, {"a"})
        assert (await store.load(ROOM)) is not None
        async with store._writer.use() as db:
            assert await db.fetch("SELECT name FROM pg_prepared_statements") == []
