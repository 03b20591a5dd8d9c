"""A client that joins without the state."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.cases import each_case
from tests.client.querying import begin, next_call, reconnect, soon, take_all, tell
from tests.client.serving import Server

from plait_client import Refused, Room, Session, connect, connect_sync
from plait_schemas import messages
from plait_schemas.patch import Op

CHANGES: list[Callable[[Any], object]] = [
    lambda room: room.set({"n": 2}),
    lambda room: room.set(lambda state: state),
    lambda room: room.update("/n", 2),
    lambda room: room.update("", {"n": 2}),
    lambda room: room.splice("/tags/0", 0, insert="x"),
    lambda room: room.splice("/tags/0", 0),
    lambda room: room.append("/tags/0", "x"),
    lambda room: room.edit(),
    lambda room: room.push(None, [Op("replace", "", 1)]),
]


async def test_the_server_is_told_and_the_state_is_none(server: Server) -> None:
    async with connect(server.url, client="me", state=False) as room:
        assert server.received == [messages.Join("me", state=False)]
        assert (room.state, room.confirmed, room.epoch, room.version, room.status) == (None, None, "e", 0, "online")
        server.peer.change([Op("replace", "/n", 5)])
        await reconnect(server)
        assert await soon(room.call("add", 1, 2)) == 3
        assert server.frames(messages.Join) == [messages.Join("me", state=False)] * 2
        assert (room.state, room.version) == (None, 1)


async def test_a_client_joins_with_the_state_by_default(server: Server) -> None:
    async with connect(server.url, client="me") as room, connect(server.url, client="you", state=True):
        assert server.received == [messages.Join("me"), messages.Join("you")]
        assert room.state["n"] == 1


@each_case("change", CHANGES)
async def test_no_change_is_sent(server: Server, change: Any) -> None:
    async with connect(server.url, state=False) as room:
        with pytest.raises(Refused, match=r"^the thread was opened without its state \(bad_state\)$"):
            change(room)
        await take_all(room)
        assert room.pending == 0
    assert server.frames(messages.Push) == []


def test_a_session_takes_no_push() -> None:
    session = Session("c1", now=lambda: 0.0, has_state=False)
    session.open()
    session.receive(messages.Joined("s1", "note/a", "e", 4))
    assert session.take_frames() == [messages.Join("c1", state=False)]
    with pytest.raises(Refused, match="bad_state"):
        session.push([Op("replace", "", 1)])
    assert session.take_frames() == []
    assert (session.status, session.version, session.pending) == ("online", 4, [])


async def test_who_would_wait_for_the_state_is_told(server: Server) -> None:
    async with connect(server.url, state=False) as room:
        with pytest.raises(Refused, match="bad_state"):
            await soon(room.wait_for(lambda state: state is not None))
        with pytest.raises(Refused, match="bad_state"):
            room.changes()


def test_no_change_is_sent_without_asyncio(other_server: Server) -> None:
    with connect_sync(other_server.url, state=False) as room:
        assert room.state is None
        for change in CHANGES[:-1]:
            with pytest.raises(Refused, match="bad_state"):
                change(room)
        with pytest.raises(Refused, match="bad_state"):
            room.changes()
        assert room.call("add", 1, 2) == 3
    assert other_server.frames(messages.Push) == []


async def test_all_else_is_as_always(server: Server) -> None:
    async with connect(server.url, state=False) as room:
        events: asyncio.Queue[Any] = asyncio.Queue()
        room.on_event("greeting", events.put_nowait)
        room.on_message(events.put_nowait)
        room.send({"event": "greeting"})
        assert await soon(events.get()) == {"event": "greeting"}
        room.send(7)
        assert await soon(events.get()) == 7
        seen = asyncio.Event()
        room.on_presence(lambda presence: seen.set())
        room.set_presence({"at": 3})
        await soon(seen.wait())
        assert await soon(room.call("set_n", 7)) is None
        assert [number async for number in room.stream("count", 3)] == [0, 1, 2]
        assert server.peer.state["n"] == 7


async def test_the_version_rises_with_the_results_of_queries(server: Server) -> None:
    async with connect(server.url, state=False) as room, connect(server.url) as other:
        query = room.query("total")
        waiting = begin(query)
        await next_call(server)
        tell(server, 1, at=41, tag="n1", rows=7)
        assert await soon(waiting) == 7
        assert room.version == 41
        tell(server, 1, at=43, error={"code": "sql_error", "message": "interrupted"})
        tell(server, 1, at=42, tag="n1")
        await take_all(room)
        assert (room.version, room.state) == (43, None)
        await check_untouched(server, other)


async def check_untouched(server: Server, other: Room[Any]) -> None:
    """Check that a client with the state knows its version from the state alone."""
    follower = begin(other.query("total"))
    await next_call(server, 2)
    tell(server, 1, at=50, tag="n2", rows=8)
    assert await soon(follower) == 8
    assert other.version == 0
