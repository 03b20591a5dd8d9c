"""Statements that fail, and what may be run on the tables of a thread."""

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest
from tests.server.parts.sql.shop import FOREVER, Order, Shop, items, listed
from tests.server.parts.workshop import open_workshop

from plait import (
    Readonly,
    SqlError,
)
from plait.actor.turn import Turn


async def test_an_error_says_what_was_wrong_but_not_to_clients(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('tea')")
        with pytest.raises(SqlError) as caught:
            shop.sql("insert into orders (item) values (?)", "tea")
        assert str(caught.value) == "a statement on the thread's tables failed"
        assert caught.value.detail == "UNIQUE constraint failed: orders.item: insert into orders (item) values (?)"
        with pytest.raises(SqlError, match="no such table: gone"):
            await works.handle(Shop).look("select * from gone")
        assert items(shop) == ["tea"]


@pytest.mark.parametrize(
    ("statement", "args", "reason"),
    [
        ("select ?", ([1],), "is a list that"),
        ("select ?", (2**63,), "pass str"),
        ("select ?", ("\ud800",), "surrogate pairs"),
        ("select ?", (float("nan"),), "argument 1 is a float that"),
        ("select ?", (), "number of bindings"),
        ("select 1; select 2", (), "one statement"),
        ("select \x00", (), "null"),
        ("select 1 as a, 2 as a", (), "two columns have the same name"),
        ("insert or fail into orders (id, item) values (2, 'b'), (1, 'c')", (), "UNIQUE"),
        ("insert or rollback into orders (id, item) values (2, 'b'), (1, 'c')", (), "UNIQUE"),
        ("select cast(x'ff' as text) as a", (), "UTF-8"),
        ("select zeroblob(1048577) as a", (), "too big"),
        ("select 'a' like ? as a", ("%" * 257,), "too complex"),
        ("select 'a' glob ? as a", ("*" * 257,), "too complex"),
    ],
)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_statement_that_fails_leaves_everything_as_it_was(
    store: Any, statement: str, args: tuple[Any, ...], reason: str
) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        with pytest.raises(SqlError, match=reason):
            shop.sql(statement, *args)
        assert items(shop) == ["a"]
        await shop.sql("insert into orders (item) values ('later')")
        assert items(shop) == ["a", "later"]


async def test_rows_that_do_not_fit_the_struct_leave_nothing_of_the_statement(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with pytest.raises(SqlError, match=r"the rows do not fit Order: .* missing required field `item`"):
            shop.sql("insert into orders (item) values ('tea') returning id", into=Order)
        assert items(shop) == []


REFUSED = [
    ("attach 'other.db' as other", "attach"),
    ("attach 'sqlite_master' as other", "attach"),
    ("detach main", "detach"),
    ("detach sqlite_master", "detach"),
    ("update sqlite_master set sql = 'a'", "may not be modified"),
    ("drop table sqlite_master", "may not be dropped"),
    ("vacuum", "VACUUM"),
    ("vacuum into 'other.db'", "VACUUM"),
    ("begin", "transaction"),
    ("commit", "transaction"),
    ("COMMIT", "transaction"),
    ("ROLLBACK", "transaction"),
    ("savepoint a", "savepoint"),
    ("SAVEPOINT plait", "transaction"),
    ("RELEASE plait", "transaction"),
    ("select load_extension('a')", "load_extension"),
    ("select fts3_tokenizer('simple')", "fts3_tokenizer"),
    ("create temp table a (b)", "temp table"),
    ("create table temp.orders (b)", "temporary"),
    ("create view temp.a as select 1 as b", "temporary"),
    ("create trigger temp.a after insert on main.orders begin select 1; end", "temporary"),
    ("create virtual table temp.a using fts5(b)", "temporary"),
    ("create virtual table a using fts4", "fts4"),
    ("create virtual table a using dbstat", "dbstat"),
    ("create virtual table a using rtree(id, x0, x1)", "rtree"),
    *((f"pragma {name}", name) for name in ("journal_mode=delete", "writable_schema=1", "temp_store_directory='/'")),
    *((f"pragma {name}", name) for name in ("cache_spill=on", "user_version=9", "max_page_count=9", "foreign_keys=0")),
    ("select * from pragma_journal_mode", "journal_mode"),
]


@pytest.mark.parametrize(("statement", "reason"), REFUSED)
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_what_reaches_outside_of_the_tables_is_refused(
    store: Any, statement: str, reason: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into orders (item) values ('a')")
        for _ in range(2):
            with pytest.raises(SqlError, match=reason.partition("=")[0]):
                shop.sql(statement)
            with pytest.raises(SqlError):
                await shop.sql.read(statement)

        def run_in_block() -> None:
            with shop.transaction():
                shop.sql("insert into orders (item) values ('lost')")
                shop.sql(statement)

        with pytest.raises(SqlError):
            run_in_block()
        assert items(shop) == ["a"]
    assert listed(folder) == []


ALLOWED = [
    "create virtual table a using FTS5(b)",
    "PRAGMA Table_Info(orders)",
    "select * from pragma_index_list('orders')",
    "select value from json_each('[1]')",
    "with recursive c(x) as (select 1 union all select x + 1 from c where x < 3) select sum(x) as n from c",
    "explain query plan select * from orders",
    "create view a as select item from orders",
    "create trigger a after insert on orders begin delete from words; end",
    "alter table orders rename to others",
    "alter table orders rename column item to name",
    "alter table orders add column a",
    "alter table orders drop column is_paid",
    "drop table orders",
    "create index a on orders (is_paid)",
    "analyze",
    "reindex",
    "",
    "-- nothing",
]


@pytest.mark.parametrize("statement", ALLOWED)
@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_what_stays_in_the_tables_is_allowed_again_and_again(store: Any, statement: str) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        first = await shop.sql(statement)
        if statement.startswith(("create", "alter", "drop", "analyze", "reindex")):
            assert first == []
        else:
            assert await shop.sql(statement) == first == await shop.sql.read(statement)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_texts_are_searched(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql("insert into words values ('green tea'), ('rice')")
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        found = "select word from words where words match ?"
        for _ in range(2):
            assert await shop.sql(found, "tea") == await shop.sql.read(found, "tea") == [{"word": "green tea"}]
        assert shop.sql("select snippet(words, 0, '[', ']', '', 5) as a from words where words match 'rice'").value == [
            {"a": "[rice]"}
        ]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_triggers_keep_a_search_table_and_views_show_it_and_neither_does_what_is_refused(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql(
            "create trigger a after insert on orders "
            "begin insert into words (rowid, word) values (new.id, new.item); end"
        )
        await shop.sql("create view found as select word from words where words match 'tea'")
        await works.handle(Shop).order("green tea")
        shown = "select * from found"
        assert await shop.sql(shown) == await shop.sql.read(shown) == [{"word": "green tea"}]
        await shop.sql("create view outside as select * from pragma_journal_mode")
        await shop.sql("create trigger outside after delete on orders begin select load_extension('a'); end")
        with pytest.raises(SqlError, match="PRAGMA journal_mode is not allowed"):
            shop.sql("select * from outside")
        with pytest.raises(SqlError, match="PRAGMA journal_mode is not allowed"):
            await shop.sql.read("select * from outside")
        with pytest.raises(SqlError, match="load_extension"):
            shop.sql("delete from orders")
        assert items(shop) == ["green tea"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_runaway_statement_is_interrupted_and_the_thread_goes_on(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with pytest.raises(SqlError, match="interrupted after 50 ms"):
            shop.sql(FOREVER)
        with pytest.raises(SqlError, match="interrupted after 50 ms"):
            shop.sql(f"insert into orders (item) {FOREVER}")
        await shop.sql("insert into orders (item) values ('a')")
        assert items(shop) == ["a"]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_collection_of_garbage_interrupts_no_statement(store: Any) -> None:
    collected: list[str] = []

    def collect_slowly(phase: str, _: dict[str, int]) -> None:
        if not collected:
            end = time.thread_time() + 0.06
            while time.thread_time() < end:
                pass
            collected.append(phase)

    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        thresholds = gc.get_threshold()
        numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) select i from n"
        shop.sql(numbers)
        gc.freeze()  # What tests have left is not collected in between.
        gc.callbacks.append(collect_slowly)
        gc.set_threshold(50)
        try:
            found = shop.sql(numbers).value
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(collect_slowly)
            gc.unfreeze()
    assert collected
    assert len(found) == 500


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_rows_are_stored_after_many_statements_that_cannot_be_compiled(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        for round_ in range(2):
            await shop.sql("insert into orders (item) values (?)", f"{round_}")
            with pytest.raises(KeyError), shop.transaction():  # noqa: PT012
                shop.sql("insert into orders (item) values (?)", "undone")
                raise KeyError
            for number in range(130):
                with pytest.raises(SqlError):
                    shop.sql(f"select gone{number} from orders")
    async with open_workshop(store, Shop) as works:
        assert items(await works.thread(Shop)) == ["0", "1"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_a_turn_that_is_readonly_can_read_and_leaves_nothing_of_what_it_writes(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        actor = await works.actor(Shop)
        shop: Any = actor.thread
        await shop.sql("insert into orders (item) values ('a')")
        extract = "select json_extract(?, '$.a') as a"
        with pytest.raises(SqlError, match="malformed"):
            shop.sql(extract, "{")

        class Bystander:
            readonly = True
            id = "c"
            principal = None

        def try_both() -> Any:
            for statement in ("insert into orders (item) values ('b')", "create table b (c)"):
                with pytest.raises(Readonly):
                    shop.sql(statement)
            assert shop.sql(extract, "{}").value == [{"a": None}]
            return shop.sql("select item from orders").value, shop.sql(
                "select * from words where words match 'a'"
            ).value

        connection: Any = Bystander()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        turn = Turn("rpc", try_both, actor=actor, connection=connection, by_client=True)
        turn.on_end(lambda result, error: future.set_result(result) if error is None else future.set_exception(error))
        turn.start(asyncio.get_running_loop())
        assert await future == ([{"item": "a"}], [])
        assert items(shop) == ["a"]
        with pytest.raises(SqlError, match="no such table"):
            shop.sql("select * from b")
