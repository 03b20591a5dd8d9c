"""Shops of 100,000 orders: a thread has them in a table, those of a few customers also in its state."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from plait import Sql, Thread, query, rpc

__all__ = ["ALL", "CUSTOMERS", "EACH", "ORDERS", "Shop"]

ORDERS: Final = 100_000
# Open orders of a customer, and the customers whose orders are read and written.
EACH: Final = 100
CUSTOMERS: Final = 20
# The customers of the table.
ALL: Final = ORDERS // EACH

TABLES: Final = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, item TEXT, paid INT DEFAULT 0, open INT DEFAULT 1);"
    "CREATE INDEX by_customer ON orders (customer, open)"
)
FILL: Final = (
    "INSERT INTO orders (customer, item) WITH RECURSIVE c(x) AS (SELECT ? UNION ALL SELECT x + 1 FROM c WHERE x < ?)"
    f" SELECT 'c' || (x % {ALL}), 'item number ' || x FROM c"
)
OPEN: Final = f"SELECT id, item, paid FROM orders WHERE customer = ? AND open ORDER BY id LIMIT {EACH}"


class Order(msgspec.Struct):
    """A row that clients read."""

    id: int
    item: str
    paid: int


class Shop(Thread[dict[str, Any]]):
    """Orders in a table, and, after `fill_state`, those of some customers in the state."""

    initial_state: Callable[[], dict[str, Any]] = staticmethod(lambda: {"orders": {}})
    idle_timeout = 3600
    sql = Sql(migrations=[TABLES])

    @rpc
    def fill(self, first: int, last: int) -> None:
        """Insert some of the orders."""
        self.sql(FILL, first, last)

    @rpc
    def fill_state(self) -> None:
        """Set the open orders of the customers that are read."""
        ids = {customer: range(customer, ORDERS, ALL) for customer in range(CUSTOMERS)}
        orders = {
            f"c{customer}": {str(id): {"id": id, "item": f"item number {id}", "paid": 0} for id in each}
            for customer, each in ids.items()
        }
        self.set_state({"orders": orders})

    @query
    def open_orders(self, customer: str) -> list[Order]:
        """Follow the open orders of a customer."""
        return self.sql(OPEN, customer, into=Order).value

    @rpc
    def list_orders(self, customer: str) -> list[Order]:
        """Return what `open_orders` does."""
        return self.sql(OPEN, customer, into=Order).value

    @rpc
    def pay(self, id: int, paid: int) -> None:
        """Change an order in the table."""
        self.sql("UPDATE orders SET paid = ? WHERE id = ?", paid, id)

    @rpc
    def pay_in_state(self, id: int, paid: int) -> None:
        """Change an order in the state."""
        self.update(f"/orders/c{id % ALL}/{id}/paid", paid)
