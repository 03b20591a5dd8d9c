"""Tables in runs, in copies of threads, and through handles."""

from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.nodes import open_nodes
from tests.server.parts.sql.shop import FOREVER, Order, Shop, items

from plait import Context, Interruption, Plait, SqlError, SqliteStore
from plait.store.copying import copy_store

ADD = "insert into orders (item) values (?)"


async def find(app: Plait, name: str) -> Shop:
    """Return a thread itself, awake."""
    actor = await app._node.actor(app.thread(Shop, name)._key)
    assert isinstance(actor.thread, Shop)
    return actor.thread


async def test_a_statement_in_a_run_is_done_at_once_and_stays_if_the_run_raises() -> None:
    app = Plait(Shop, store="memory://")

    @app.agent("work", thread=Shop)
    async def work(ctx: Context[Shop]) -> None:
        await ctx.thread.sql(ADD, "a")
        await ctx.thread.values.set("staged", 1)
        assert await app.thread(Shop, "one").part(Shop.sql).read("select item from orders") == [{"item": "a"}]
        with ctx.thread.transaction():
            ctx.thread.sql(ADD, "b")
        raise ZeroDivisionError

    async with app:
        with pytest.raises(ZeroDivisionError):
            await app.run("work", thread="one")
        shop = await find(app, "one")
        assert (items(shop), await shop.values.items()) == (["a", "b"], [])


async def test_an_interrupted_run_runs_no_statement() -> None:
    app = Plait(Shop, store="memory://")

    @app.agent("work", thread=Shop)
    async def work(ctx: Context[Shop]) -> None:
        await app.interrupt(app.thread(Shop, "one"))
        ctx.thread.sql(ADD, "a")

    async with app:
        assert isinstance(await app.run("work", thread="one"), Interruption)
        assert items(await find(app, "one")) == []


async def test_forks_and_imports_have_the_tables_and_are_apart_from_the_original(tmp_path: Path) -> None:
    async with Plait(Shop, store=SqliteStore(tmp_path / "a.db")) as app:
        shop = await find(app, "one")
        for number in range(30):
            await shop.sql(ADD, f"{number} " + "x" * 50_000)
        await shop.sql("insert into words values ('tea')")
        before = items(shop)
        await app.fork_thread(Shop, "one", "fork")
        exported = b"".join([lines async for lines in app.export_thread(Shop, "one")])
        await app.import_thread(exported, name="import")
        for name in ("fork", "import"):
            other = await find(app, name)
            assert items(other) == before
            assert len(await other.sql("select * from words where words match 'tea'")) == 1
            await other.sql("delete from orders")
        await shop.sql(ADD, "last")
        assert items(shop) == [*before, "last"]


async def test_a_copied_store_has_the_tables(tmp_path: Path) -> None:
    async with Plait(Shop, store=SqliteStore(tmp_path / "a.db")) as app:
        await app.thread(Shop, "one").call(Shop.order, "tea")
    async with SqliteStore(tmp_path / "a.db") as source, SqliteStore(tmp_path / "b.db") as target:
        assert await copy_store(source, target, "a", lambda *_: None) == 1
    async with Plait(Shop, store=SqliteStore(tmp_path / "b.db")) as app:
        assert items(await find(app, "one")) == ["tea"]


def make() -> Plait:
    return Plait(Shop, store="memory://")


@each_case("node", [0, 1])
async def test_a_handle_runs_statements_also_of_a_thread_of_another_node(node: int) -> None:
    async with open_nodes(make) as nodes:
        sql = nodes.handle(Shop, node).sql
        await sql(ADD, "a")
        sql(ADD, "b")
        assert await sql("select * from orders", into=Order) == [Order(1, "a"), Order(2, "b")]
        assert await sql.read("select count(*) as n from orders") == [{"n": 2}]
        with pytest.raises(SqlError) as caught:
            await sql(FOREVER)
        assert "interrupted" in caught.value.detail
        with pytest.raises(SqlError) as caught:
            await sql("select 1 as a", into=Order)
        assert "do not fit Order" in caught.value.detail
        with pytest.raises(SqlError) as caught:
            await sql.read("delete from orders")
        assert "a statement that writes is not allowed" in caught.value.detail
        values: Any = (None, 2**60, 0.5, "ü", b"\x00\xff")
        assert await sql("select ? as a, ? as b, ? as c, ? as d, ? as e", *values) == [
            dict(zip("abcde", values, strict=True))
        ]
