"""A shop with queries, and a client that follows them and checks each result."""

import asyncio
import os
from contextlib import suppress
from typing import Any

from plait import Plait, Sql, Thread, query, rpc
from plait_client import CallError, Room

__all__ = ["Reading", "Shop", "app"]


class Shop(Thread[Any]):
    """Its state counts the rows of its table."""

    initial_state = {"n": 0}  # noqa: RUF012
    sql = Sql(migrations=["CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"])

    @query
    def orders(self) -> list[dict[str, Any]]:
        return self.sql("SELECT id, item FROM orders ORDER BY id").value

    @query
    def count(self) -> dict[str, Any]:
        (row,) = self.sql("SELECT count(*) AS rows FROM orders").value
        return {**row, "n": self.state["n"]}

    @rpc
    def add(self, item: str) -> None:
        with self.transaction():
            self.sql("INSERT INTO orders (item) VALUES (?)", item)
            self.update("/n", self.state["n"] + 1)

    @rpc
    def where(self) -> int:
        """Return the id of the process that has the thread awake."""
        return os.getpid()


class Reading:
    """Follows the queries of a shop; `wrong` has what no result may be."""

    def __init__(self, room: Room[Any]) -> None:
        self.room = room
        self.rows: list[Any] = []
        self.seen: set[str] = set()
        self.wrong: list[Any] = []
        self.news = asyncio.Event()
        self._tasks = [asyncio.create_task(self._follow(name)) for name in ("orders", "count")]

    @property
    def items(self) -> list[str]:
        """The items of the last result."""
        return [row["item"] for row in self.rows]

    async def until_items(self, items: list[str], *, timeout: float) -> None:
        """Wait until the last result has these items."""
        async with asyncio.timeout(timeout):
            while self.items != items:
                self.news.clear()
                await self.news.wait()

    async def close(self) -> None:
        """Stop, and raise the error that has ended a query."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _follow(self, name: str) -> None:
        query = self.room.query(name)
        while True:
            try:
                result = await anext(query)
            except CallError as error:
                if error.code != "store_error":  # The tables are read again, after a failed write.
                    self.wrong.append(error)
                    raise
                continue
            if query.at > self.room.version:
                self.wrong.append((name, query.at, self.room.version))
            if name == "orders":
                self.rows = result
                self.seen.update(self.items)
            elif result["rows"] != result["n"]:
                self.wrong.append(result)
            elif query.at == self.room.version and self.room.confirmed["n"] != result["n"]:
                self.wrong.append((result, self.room.confirmed))
            self.news.set()


app = Plait(Shop, store=os.environ.get("PLAIT_STORE", "sqlite:///shop.db"), limits=None)
