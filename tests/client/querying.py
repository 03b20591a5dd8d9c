"""A server that tells clients of queries as a test says."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec
from tests.client.serving import TIMEOUT, Server

from plait_client import Room, RoomQuery
from plait_schemas import messages
from plait_schemas.codec import encode_json

__all__ = [
    "INK",
    "ORDERS",
    "TEA",
    "Order",
    "Shop",
    "begin",
    "fail",
    "follow",
    "is_over",
    "next_call",
    "reconnect",
    "soon",
    "take_all",
    "tell",
]

T = TypeVar("T")

ORDERS = [{"id": "o1", "item": "tea"}, {"id": "o2", "item": "ink"}]
TEA, INK = ORDERS


class Order(msgspec.Struct, frozen=True):
    id: str
    item: str


class Shop:
    def open_orders(self, customer: str) -> list[Order]:
        raise NotImplementedError

    async def total(self) -> int:
        raise NotImplementedError


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable, within a timeout."""
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


async def next_call(server: Server, number: int = 1) -> messages.Call:
    """Return a call of the clients, by its number, as soon as it has come."""
    await server.until(lambda: len(server.frames(messages.Call)) >= number)
    call: messages.Call = server.frames(messages.Call)[number - 1]
    return call


def tell(server: Server, ref: int, **chunk: Any) -> None:
    """Tell all clients what a query has."""
    server.send_all(messages.Result(ref, False, msgspec.Raw(encode_json(chunk))))


def fail(server: Server, ref: int, message: str = "no such table", at: int = 0) -> None:
    tell(server, ref, at=at, error={"code": "sql_error", "message": message})


def begin(query: RoomQuery[T]) -> asyncio.Task[T]:
    """Begin to wait for the next result."""
    return asyncio.ensure_future(anext(query))


async def is_over(query: RoomQuery[Any]) -> bool:
    """Return whether a query has nothing more to give."""
    return await soon(anext(query, None)) is None


async def take_all(room: Room[Any]) -> None:
    """Wait until the client has taken all that was sent to it."""
    events = asyncio.Event()
    remove = room.on_event("all", lambda _: events.set())
    room.send({"event": "all"})
    await soon(events.wait())
    remove()


async def reconnect(server: Server) -> None:
    """Lose the connection, and wait for the next join."""
    count = len(server.frames(messages.Join))
    await server.close_all()
    await server.until(lambda: len(server.frames(messages.Join)) > count)


async def follow(server: Server, room: Room[Any], rows: Any = ORDERS) -> tuple[RoomQuery[Any], int]:
    """Return a query whose first result was read, and the ref of its call."""
    count = len(server.frames(messages.Call))
    query = room.query("open_orders", ["c1"])
    first = begin(query)
    ref = (await next_call(server, count + 1)).ref
    tell(server, ref, at=3, tag="t1", rows=rows)
    assert await soon(first) == rows
    return query, ref
