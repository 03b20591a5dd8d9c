"""Tables of a thread: rows, restarts, and how large they may be."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.server.parts.sql.shop import KEY, PAGES, Order, Shop, count, items, listed
from tests.server.parts.workshop import open_workshop, until

from plait import Destroyed, Limits, Plait, Sql, SqlError, Thread, Unavailable
from plait.parts.sql.local_files import LocalFiles


async def test_rows_are_dicts_or_the_struct_that_is_asked_for(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        added = await shop.sql("insert into orders (item, is_paid) values (?, ?) returning *", "tea", True)
        assert added == [{"id": 1, "item": "tea", "is_paid": 1}]
        assert await shop.sql("select * from orders where id = ?", 1, into=Order) == [Order(1, "tea", True)]
        assert await shop.sql("select * from orders where id = ?", 2, into=Order) == []
        assert await shop.sql("insert into orders (item) values ('rice')") == []
        values = (None, 7, 0.5, "ü", b"\x00\xff")
        assert await shop.sql("select ? as a, ? as b, ? as c, ? as d, ? as e", *values) == [
            dict(zip("abcde", values, strict=True))
        ]


@dataclass
class Plain:
    """A row as a dataclass."""

    id: int
    item: str


class Model(BaseModel):
    """A row as a model of Pydantic's."""

    id: int
    is_paid: bool


class Blob(msgspec.Struct):
    """A row with bytes."""

    data: bytes


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_rows_are_objects_of_any_type_that_a_state_may_have(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item, is_paid) values ('tea', 1)")
        assert await shop.sql("select * from orders", into=Plain) == [Plain(1, "tea")]
        assert await shop.sql("select * from orders", into=Model) == [Model(id=1, is_paid=True)]
        assert await shop.sql("select x'00ff' as data", into=Blob) == [Blob(b"\x00\xff")]
        with pytest.raises(SqlError, match="the rows do not fit Model"):
            shop.sql("select 'x' as id, 1 as is_paid", into=Model)


async def test_a_parameter_is_a_value_whatever_is_in_it(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        bad = "x'); drop table orders; --"
        await shop.sql("insert into orders (item) values (?)", bad)
        assert items(shop) == [bad]


async def test_rows_are_those_of_before_after_a_restart(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        for number in range(300):
            shop.sql("insert into orders (item) values (?)", f"{number} " + "x" * number)
        await shop.sql("insert into words values ('green tea')")
        await shop.sql("delete from orders where id % 3 = 0")
        before = items(shop)
        assert len(before) == 200
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        assert items(shop) == before
        assert await shop.sql("select word from words where words match 'tea'") == [{"word": "green tea"}]
        assert await shop.sql("pragma integrity_check") == [{"integrity_check": "ok"}]
        await shop.sql("insert into orders (item) values ('last')")
        assert items(shop) == [*before, "last"]


async def test_two_threads_of_a_kind_see_nothing_of_each_others_tables(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        for name in ("one", "two"):
            shop = await works.thread(Shop, name)
            await shop.sql("insert into orders (item) values (?)", name)
        assert items(await works.thread(Shop, "one")) == ["one"]
        assert items(await works.thread(Shop, "two")) == ["two"]


async def test_reading_creates_no_thread(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        assert await shop.sql("select * from orders") == []
        assert await shop.sql.read("select * from words where words match 'tea'") == []
        assert await count(works, "two") == 0
    assert await store.threads() == []
    assert store.writes == []


async def test_the_rows_of_a_thread_that_is_being_destroyed_can_be_read(store: Any) -> None:
    seen: list[Any] = []

    class Last(Thread[Any]):
        sql = Sql(migrations=["create table a (b)"])

        async def on_destroyed(self) -> None:
            seen.extend((await self.sql("select * from a"), await self.sql.read("select * from a")))
            with pytest.raises(Destroyed):
                self.sql("insert into a values (2)")

    async with open_workshop(store, Last) as works:
        thread = await works.thread(Last)
        await thread.sql("insert into a values (1)")
        async with asyncio.timeout(10):
            await works.handle(Last).destroy()
    assert seen == [[{"b": 1}]] * 2


async def test_tables_that_a_statement_makes_are_those_of_later_statements(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("create table notes (text)")
        await shop.sql("insert into notes values ('a')")
        await shop.sql("alter table notes rename to pages")
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        assert await shop.sql("select * from pages") == [{"text": "a"}]
        await shop.sql("drop table pages")
        with pytest.raises(SqlError, match="no such table"):
            shop.sql("select * from pages")


async def test_nothing_is_left_of_a_destroyed_thread(store: Any, folder: Path) -> None:
    async with open_workshop(store, Shop) as works:
        await works.handle(Shop).order("tea")
        assert len(await store.records(KEY, PAGES)) > 3
        (files,) = listed(folder)
        assert len(list(listed(files))) > 1
        await works.handle(Shop).destroy()
        assert await store.records(KEY, PAGES) == []
        await until(works.are_asleep)
        assert listed(files) == []
        assert await works.handle(Shop).order("rice") == 1
    assert list(listed(folder)) == []


async def test_large_tables_are_those_of_before_after_a_restart_and_become_smaller(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        for number in range(40):
            await shop.sql("insert into orders (item) values (?)", f"{number} " + "x" * 100_000)
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        assert [len(each) for each in items(shop)] == [100_000 + len(f"{number} ") for number in range(40)]
        await shop.sql("delete from orders where id > 1")
        for number in range(33):
            await shop.sql("update orders set is_paid = ?", number)
    assert len(await store.records(KEY, PAGES)) < 100
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        assert await shop.sql("pragma integrity_check") == [{"integrity_check": "ok"}]
        assert len(items(shop)) == 1


async def test_tables_over_the_limit_are_refused(tmp_path: Path) -> None:
    async with Plait(Shop, store="memory://", limits=Limits(sql=400_000)) as app:
        shop: Any = (await app._node.actor(KEY)).thread
        for number in range(3):
            await shop.sql("insert into orders (item) values (?)", f"{number}" + "x" * 50_000)
        with pytest.raises(SqlError, match="more than 400000 bytes") as caught:
            await shop.sql("insert into orders (item) values (?)", "x" * 50_000)
        assert caught.value.limit == "sql"
        assert len(items(shop)) == 3
        await shop.sql("delete from orders where id = 1")
        await shop.sql("insert into orders (item) values (?)", "x" * 50_000)


async def test_records_that_are_too_small_for_a_page_are_refused_at_once() -> None:
    async with Plait(Shop, store="memory://", limits=Limits(record=4095)) as app:
        with pytest.raises(ValueError, match=r"Limits\(record=4095\): .* need records of 4096 bytes"):
            await app._node.actor(KEY)
    async with Plait(Shop, store="memory://", limits=Limits(record=4096)) as app:
        await app.thread(Shop, "one").call(Shop.order, "tea")


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_no_more_than_64_files_are_open(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        await works.handle(Shop, "first").order("a")
        before = len(listed(Path("/proc/self/fd")))
        for round_ in range(2):
            for number in range(150):
                shop = await works.thread(Shop, f"{number}")
                shop.sql("insert into orders (item) values (?)", f"{round_}")
        assert len(listed(Path("/proc/self/fd"))) <= before + 64 * 3
        for number in range(150):
            assert items(await works.thread(Shop, f"{number}")) == ["0", "1"]
    assert len(listed(Path("/proc/self/fd"))) < before


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_what_a_killed_process_has_left_is_removed_and_what_others_use_is_not(store: Any, folder: Path) -> None:
    left = folder / "plait-sql-left"
    left.mkdir()
    (left / "0123").write_bytes(b"x")
    other = LocalFiles()
    await other.prepare()
    kept = set(listed(folder)) - {left}
    async with open_workshop(store, Shop) as works:
        await works.handle(Shop).order("a")
        assert not left.exists()
        assert kept < set(listed(folder))
    other.close()
    assert list(listed(folder)) == []


async def test_a_link_beside_the_folders_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_bytes(b"x")
    link = folder / "plait-sql-link"
    link.symlink_to(tmp_path / "elsewhere")
    files = LocalFiles()
    await files.prepare()
    files.close()
    assert (listed(folder), listed(tmp_path / "elsewhere")) == ([link], [tmp_path / "elsewhere" / "kept"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of other users")
async def test_a_folder_of_another_user_is_left(folder: Path) -> None:
    other = folder / "plait-sql-other"
    other.mkdir()
    os.chown(other, 65534, 65534)
    files = LocalFiles()
    await files.prepare()
    files.close()
    assert (listed(folder), listed(other)) == ([other], [])


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_thread_that_was_stopped_runs_no_statement(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
    with pytest.raises(Unavailable, match="stopped"):
        shop.sql("select 1 as a")
    with pytest.raises(Unavailable, match="stopped"):
        await shop.sql.read("select 1 as a")
