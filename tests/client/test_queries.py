"""The errors of queries that a client follows, and their calls over connections."""

import asyncio

import msgspec
import pytest
from tests.client.querying import (
    INK,
    ORDERS,
    TEA,
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

from plait_client import CallError, TooLarge, connect
from plait_schemas import messages

# Errors


async def test_an_error_is_raised_once_and_the_query_goes_on(server: Server) -> None:
    async with connect(server.url) as room:
        query, ref = await follow(server, room)
        fail(server, ref, at=5)
        with pytest.raises(CallError, match=r"^no such table \(sql_error\)$"):
            await soon(anext(query))
        assert query.at == 3
        tell(server, ref, at=6, tag="t2", ops=[{"op": "remove", "path": "/1"}])
        assert await soon(anext(query)) == [TEA]
        assert query.at == 6
    assert len(server.frames(messages.Call)) == 1
    assert server.frames(messages.Cancel) == []


async def test_the_same_result_is_given_again_after_an_error_that_was_raised(server: Server) -> None:
    async with connect(server.url) as room:
        query, ref = await follow(server, room)
        fail(server, ref)
        with pytest.raises(CallError):
            await soon(anext(query))
        tell(server, ref, at=7, tag="t1")
        assert await soon(anext(query)) == ORDERS
        assert query.at == 7
        # This error is not seen, and so the result after it is no news.
        fail(server, ref)
        tell(server, ref, at=8, tag="t1")
        await take_all(room)
        waiting = begin(query)
        tell(server, ref, at=9, tag="t2", rows=[])
        assert await soon(waiting) == []


async def test_a_result_before_an_error_is_not_lost(server: Server) -> None:
    async with connect(server.url) as room:
        query, ref = await follow(server, room)
        tell(server, ref, at=4, tag="t2", rows=["unread"])
        fail(server, ref, "first")
        fail(server, ref, "second")
        await take_all(room)
        assert await soon(anext(query)) == ["unread"]
        with pytest.raises(CallError, match="second"):
            await soon(anext(query))
        fail(server, ref, "second")
        with pytest.raises(CallError, match="second"):
            await soon(anext(query))


async def test_the_end_by_the_server_is_raised_and_final(server: Server) -> None:
    async with connect(server.url) as room:
        query, ref = await follow(server, room)
        tell(server, ref, at=4, tag="t2", rows=["last"])
        server.send_all(messages.Error("forbidden", "this user may not call", ref))
        await take_all(room)
        assert await soon(anext(query)) == ["last"]
        with pytest.raises(CallError, match="this user may not call") as caught:
            await soon(anext(query))
        assert caught.value.code == "forbidden"
        await reconnect(server)
        assert await soon(room.call("add", 1, 2)) == 3
        assert await is_over(query)
        await query.aclose()
    assert [call.method for call in server.frames(messages.Call)] == ["open_orders", "add"]
    assert server.frames(messages.Cancel) == []


@pytest.mark.parametrize("is_last", [True, False])
async def test_a_method_that_is_not_a_query_is_not_called_twice(server: Server, is_last: bool) -> None:
    async with connect(server.url) as room:
        query = room.query("begin")
        waiting = begin(query)
        ref = (await next_call(server)).ref
        server.send_all(messages.Result(ref, is_last, msgspec.Raw(b'"begun"')))
        with pytest.raises(CallError, match=r"^begin is not a query \(invalid_arguments\)$"):
            await soon(waiting)
        assert await is_over(query)
        await take_all(room)
        assert server.frames(messages.Cancel) == ([] if is_last else [messages.Cancel(ref)])
        assert len(server.frames(messages.Call)) == 1


async def test_arguments_that_cannot_be_sent_are_refused(server: Server) -> None:
    server.peer.max_frame = 1000
    async with connect(server.url) as room:
        with pytest.raises(TypeError, match="the arguments of a query are a list"):
            room.query("open_orders", "c1")
        with pytest.raises(ValueError, match="not a number"):
            room.query("open_orders", [float("nan")])
        query = room.query("open_orders", ["x" * 1000])
        with pytest.raises(TooLarge):
            await soon(anext(query))
        assert await is_over(query)
        await take_all(room)
    assert server.frames(messages.Call) == []


# Over connections


async def test_a_query_goes_on_over_a_lost_connection_from_its_last_result(server: Server) -> None:
    async with connect(server.url) as room:
        query, _ = await follow(server, room)
        waiting = begin(query)
        await server.close_all()
        again = await next_call(server, 2)
        assert again == messages.Call(2, "open_orders", [msgspec.Raw(b'"c1"')], {}, "t1")
        tell(server, 2, at=9, tag="t1")
        await take_all(room)
        assert not waiting.done()
        tell(server, 2, at=10, tag="t2", ops=[{"op": "remove", "path": "/0"}])
        assert await soon(waiting) == [INK]
        assert query.at == 10


async def test_the_server_sends_the_whole_result_if_it_does_not_know_the_last_one(server: Server) -> None:
    async with connect(server.url) as room:
        query, _ = await follow(server, room)
        await server.close_all()
        assert (await next_call(server, 2)).have == "t1"
        tell(server, 2, at=1, tag="e1", rows=["other"])
        assert await soon(anext(query)) == ["other"]
        # A difference that does not fit, and a result that is not known.
        for chunk in ({"ops": [{"op": "remove", "path": "/7"}]}, {}):
            count = len(server.frames(messages.Call))
            waiting = begin(query)
            tell(server, count, at=2, tag="unknown", **chunk)
            assert (await next_call(server, count + 1)).have == ""
            assert server.frames(messages.Cancel)[-1] == messages.Cancel(count)
            tell(server, count + 1, at=2, tag="e2", rows=["whole"])
            assert await soon(waiting) == ["whole"]


async def test_a_query_that_begins_without_a_connection_waits_for_one(server: Server) -> None:
    async with connect(server.url) as room:
        server.refuses = 1013
        await reconnect(server)
        query = room.query("open_orders")
        waiting = begin(query)
        closed = begin(other := room.query("total"))
        await asyncio.sleep(0)
        await other.aclose()
        server.refuses = None
        assert (await next_call(server)).method == "open_orders"
        tell(server, 1, at=1, tag="t1", rows=0)
        assert await soon(waiting) == 0
        with pytest.raises(StopAsyncIteration):
            await soon(closed)
    assert len(server.frames(messages.Call)) == 1
