"""Statements that are read in an OS thread."""

import asyncio
from typing import Any

import pytest
from tests.server.parts.sql.shop import FOREVER, Order, Shop, count, items, measure
from tests.server.parts.workshop import open_workshop, until

from plait import SqlError
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
