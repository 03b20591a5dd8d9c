"""A thread with tables, and what tests do with it."""

from pathlib import Path
from typing import Any

import msgspec
from tests.server.parts.workshop import Workshop

from plait import Reject, Sql, Thread, ThreadKey, Values, rpc
from plait.store.thread_rows import RecordRange

__all__ = ["FOREVER", "KEY", "PAGES", "Order", "Shop", "count", "items", "listed", "measure", "unlink"]

KEY = ThreadKey("shop", "one")
PAGES = RecordRange("sql", "p/", limit=100_000)
FOREVER = "with recursive c(x) as (select 1 union all select x + 1 from c) select sum(x) as n from c"


class Order(msgspec.Struct, frozen=True):
    """A row."""

    id: int
    item: str
    is_paid: bool = False


class Shop(Thread[Any]):
    """Has orders, and a number as its state, which is not negative."""

    initial_state = 0
    values = Values()
    sql = Sql(
        migrations=[
            "create table orders (id integer primary key, item text unique, is_paid integer not null default 0)",
            "create virtual table words using fts5(word)",
        ]
    )

    def validate_state_change(self, next_state: int, source: Any) -> None:
        """Refuse negative numbers."""
        if next_state < 0:
            raise Reject("n cannot be negative")

    @rpc
    async def order(self, item: str) -> int:
        """Add an order, and count it."""
        with self.transaction():
            (row,) = self.sql("insert into orders (item) values (?) returning id", item).value
            self.set_state(self.state + 1)
        found: int = row["id"]
        return found

    @rpc
    async def look(self, statement: str) -> list[Any]:
        """Run a statement."""
        return await self.sql(statement)


def items(shop: Shop) -> list[str]:
    """Return the items in order of their numbers."""
    return [row["item"] for row in shop.sql("select item from orders order by id").value]


async def count(works: Workshop, name: str = "one") -> int:
    """Return the number of orders of a thread."""
    (row,) = await works.handle(Shop, name).sql.read("select count(*) as n from orders")
    found: int = row["n"]
    return found


def listed(folder: Path) -> list[Path]:
    """Return what is in a folder."""
    return list(folder.iterdir())


def measure(path: str) -> int:
    """Return the bytes of a file."""
    return Path(path).stat().st_size


def unlink(path: str) -> None:
    """Remove a file."""
    Path(path).unlink()
