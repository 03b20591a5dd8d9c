"""A ledger that is written until its process is killed: `python -m tests.integration.killed_ledger URL`."""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from plait import Sql, SqliteStore, Thread, ThreadKey, Values
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.store.postgres.store import PostgresStore
from plait.store.postgres.url import PostgresUrl

__all__ = ["Ledger", "read_ledger"]


class Ledger(Thread[dict[str, int]]):
    """Has a number in its state, its values, and two tables."""

    initial_state = {"n": 0}  # noqa: RUF012
    idle_timeout = None
    values = Values()
    sql = Sql(
        migrations=[
            "create table rows (n integer primary key, text text); create index texts on rows (text);",
            "create virtual table words using fts5(word)",
        ]
    )

    def add(self, chance: random.Random) -> Any:
        """Write the next number everywhere, and blocks and statements that are undone."""
        n = self.state["n"] + 1
        with suppress(LookupError), self.transaction():
            self.set_state({"n": -1})
            for _ in range(chance.choice((1, 1, 1, 12))):
                self.sql("insert into rows (text) values (?)", "gone" * 25_000)
            raise LookupError
        with self.transaction():
            self.set_state({"n": n})
            self.sql("insert into rows values (?, ?)", n, f"{n} " + "x" * chance.randrange(300))
            with suppress(LookupError), self.transaction():
                self.sql("insert into words values ('inner')")
                self.values.set("inner", n)
                raise LookupError
            self.sql("insert into words values (?)", f"word{n}")
            if n % 20 == 0:
                self.sql("delete from rows where n < ?", n - 30)
            return self.values.set("n", n)


@asynccontextmanager
async def open_ledger(url: str) -> AsyncIterator[Ledger]:
    """Open a store without a table of nodes, in which a killed one would be missed only after seconds."""
    store = PostgresStore(PostgresUrl.parse(url)) if url.startswith("postgresql") else SqliteStore(url)
    async with store:
        node = Node([Ledger._kind], store, DEFAULT_LIMITS)
        node.start()
        try:
            ledger = (await node.actor(ThreadKey("ledger", "one"))).thread
            assert isinstance(ledger, Ledger)
            yield ledger
        finally:
            await node.stop(1.0)


async def read_ledger(url: str) -> tuple[Any, ...]:
    """Return the number of the ledger as its state, its value, its last row and the number of its words have it.

    The last element is what must not be there, and whether the tables are in order.
    """
    async with open_ledger(url) as ledger:
        sql = ledger.sql
        last, words = await sql("select max(n) as n from rows"), await sql("select count(*) as n from words")
        gone = await sql("select n from rows where text like 'gone%'")
        inner = await sql("select word from words where words match 'inner'")
        checked = await sql.read("pragma integrity_check")
        value, other = await ledger.values.get("n", 0), await ledger.values.has("inner")
        return (ledger.state["n"], value, last[0]["n"] or 0, words[0]["n"], (gone, inner, other, checked))


async def _write(url: str) -> None:
    chance = random.Random()
    async with open_ledger(url) as ledger:
        while True:
            await ledger.add(chance)
            os.write(1, b"n %d\n" % ledger.state["n"])


if __name__ == "__main__":
    asyncio.run(_write(sys.argv[1]))
