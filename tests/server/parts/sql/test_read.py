"""Statements that are read in an OS thread."""

import asyncio
from typing import Any

import pytest
from tests.server.holding import MOST_HELD, measure_held
from tests.server.parts.sql.shop import FOREVER, Order, Shop, count, items, measure
from tests.server.parts.workshop import open_workshop, until

from plait import Sql, SqlError
from plait.parts.sql.reading import read_rows


async def test_a_statement_that_takes_long_is_read_in_an_os_thread(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        long = FOREVER.replace("from c)", "from c where x < 400000)")
        with pytest.raises(SqlError, match="interrupted"):
            shop.sql(long)
        assert await shop.sql.read(long) == [{"n": 400000 * 400001 // 2}]
        assert await shop.sql.read("select * from orders", into=Order) == [Order(1, "a")]
        with pytest.raises(SqlError, match="a statement that writes is not allowed"):
            await shop.sql.read("delete from orders")
        with pytest.raises(RuntimeError, match="before or after"), shop.transaction():
            await shop.sql.read("select 1 as a")


class Patient(Shop):
    """Has a short time for its reads."""

    sql = Sql(migrations=Shop.sql._tables.migrations, read_timeout=0.2)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_reads_without_end_of_one_thread_keep_no_other_from_reading(store: Any) -> None:
    async with open_workshop(store, Shop, Patient) as works:
        shop, other = await works.thread(Shop), await works.thread(Patient)
        endless = [asyncio.create_task(shop.sql.read(FOREVER)) for _ in range(4)]
        await until(lambda: shop.sql._files.readers._value < 4)
        assert await other.sql.read("select 1 as a") == [{"a": 1}]
        for task in endless:
            task.cancel()
        assert await asyncio.gather(*endless, return_exceptions=True) != []


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_read_without_end_is_interrupted_by_default(store: Any) -> None:
    async with open_workshop(store, Shop, Patient) as works:
        shop = await works.thread(Patient)
        with pytest.raises(SqlError) as caught:
            await shop.sql.read(FOREVER)
        assert "after 200 ms of processor time: `Sql(read_timeout=…)` allows more" in str(caught.value.detail)
        assert await shop.sql.read("select 1 as a") == [{"a": 1}]
    assert Sql()._tables.read_timeout == 10
    with pytest.raises(ValueError, match="read_timeout must be a positive number"):
        Sql(read_timeout=0)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_objects_are_made_of_many_rows_in_the_os_thread(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("select 1 as a")
        many = FOREVER.replace("from c)", "from c where x < 300000)").replace("sum(x) as n", "x as id, '' as item")
        assert len(await shop.sql.read(many, into=Order)) == 300_000
        assert await measure_held(lambda: shop.sql.read(many, into=Order), rounds=2) < MOST_HELD


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_file_that_is_not_open_is_read(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        file = shop.sql._file
        assert file is not None
        file.close()
        assert await read_rows(file.path, "select item from orders", ()) == [{"item": "a"}]
        await shop.sql("insert into orders (item) values ('b')")
        assert items(shop) == ["a", "b"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_reading_that_is_cancelled_ends(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        task = asyncio.create_task(shop.sql.read(FOREVER))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await shop.sql.read("select 1 as a") == [{"a": 1}]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_statements_go_on_beside_a_slow_reader_and_the_log_is_emptied_after_it(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        task = asyncio.create_task(shop.sql.read(f"select (select count(*) from orders) as n, ({FOREVER}) as m"))
        await until(lambda: shop.sql._files.readers._value < 4)
        await asyncio.sleep(0.05)
        file, size = shop.sql._file, 0
        assert file is not None
        for number in range(8):
            await shop.sql("insert into orders (item) values (?)", f"{number}" + "x" * 900_000)
            size = measure(f"{file.path}-wal")
        assert size > 5_000_000
        file.close()  # As if other files were opened.
        assert len(items(shop)) == 9
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await shop.sql("insert into orders (item) values ('last')")
        assert measure(f"{file.path}-wal") == 0
    async with open_workshop(store, Shop) as works:
        assert await count(works) == 10
