"""Rows that are written in transactions, with the state and the values: all are there, or none."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.server.parts.sql.shop import FOREVER, KEY, Order, Shop, count, items
from tests.server.parts.workshop import Workshop, open_workshop

from plait import Files, Limits, Messages, Plait, Reject, RolledBack, Sql, SqlError, StoreError, Thread, rpc

ADD = "insert into orders (item) values (?)"


async def outside(work: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a task of its own."""

    async def run() -> Any:
        return work(*args)

    return await asyncio.create_task(run())


async def restarted(works: Workshop) -> Shop:
    """Return the thread after it was asleep."""
    actor = await works.actor(Shop)
    works.node._lifecycle.stop(actor)
    await works.node._threads.find(KEY).tasks[0]
    return await works.thread(Shop)


async def found(shop: Shop) -> tuple[Any, ...]:
    return shop.state, items(shop), await shop.values.items()


async def test_a_block_stores_rows_state_and_values_in_one_write(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql(ADD, "old")
        store.writes.clear()
        async with shop.transaction():
            shop.set_state(7)
            assert await shop.sql(f"{ADD} returning id", "a") == [{"id": 2}]
            shop.values.set("a", 1)
            shop.sql("insert into words values ('tea')")
            shop.sql("delete from orders where item = 'old'")
            assert shop.sql("select * from orders", into=Order).value == [Order(2, "a")]
        (write,) = store.writes
        assert len(write.changes) == 1
        assert {record.part for record in write.records} == {"sql", "values"}
        shop = await restarted(works)
        assert await found(shop) == (7, ["a"], [("a", 1)])
        assert shop.sql("select * from words where words match 'tea'").value == [{"word": "tea"}]


async def test_a_block_that_raises_leaves_everything_as_it_was_at_once(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql(ADD, "a")
        store.writes.clear()
        lost: list[Awaitable[Any]] = []

        def fail() -> None:
            with shop.transaction():
                lost.append(shop.sql(ADD, "b"))
                shop.sql("update orders set item = 'c' where id = 1")
                shop.sql("create table other (n)")
                lost.append(shop.set_state(7))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert await found(shop) == (0, ["a"], [])
        with pytest.raises(SqlError, match="no such table"):
            shop.sql("select * from other")
        with pytest.raises(RolledBack):
            await lost[1]
        assert store.writes == []
        await shop.sql(ADD, "later")
        assert items(await restarted(works)) == ["a", "later"]


async def test_a_refused_state_takes_the_rows_of_the_block_along(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        for statement in (ADD, "select ? as a"):  # With a write, and with a select only.
            with pytest.raises(Reject), shop.transaction():  # noqa: PT012
                shop.sql(statement, "lost")
                shop.set_state(-1)
        assert await found(shop) == (0, [], [])
        assert shop.sql._losses == 0
        await shop.sql(ADD, "a")
        assert items(await restarted(works)) == ["a"]


async def test_an_inner_block_that_raises_takes_back_only_what_it_did(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with shop.transaction():
            with suppress(ZeroDivisionError), shop.transaction():
                shop.sql(ADD, "first")
                raise ZeroDivisionError
            shop.sql(ADD, "a")
            with shop.transaction():
                shop.sql(ADD, "b")
                with suppress(ZeroDivisionError), shop.transaction():
                    shop.sql(ADD, "c")
                    with shop.transaction():
                        shop.sql("update orders set item = item || '!'")
                    shop.sql("insert into words values ('c')")
                    raise ZeroDivisionError
                shop.sql(ADD, "d")
            shop.sql(ADD, "e")
        shop = await restarted(works)
        assert items(shop) == list("abde")
        assert shop.sql("select * from words where words match 'c'").value == []


async def test_a_block_whose_inner_blocks_have_undone_all_rows_is_stored(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with shop.transaction():
            with suppress(ZeroDivisionError), shop.transaction():
                shop.sql(ADD, "lost")
                raise ZeroDivisionError
            shop.set_state(7)
        assert await found(shop) == (7, [], [])
        await shop.sql(ADD, "a")
        assert items(await restarted(works)) == ["a"]


async def test_a_select_that_fails_after_undone_rows_does_not_break_the_block(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        long = "with recursive c(x) as (select 1 union all select x + 1 from c where x < ?) select sum(x) as n from c"
        assert await shop.sql(long, 3) == [{"n": 6}]
        with shop.transaction():
            with suppress(ZeroDivisionError), shop.transaction():
                shop.sql(ADD, "lost")
                raise ZeroDivisionError
            with pytest.raises(SqlError, match="interrupted"):
                shop.sql(long, 2**60)
            shop.set_state(7)
        assert await found(shop) == (7, [], [])


@pytest.mark.parametrize("way", ["", "or fail ", "or abort ", "or ignore "])
async def test_a_statement_that_fails_is_undone_and_the_block_goes_on(store: Any, way: str) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with shop.transaction():
            shop.sql(ADD, "a")
            with suppress(SqlError):
                shop.sql(f"insert {way}into orders (id, item) values (2, 'b'), (3, 'a')")
            shop.sql(ADD, "c")
        assert items(await restarted(works)) == (["a", "b", "c"] if way == "or ignore " else ["a", "c"])


async def test_a_statement_that_ends_the_local_transaction_breaks_the_block_even_if_it_is_caught(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql(ADD, "a")

        def go_on(statement: str) -> None:
            with shop.transaction():
                shop.set_state(7)
                shop.sql(ADD, "b")
                with suppress(SqlError):
                    shop.sql(statement)
                with pytest.raises(SqlError):
                    shop.sql(ADD, "c")
                with pytest.raises(SqlError):
                    shop.sql("select 1 as a")

        for statement, reason in (
            (f"insert into orders (item) {FOREVER}", "interrupted"),
            ("insert or rollback into orders (id, item) values (1, 'd')", "UNIQUE"),
        ):
            with pytest.raises(SqlError, match=reason):
                go_on(statement)
            assert await found(shop) == (0, ["a"], [])
        await works.handle(Shop).order("later")
        assert items(await restarted(works)) == ["a", "later"]


async def test_tables_that_are_full_break_the_block(store: Any) -> None:
    async with Plait(Shop, store="memory://", limits=Limits(sql=400_000)) as app:
        shop: Any = (await app._node.actor(KEY)).thread

        def fill() -> None:
            with shop.transaction():
                shop.set_state(7)
                with suppress(SqlError):
                    for number in range(10):
                        shop.sql(ADD, f"{number}" + "x" * 50_000)

        with pytest.raises(SqlError, match="more than 400000 bytes"):
            fill()
        assert await found(shop) == (0, [], [])
        await shop.sql(ADD, "a")


class Deferred(Thread[Any]):
    initial_state = 0
    sql = Sql(
        migrations=[
            "create table a (id integer primary key);"
            "create table b (a integer references a deferrable initially deferred);"
        ]
    )


async def test_what_fails_at_the_commit_leaves_nothing_of_the_block(store: Any) -> None:
    async with open_workshop(store, Deferred) as works:
        thread = await works.thread(Deferred)
        with pytest.raises(SqlError, match="FOREIGN KEY"), thread.transaction():  # noqa: PT012
            thread.set_state(7)
            thread.sql("insert into b values (1)")
        with pytest.raises(SqlError, match="FOREIGN KEY"):
            thread.sql("insert into b values (1)")
        assert (thread.state, thread.sql("select * from b").value) == (0, [])
        assert store.writes == []
        with thread.transaction():
            thread.sql("insert into b values (1)")
            thread.sql("insert into a values (1)")
        assert await thread.sql("select * from b") == [{"a": 1}]


class Linked(Thread[Any]):
    initial_state = 0
    sql = Sql(migrations=["create table a (id integer primary key); create table b (a integer references a);"])


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_foreign_keys_are_deferred_in_the_block_that_says_so(store: Any) -> None:
    async with open_workshop(store, Linked) as works:
        thread = await works.thread(Linked)
        for number in range(2):
            with thread.transaction():
                thread.sql("pragma defer_foreign_keys=1")
                thread.sql("insert into b values (?)", number)
                thread.sql("insert into a values (?)", number)
            with pytest.raises(SqlError, match="FOREIGN KEY"):
                thread.sql("insert into b values (9)")
        assert await thread.sql("pragma defer_foreign_keys") == [{"defer_foreign_keys": 0}]


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_block_that_fails_at_its_end_does_not_blame_what_was_refused_before(store: Any) -> None:
    async with open_workshop(store, Deferred) as works:
        thread = await works.thread(Deferred)
        with pytest.raises(SqlError, match="FOREIGN KEY"), thread.transaction():  # noqa: PT012
            thread.sql("insert into b values (1)")
            with suppress(SqlError):
                thread.sql("attach 'a' as b")


async def test_a_block_that_awaits_is_rolled_back_before_others_read(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        await shop.sql(ADD, "a")
        with pytest.raises(RuntimeError, match="awaited"), shop.transaction():  # noqa: PT012
            shop.sql(ADD, "b")
            assert await outside(items, shop) == ["a"]
            shop.sql(ADD, "c")
        assert items(shop) == ["a"]


async def test_the_code_that_decides_about_a_block_sees_its_rows_and_writes_none(store: Any) -> None:
    seen: list[Any] = []

    class Shop(Thread[Any]):
        initial_state = 0
        sql = Sql(migrations=["create table orders (item)"])

        def validate_state_change(self, next_state: int, source: Any) -> None:
            for _ in range(2):
                seen.append(self.sql("select * from orders").value)
                with pytest.raises(RuntimeError, match="while another change is being made"):
                    self.sql("insert into orders values ('b')")

    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with shop.transaction():
            shop.sql("insert into orders values ('a')")
            shop.set_state(1)
        assert seen == [[{"item": "a"}]] * 2
        await shop.set_state(2)
        assert await shop.sql("select * from orders") == [{"item": "a"}]


async def test_blocks_of_two_threads_are_apart(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        one, two = await works.thread(Shop, "one"), await works.thread(Shop, "two")

        def fail() -> None:
            with one.transaction():
                one.sql(ADD, "a")
                with two.transaction():
                    two.sql(ADD, "b")
                    one.sql(ADD, "c")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert (items(one), items(two)) == ([], ["b"])


async def test_a_block_that_only_reads_writes_nothing(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with shop.transaction():
            assert shop.sql("select * from orders").value == []
            shop.sql("select * from words where words match 'a'")
        assert store.writes == []


async def test_writers_at_once_lose_nothing(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        handle = works.handle(Shop)
        ids = await asyncio.gather(*(handle.order(f"{number}") for number in range(50)))
        assert sorted(ids) == list(range(1, 51))
        assert await handle.state() == await count(works) == 50


async def test_a_thousand_statements_of_a_block_are_one_write(store: Any) -> None:
    async with open_workshop(store, Shop) as works:
        shop = await works.thread(Shop)
        with shop.transaction():
            for number in range(1000):
                shop.sql(ADD, f"{number}")
        await shop._actor.state.wait_until_durable()
        assert len(store.writes) == 1
        assert len(items(await restarted(works))) == 1000


class Watcher(Thread[Any]):
    initial_state = 0
    sql = Sql(migrations=["create table orders (item)"])

    @rpc
    async def look(self) -> Any:
        """Return the rows, and whether the store had them."""
        rows = self.sql("select * from orders")
        return await rows, self._actor.state.is_durable


async def test_an_awaited_select_waits_until_what_it_saw_is_durable(store: Any) -> None:
    async with open_workshop(store, Watcher) as works:
        thread = await works.thread(Watcher)
        writing = thread.sql("insert into orders values ('a')")
        assert not thread._actor.state.is_durable
        assert await works.handle(Watcher).look() == [[{"item": "a"}], True]
        await writing


class Room(Thread[Any]):
    initial_state = 0
    files = Files()
    sql = Sql(migrations=["create table orders (id integer primary key, item text)"])
    messages = Messages()

    async def order(self, item: str, n: int) -> None:
        """Write everywhere at once."""
        picture = await self.files.receive(b"a picture")
        with self.transaction():
            self.sql("insert into orders (item) values (?)", item)
            self.files.put(f"attachments/{item}.png", picture)
            self.messages.inject("user", item, attachments=[{"path": f"attachments/{item}.png"}])
            self.set_state(n)

    def validate_state_change(self, next_state: int, source: Any) -> None:
        """Refuse negative numbers."""
        if next_state < 0:
            raise Reject("n cannot be negative")

    async def look(self) -> list[Any]:
        """Return all that there is."""
        files, page = await self.files.find("**"), await self.messages.list()
        rows = self.sql("select item from orders").value
        return [self.state, [row["item"] for row in rows], len(files), [each.content for each in page.messages]]


async def test_rows_files_messages_and_state_are_stored_together_or_not_at_all(store: Any) -> None:
    async with open_workshop(store, Room) as works:
        room = await works.thread(Room)
        await room.order("a", 1)
        with pytest.raises(Reject):
            await room.order("b", -1)
        before = await room.look()
        store.refuses = lambda write: len(write.changes) > 0
        await room.order("c", 3)
        pending = room._actor.state.find_pending()
        assert pending is not None
        with pytest.raises(StoreError):
            await pending
        store.refuses = lambda _: False
        await works.handle(Room).sql.read("select 1 as a")
        assert await room.look() == before == [1, ["a"], before[2], ["a"]]
        await room._actor.state.wait_until_durable()
    async with open_workshop(store, Room) as works:
        assert await (await works.thread(Room)).look() == before
