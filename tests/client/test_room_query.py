"""The results of queries, as a client iterates over them."""

import asyncio
import gc
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from tests.client.querying import (
    INK,
    ORDERS,
    TEA,
    Order,
    Shop,
    begin,
    fail,
    follow,
    is_over,
    next_call,
    reconnect,
    soon,
    take_all,
    tell,
)
from tests.client.serving import Server

from plait_client import CallError, Closed, connect
from plait_schemas import messages

# Results


async def test_a_query_gives_its_result_and_each_change_of_it(server: Server) -> None:
    async with connect(server.url) as room:
        given, versions = [], []
        query = room.query("open_orders", ["c1"])
        assert query.at == 0
        first = begin(query)
        call = await next_call(server)
        assert call == messages.Call(1, "open_orders", [msgspec.Raw(b'"c1"')], {}, "")
        tell(server, 1, at=3, tag="t1", rows=[TEA])
        given.append(await soon(first))
        tell(server, 1, at=4, tag="t2", ops=[{"op": "add", "path": "/1", "value": INK}])
        async for rows in query:
            given.append(rows)
            versions.append(query.at)
            if len(given) == 4:
                break
            tell(server, 1, at=len(given) + 3, tag=f"u{len(given)}", rows=len(given))
        assert given == [[TEA], ORDERS, 2, 3]
        assert versions == [4, 5, 6]


async def test_only_the_last_of_the_results_that_were_not_read_is_given(server: Server) -> None:
    async with connect(server.url) as room:
        query, ref = await follow(server, room, [])
        for n in range(1000):
            tell(server, ref, at=4 + n, tag=f"u{n}", ops=[{"op": "add", "path": "/-", "value": n}])
        await take_all(room)
        assert query.at == 3
        assert await soon(anext(query)) == list(range(1000))
        assert query.at == 1003
        waiting = begin(query)
        tell(server, ref, at=1004, tag="v", rows=["next"])
        assert await soon(waiting) == ["next"]


async def test_a_query_that_nobody_waits_for_is_not_called(server: Server) -> None:
    async with connect(server.url) as room:
        query = room.query("open_orders")
        await query.aclose()
        assert await is_over(query)
        await take_all(room)
    assert server.frames(messages.Call) == server.frames(messages.Cancel) == []


async def test_a_step_that_is_cancelled_loses_no_result(server: Server) -> None:
    async with connect(server.url) as room:
        query, ref = await follow(server, room)
        waiting = begin(query)
        await asyncio.sleep(0)
        waiting.cancel()
        tell(server, ref, at=4, tag="t2", rows=["after"])
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await soon(anext(query)) == ["after"]
        assert server.frames(messages.Cancel) == []


async def test_results_are_copies(server: Server) -> None:
    async with connect(server.url) as room:
        args = [{"name": "c1"}]
        query = room.query("open_orders", args)
        first = begin(query)
        await next_call(server)
        tell(server, 1, at=1, tag="t1", rows=[{"id": "o1", "tags": ["a"]}])
        (row,) = await soon(first)
        row["tags"].append("mine")
        row["id"] = args[0]["name"] = "changed"
        tell(server, 1, at=2, tag="t2", ops=[{"op": "add", "path": "/0/tags/1", "value": {"b": 1}}])
        rows = await soon(anext(query))
        assert rows == [{"id": "o1", "tags": ["a", {"b": 1}]}]
        rows[0]["tags"][1]["b"] = 2
        tell(server, 1, at=3, tag="t3", ops=[{"op": "add", "path": "/1", "value": 7}])
        assert await soon(anext(query)) == [{"id": "o1", "tags": ["a", {"b": 1}]}, 7]
        await server.close_all()
        waiting = begin(query)
        assert (await next_call(server, 2)).args == [msgspec.Raw(b'{"name":"c1"}')]
        waiting.cancel()


async def test_the_results_of_a_function_are_of_its_type(server: Server) -> None:
    async with connect(server.url) as room:
        orders, total = room.query(Shop.open_orders, ["c1"]), room.query(Shop.total)
        first, number = begin(orders), begin(total)
        await next_call(server, 2)
        assert [call.method for call in server.frames(messages.Call)] == ["open_orders", "total"]
        tell(server, 1, at=1, tag="t1", rows=ORDERS)
        tell(server, 2, at=1, tag="n1", rows=7)
        assert await soon(first) == [Order("o1", "tea"), Order("o2", "ink")]
        assert await soon(number) == 7
        tell(server, 1, at=2, tag="t2", rows=[5])
        with pytest.raises(msgspec.ValidationError):
            await soon(anext(orders))
        tell(server, 1, at=3, tag="t3", ops=[{"op": "replace", "path": "/0", "value": TEA}])
        assert await soon(anext(orders)) == [Order("o1", "tea")]


# The end


async def test_closing_a_query_cancels_its_call_and_ends_who_waits(server: Server) -> None:
    async with connect(server.url) as room:
        query, ref = await follow(server, room)
        async with aclosing(query):
            waiting = begin(query)
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await soon(waiting)
        await query.aclose()
        assert await is_over(query)
        await server.until(lambda: server.frames(messages.Cancel) == [messages.Cancel(ref)])
        await reconnect(server)
        assert await soon(room.call("add", 1, 2)) == 3
    assert len(server.frames(messages.Call)) == 2


@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_query_that_is_dropped_is_cancelled(server: Server, has_failed: bool) -> None:
    gc.disable()
    try:
        async with connect(server.url) as room:
            query, ref = await follow(server, room)
            if has_failed:
                fail(server, ref)
                with pytest.raises(CallError, match="no such table"):
                    await soon(anext(query))
            del query
            await server.until(lambda: server.frames(messages.Cancel) == [messages.Cancel(ref)])
    finally:
        gc.enable()


async def test_leaving_the_loop_cancels_the_call(server: Server) -> None:
    async with connect(server.url) as room:

        async def read() -> Any:
            async for rows in room.query("open_orders"):
                return rows

        reading = asyncio.create_task(read())
        await next_call(server)
        tell(server, 1, at=1, tag="t1", rows=[])
        assert await soon(reading) == []
        await server.until(lambda: server.frames(messages.Cancel) == [messages.Cancel(1)])


async def test_closing_the_client_ends_its_queries_as_it_ends_streams(server: Server) -> None:
    async with connect(server.url) as room:
        query, _ = await follow(server, room)
        unread, ref = await follow(server, room)
        begun = room.query("total")
        waiting = begin(query)
        tell(server, ref, at=4, tag="t2", rows=["unread"])
        await take_all(room)
        await soon(room.close())
        assert await soon(anext(unread)) == ["unread"]
        for each in (waiting, anext(unread), anext(begun)):
            with pytest.raises(Closed, match=r"^the client was closed \(1000\)$"):
                await soon(each)
        with pytest.raises(Closed):
            room.query("total")
        assert await is_over(unread)
        await query.aclose()


async def test_a_final_close_is_raised(server: Server) -> None:
    async with connect(server.url) as room:
        query, _ = await follow(server, room)
        waiting = begin(query)
        await server.close_all(4410)
        with pytest.raises(Closed, match="the thread was destroyed"):
            await soon(waiting)
        assert await is_over(query)
