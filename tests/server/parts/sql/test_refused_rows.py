"""Rows whose write was refused."""

import asyncio
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.server.parts.sql.shop import FOREVER, KEY, Shop, count, items, listed, measure, unlink
from tests.server.parts.workshop import open_workshop, until

from plait import StoreError
from plait.store.protocol import Write


async def test_a_refused_write_takes_its_rows_along_and_the_thread_goes_on(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        for number in range(3):

            def refuse(write: Write) -> bool:
                return write.key == KEY

            store.refuses = refuse
            with shop.transaction():
                shop.set_state(99)
                lost = shop.sql("insert into orders (item) values ('lost')")
                shop.values.set("a", 99)
            assert [*items(shop), shop.state] == [*items(shop)[:-1], "lost", 99]
            later = shop.sql("insert into orders (item) values ('later')")
            seen = shop.sql("select item from orders")
            for each in (later, seen):
                with pytest.raises(StoreError):
                    await each
            assert lost.value == []
            store.refuses = lambda _: False
            assert shop.state == number
            assert await count(works) == number + 1
            await works.handle(Shop).order(f"{number}")
        assert items(shop) == ["a", "0", "1", "2"]
        assert (shop.state, await shop.values.has("a")) == (3, False)
    async with open_workshop(store, Shop) as works:
        assert items(await works.thread(Shop)) == ["a", "0", "1", "2"]


@pytest.mark.parametrize("is_in_block", [False, True])
async def test_the_first_write_of_a_thread_can_be_refused(store: Any, *, is_in_block: bool) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        store.refuses = lambda _: True
        with pytest.raises(StoreError):  # noqa: PT012
            if is_in_block:
                async with shop.transaction():
                    shop.sql("insert into orders (item) values ('lost')")
            else:
                await shop.sql("insert into orders (item) values ('lost')")
        store.refuses = lambda _: False
        assert await count(works) == 0
        await works.handle(Shop).order("a")
    async with open_workshop(store, Shop) as works:
        assert items(await works.thread(Shop)) == ["a"]


async def test_a_select_during_a_refused_write_says_so(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        store.refuses = lambda _: True
        slow = FOREVER.replace("from c)", "from c where x < 300000)")
        reading = asyncio.create_task(shop.sql.read(slow))
        await until(lambda: shop.sql._files.readers._value < 4)
        lost = shop.sql("insert into orders (item) values ('lost')")
        with pytest.raises(StoreError):
            await lost
        with pytest.raises(StoreError, match="read again"):
            shop.sql("select * from orders")
        with pytest.raises(StoreError, match="were read before"):
            await reading
        store.refuses = lambda _: False
        assert await shop.sql.read("select item from orders") == [{"item": "a"}]
        assert items(shop) == ["a"]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("is_in_block", [False, True])
async def test_a_log_that_cannot_be_read_takes_the_write_back(store: Any, *, is_in_block: bool) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        file = shop.sql._file
        assert file is not None
        unlink(f"{file.path}-wal")

        def write() -> None:
            with shop.transaction():
                shop.set_state(7)
                shop.sql("insert into orders (item) values ('lost')")

        with pytest.raises(StoreError, match="local file"):  # noqa: PT012
            if is_in_block:
                write()
            else:
                shop.sql("insert into orders (item) values ('lost')")
        assert await count(works) == 1
        assert (shop.state, items(shop)) == (0, ["a"])
        await works.handle(Shop).order("b")
    async with open_workshop(store, Shop) as works:
        assert items(await works.thread(Shop)) == ["a", "b"]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_file_that_cannot_grow_loses_no_page_of_what_was_committed(store: Any) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        try:
            for number in range(11):  # The log is copied to the file when it has 4 MiB.
                if number == 8:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (6 * 1024 * 1024, most))
                await shop.sql("insert into orders (item) values (?)", f"{number}" + "x" * 450_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
        file = shop.sql._file
        assert file is not None
        assert measure(f"{file.path}-wal") > 4 * 1024 * 1024
        await shop.sql("insert into orders (item) values ('last')")
        assert measure(f"{file.path}-wal") == 0
    async with open_workshop(store, Shop) as works:
        assert await count(works) == 12


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_local_file_that_something_has_removed_is_made_again(store: Any, *, is_open: bool) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        file = shop.sql._file
        assert file is not None
        if not is_open:
            file.close()
        unlink(file.path)
        with pytest.raises(StoreError, match="cannot be"):
            await (shop.sql.read("select 1 as a") if is_open else shop.sql("create table if not exists b (c)"))
        assert await count(works) == 1
        await works.handle(Shop).order("b")
    async with open_workshop(store, Shop) as works:
        assert items(await works.thread(Shop)) == ["a", "b"]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_folder_of_local_files_that_something_has_removed_is_made_again(store: Any, folder: Path) -> None:
    async with open_workshop(store, Shop) as works:
        written, unwritten = await works.thread(Shop, "written"), await works.thread(Shop, "unwritten")
        await written.sql("insert into orders (item) values ('a')")
        (made,) = listed(folder)
        shutil.rmtree(made)
        for shop, error in ((written, "cannot be read"), (unwritten, "cannot be written")):
            with pytest.raises(StoreError, match=error):
                await shop.sql("insert into orders (item) values ('lost')")
        assert [await count(works, name) for name in ("written", "unwritten", "another")] == [1, 0, 0]
        for name in ("written", "unwritten", "another"):
            await works.handle(Shop, name).order("b")
    assert listed(folder) == []


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_tables_that_cannot_be_read_again_are_read_at_the_next_statement(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        read, failures = store.records, [1, 2]

        async def fail(*args: Any) -> Any:
            if failures:
                failures.pop()
                raise StoreError("the store is away")
            return await read(*args)

        monkeypatch.setattr(store, "records", fail)
        store.refuses = lambda _: True
        with pytest.raises(StoreError):
            await shop.sql("insert into orders (item) values ('lost')")
        store.refuses = lambda _: False
        await until(lambda: len(failures) == 1 and shop.sql._reading is None)
        with pytest.raises(StoreError, match="read again"):
            shop.sql("select * from orders")
        await until(lambda: not failures and shop.sql._reading is None)
        assert await count(works) == 1
        assert items(shop) == ["a"]
