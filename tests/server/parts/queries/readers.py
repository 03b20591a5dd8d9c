"""A thread with queries, and clients that follow them on fake sockets."""

import asyncio
from typing import Any

from tests.server.session.guests import PATIENCE, Guest

from plait import Sql, Thread, Values, current, query, rpc
from plait.errors import Unauthenticated
from plait_schemas.codec import convert
from plait_schemas.patch import Op, apply

__all__ = ["ABSENT", "Desk", "Following"]

ABSENT = "nothing yet"


_COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) SELECT count(*) AS n FROM c"


class Desk(Thread[Any]):
    """Has orders in a table, counts in its state, and a note of each user."""

    initial_state = {"n": 0, "other": 0, "notes": {}, "private": False}  # noqa: RUF012
    sql = Sql(migrations=["CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, paid INT); CREATE TABLE logs (x)"])
    values = Values()
    runs = 0

    @query
    def orders(self, most: int = 100) -> list[dict[str, Any]]:
        type(self).runs += 1
        return self.sql("SELECT id, item FROM Orders ORDER BY id LIMIT ?", most).value

    @query
    def count(self) -> dict[str, Any]:
        (row,) = self.sql("SELECT count(*) AS rows FROM orders").value
        return {**row, "n": self.state["n"]}

    @query
    def member(self, name: str) -> Any:
        type(self).runs += 1
        return self.state.get(name)

    @query
    def all(self) -> Any:
        return {"state": self.state}

    @query
    def value(self, key: str) -> Any:
        type(self).runs += 1
        return self.values.get(key, "no value").value

    @query
    def note(self) -> Any:
        if not self.state["private"]:
            return "public"
        try:
            return self.state["notes"][current().principal.id]
        except Unauthenticated:
            return "nobody"

    @query
    def claims(self) -> Any:
        return current().principal.claims

    @query
    def fails(self) -> Any:
        if (n := self.state["n"]) % 2:
            raise ValueError(f"{n} is odd")
        return n

    @query
    def heavy(self, count: int) -> Any:
        (row,) = self.sql(_COUNTING, count).value
        (second,) = self.sql(_COUNTING, count).value
        return row["n"] + second["n"]

    @query
    def writes(self, how: str) -> None:
        match how:
            case "state":
                self.set_state({"n": 1})
            case "sql":
                self.sql("INSERT INTO logs VALUES (1)")
            case "values":
                self.values.set("a", 1)
            case "member":
                self.state["notes"]["a"] = 1
            case "broadcast":
                self.emit("hello")

    @rpc
    def add(self, item: str) -> None:
        with self.transaction():
            self.sql("INSERT INTO orders (item) VALUES (?)", item)
            self.update("/n", self.state["n"] + 1)

    @rpc
    def set(self, name: str, value: Any) -> None:
        self.update(f"/{name}", value)


class Following:
    """A query that a guest follows: its result as the client folds the chunks, and all chunks."""

    _refs = 100

    def __init__(self, guest: Guest, name: str, *args: Any, have: str = "") -> None:
        Following._refs += 1
        self.guest = guest
        self.ref = Following._refs
        self.rows: Any = ABSENT
        self.error: Any = None
        self.ended: Any = None
        self.at = -1
        self.tag = have
        self.chunks: list[Any] = []
        guest.send("call", ref=self.ref, method=name, args=args, have=have)

    async def next(self) -> Any:
        """Wait for a chunk, and return the result after it; other frames are dropped."""
        async with asyncio.timeout(PATIENCE):
            while not self.take(await self.guest.transport.next()):
                pass
        return self.rows

    async def until(self, rows: Any) -> None:
        """Wait until the result is `rows`."""
        while self.rows != rows:
            await self.next()

    def take(self, frame: Any) -> bool:
        """Take a frame, if it belongs to the query."""
        if frame is None or frame.get("ref") != self.ref:
            return False
        if frame["type"] == "error":
            self.ended = frame["code"]
            return True
        chunk = frame["value"]
        self.chunks.append(chunk)
        self.at, self.error = chunk["at"], chunk.get("error")
        if "rows" in chunk:
            self.rows = chunk["rows"]
        elif "ops" in chunk:
            self.rows = apply(self.rows, convert(chunk["ops"], list[Op]))
        self.tag = chunk.get("tag", self.tag)
        return True

    def drain(self) -> None:
        """Take what has come so far."""
        for frame in self.guest.frames:
            self.take(frame)
