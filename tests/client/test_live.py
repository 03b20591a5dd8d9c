"""The ends of a client, after which no caller waits forever."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from tests.client.serving import TIMEOUT, Server

from plait_client import ClientError, Closed, Unanswered, connect

T = TypeVar("T")


async def soon(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable, within a timeout."""
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


async def test_a_client_whose_task_is_cancelled_by_others_tells_all_who_wait(server: Server) -> None:
    server.is_holding = True
    before = asyncio.all_tasks()
    async with connect(server.url) as room:
        (task,) = [task for task in asyncio.all_tasks() - before if task.get_name() == "plait client"]
        pushed = room.update("/n", 2)
        waiting = asyncio.create_task(room.wait_for(lambda state: state["n"] == 99))
        changes = room.changes()
        await asyncio.sleep(0)
        task.cancel()
        for each in (pushed, waiting, anext(changes), room.call("add", 1)):
            with pytest.raises(ClientError, match="was cancelled"):
                await soon(each)
        assert room.status == "closed"
        with pytest.raises(ClientError, match="was cancelled"):
            room.set({})


async def test_who_waits_is_told_even_when_the_block_is_cancelled_while_it_closes(server: Server) -> None:
    server.is_holding = True
    rooms: asyncio.Queue[Any] = asyncio.Queue()

    async def use() -> None:
        async with connect(server.url) as room:
            rooms.put_nowait(room)
            await asyncio.Event().wait()

    using = asyncio.create_task(use())
    room = await soon(rooms.get())
    server.is_deaf = True
    pushed = room.update("/n", 2)
    waiting = asyncio.create_task(room.wait_for(lambda state: state["n"] == 99))
    for _ in range(3):
        await asyncio.sleep(0)
        using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(using)
    with pytest.raises(Unanswered):
        await soon(pushed)
    with pytest.raises(Closed):
        await soon(waiting)
    assert room.status == "closed"
    server.is_deaf = False
    await server.close_all()
