"""Migrations of tables, and stored tables that cannot be used."""

from typing import Any, ClassVar

import pytest
from tests.server.parts.sql.shop import KEY, PAGES, Shop
from tests.server.parts.workshop import Workshop, open_workshop, until

from plait import (
    CorruptThread,
    Files,
    MigrationFailed,
    NewerState,
    Plait,
    Sql,
    SqlError,
    Step,
    Tasks,
    Thread,
    Values,
    task,
)
from plait.clock import read_due_clock
from plait.store.thread_rows import Record


def make_class(*migrations: str) -> type[Thread[Any]]:
    class Shop(Thread[Any]):
        initial_state = 0
        values = Values()
        sql = Sql(migrations=list(migrations))

    return Shop


FIRST = "create table a (n integer); create trigger t after insert on a begin update a set n = n + 1; end;"
SECOND = "alter table a add column text; -- a comment; with a semicolon\nupdate a set text = 'old; ' || n;"


async def test_migrations_run_once_when_a_thread_wakes(store: Any) -> None:
    found = []
    for migrations in ([FIRST], [FIRST], [FIRST, SECOND], [FIRST, SECOND]):
        cls = make_class(*migrations)
        async with open_workshop(store, cls) as works:
            shop: Any = await works.thread(cls)
            found.append(len(store.writes))
            if len(migrations) == 1:
                await shop.sql("insert into a values (?)", 1)
    assert found == [0, 1, 3, 3]
    cls = make_class(FIRST, SECOND)
    async with open_workshop(store, cls) as works:
        shop = await works.thread(cls)
        assert shop.sql("select * from a order by n").value == [
            {"n": 2, "text": "old; 2"},
            {"n": 3, "text": "old; 3"},
        ]


async def test_migrations_are_stored_although_nothing_else_is_written(store: Any) -> None:
    for migrations in ([FIRST], [FIRST, SECOND]):
        cls = make_class(*migrations)
        async with open_workshop(store, cls) as works:
            shop: Any = await works.thread(cls)
            if len(migrations) == 1:
                await shop.sql("insert into a values (1)")
    assert [len(write.changes) for write in store.writes] == [0, 0]
    pages = await store.records(KEY, PAGES)
    assert int.from_bytes(pages[0].value[60:64], "big") == 2


async def rests(shop: Workshop) -> bool:
    """Return whether a thread is due in more than half an hour."""
    return min((await shop.due()).values()) > read_due_clock() + 1_800_000_000


async def test_a_migration_leaves_the_time_at_which_the_thread_must_wake(store: Any) -> None:
    def make(*migrations: str) -> type[Thread[Any]]:
        class Timed(Thread[dict[str, Any]]):
            initial_state: ClassVar[dict[str, Any]] = {}
            files = Files()
            sql = Sql(migrations=list(migrations))
            tasks = Tasks()

            @task
            async def rest(self, step: Step) -> None:
                await step.sleep("long", 3600)

        return Timed

    first = "CREATE TABLE a (n INTEGER)"
    timed = make(first)
    async with open_workshop(store, timed) as shop:
        thread: Any = await shop.thread(timed)
        await thread.sql("INSERT INTO a VALUES (1)")
        await thread.tasks.run("rest")
        await until(lambda: rests(shop))
        due = await shop.due()
    timed = make(first, "ALTER TABLE a ADD COLUMN name TEXT")
    async with open_workshop(store, timed) as shop:
        await shop.thread(timed)
        assert await shop.due() == due


async def test_an_import_runs_the_migrations_that_the_export_has_not_had() -> None:
    older, newer = make_class(FIRST), make_class(FIRST, SECOND)
    async with Plait(older, store="memory://") as app:
        first: Any = app.thread(older, "one")
        await first.sql("insert into a values (1)")
        lines = b"".join([each async for each in app.export_thread("shop", "one")])
    async with Plait(newer, store="memory://") as app:
        two: Any = await app.import_thread(lines, name="two")
        assert await two.sql("select * from a") == [{"n": 2, "text": "old; 2"}]
        three: Any = await app.fork_thread(newer, "two", "three")
        assert await three.sql("select * from a") == [{"n": 2, "text": "old; 2"}]


async def test_a_thread_that_got_tables_later_has_them(store: Any) -> None:
    class Shop(Thread[Any]):
        initial_state = 0
        values = Values()

    async with open_workshop(store, Shop) as works:
        await works.handle(Shop).values.set("a", 1)
    cls = make_class(FIRST)
    async with open_workshop(store, cls) as works:
        shop: Any = await works.thread(cls)
        await shop.sql("insert into a values (1)")
    async with open_workshop(store, cls) as works:
        shop = await works.thread(cls)
        assert shop.sql("select * from a").value == [{"n": 2}]


async def test_a_migration_that_fails_leaves_the_tables_as_they_were(store: Any) -> None:
    cls = make_class(FIRST)
    async with open_workshop(store, cls) as works:
        await works.handle(cls).sql("insert into a values (1)")
    before = await store.records(KEY, PAGES)
    broken = make_class(FIRST, SECOND, "insert into gone values (1)")
    async with open_workshop(store, broken) as works:
        with pytest.raises(MigrationFailed, match="tables of shop/one") as caught:
            await works.thread(broken)
        assert caught.value.detail == "no such table: gone: insert into gone values (1)"
    assert await store.records(KEY, PAGES) == before


PARENTS = (
    "create table parents (id integer primary key, name text);"
    "create table children (id integer primary key, parent integer references parents (id) on delete cascade);"
)
REBUILD = (
    "create table made (id integer primary key, name text not null); insert into made select * from parents;"
    "drop table parents; alter table made rename to parents;"
)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_table_that_a_migration_makes_again_keeps_the_rows_that_refer_to_it(store: Any) -> None:
    cls = make_class(PARENTS)
    async with open_workshop(store, cls) as works:
        shop: Any = await works.thread(cls)
        await shop.sql("insert into parents values (1, 'a')")
        await shop.sql("insert into children values (2, 1)")
    cls = make_class(PARENTS, REBUILD)
    async with open_workshop(store, cls) as works:
        shop = await works.thread(cls)
        assert shop.sql("select * from children").value == [{"id": 2, "parent": 1}]
        with pytest.raises(SqlError, match="FOREIGN KEY"):
            shop.sql("insert into children values (3, 3)")
        await shop.sql("delete from parents")
        assert shop.sql("select * from children").value == []


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_migration_that_leaves_a_row_that_refers_to_none_fails(store: Any) -> None:
    cls = make_class(PARENTS)
    async with open_workshop(store, cls) as works:
        shop: Any = await works.thread(cls)
        await shop.sql("insert into parents values (1, 'a')")
        await shop.sql("insert into children values (2, 1)")
    before = await store.records(KEY, PAGES)
    broken = make_class(PARENTS, "delete from parents")
    async with open_workshop(store, broken) as works:
        with pytest.raises(MigrationFailed) as caught:
            await works.thread(broken)
        assert "a row of children refers to a row of parents that is not there" in str(caught.value.detail)
    assert await store.records(KEY, PAGES) == before


async def test_tables_that_newer_code_has_migrated_are_refused_and_left(store: Any) -> None:
    cls = make_class(FIRST, SECOND)
    async with open_workshop(store, cls) as works:
        await works.handle(cls).sql("insert into a values (1, 'a')")
    before, older = await store.records(KEY, PAGES), make_class(FIRST)
    async with open_workshop(store, older) as works:
        with pytest.raises(NewerState, match="has had 2 migrations, and its class has 1"):
            await works.thread(older)
    assert await store.records(KEY, PAGES) == before


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize("lost", ["p/00000001", "p/00000002", "last", "part"])
async def test_tables_with_a_lost_page_are_refused(store: Any, lost: str) -> None:
    async with open_workshop(store, Shop) as works:
        await works.handle(Shop).order("tea")
        actor = await works.actor(Shop)
        pages = await store.records(KEY, PAGES)
        key = pages[-1].key if lost == "last" else pages[3].key if lost == "part" else lost
        await actor.records.write([Record("sql", key, b"x" * 100 if lost == "part" else None)])
    async with open_workshop(store, Shop) as works:
        with pytest.raises(CorruptThread, match="sql of shop/one"):
            await works.thread(Shop)


def test_migrations_that_are_no_list_of_scripts_are_refused() -> None:
    with pytest.raises(TypeError, match="list of str"):
        Sql(migrations="create table a (b)")
    with pytest.raises(TypeError, match="list of str"):
        Sql(migrations=[1])  # type: ignore[list-item]
