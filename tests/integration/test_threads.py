"""Threads end to end: handles, chains of calls, what is running for whom, sleep, tags and the order on the wire."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.integration.socket_client import TIMEOUT, connected, http
from tests.running import running

from plait import (
    Connection,
    InvalidState,
    MemoryStore,
    NotFound,
    Plait,
    Reject,
    Source,
    Stream,
    Thread,
    TooLarge,
    Unavailable,
    current,
    rpc,
)


class Room(Thread[dict[str, Any]]):
    """Keeps a number, and a diary of what happened to this instance."""

    initial_state = {"n": 0}  # noqa: RUF012

    def __init__(self) -> None:
        self._diary: list[Any] = []

    def validate_state_change(self, next_state: dict[str, Any], source: Source) -> None:
        if next_state["n"] < 0:
            raise Reject("negative")

    def on_start(self) -> None:
        self._note("on_start")

    def on_stop(self) -> None:
        self.set_state(lambda state: {**state, "stops": state.get("stops", 0) + 1})

    def connection_tags(self, connection: Connection, request: Request) -> list[str]:
        return request.query_params.getlist("tag")

    async def on_connect(self, connection: Connection, request: Request) -> None:
        connection.send("first")
        for _ in range(5):
            await asyncio.sleep(0)
        self._note("on_connect")
        connection.send("second")

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        self._note("on_message")
        connection.send({"echo": str(data)})

    def on_state_changed(self, state: dict[str, Any], source: Source) -> None:
        self._note("on_state_changed")

    def on_request(self, request: Request) -> Response:
        self._note("on_request")
        return JSONResponse(self._diary)

    @rpc
    def diary(self) -> list[Any]:
        self._note("rpc")
        return self._diary

    @rpc
    def add(self, n: int = 1) -> int:
        self.set_state(lambda state: {**state, "n": state["n"] + n})
        after: int = self.state["n"]
        return after

    @rpc(name="addTwice")
    async def add_twice(self, n: int) -> int:
        self.set_state(lambda state: {**state, "n": state["n"] + n})
        return await self.set_state(lambda state: {**state, "n": state["n"] + n})

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            self.set_state({"n": n})
            yield n

    @rpc
    async def tell(self, stream: Stream, words: list[str]) -> None:
        for word in words:
            stream.send(word)
        stream.end(len(words))

    @rpc
    def fail(self) -> None:
        raise KeyError("lost")

    @rpc
    def shout(self, text: str, tag: str | None = None) -> list[str]:
        if tag is None:
            caller = current().connection
            self.broadcast(text, without=[] if caller is None else [caller])
        for connection in self.connections(tag) if tag is not None else ():
            connection.send(text)
        return [connection.id for connection in self.connections(tag)]

    @rpc
    def mix(self) -> str:
        """Send messages between changes of the state."""
        connection = current().connection
        assert connection is not None
        for n in range(1, 4):
            connection.send(f"before {n}")
            self.set_state({"n": n})
            connection.send(f"after {n}")
        return "done"

    @rpc
    async def relay(self, names: list[str]) -> int:
        """Call the first of other threads, which calls the next; the last one adds."""
        if not names:
            return self.add()
        result: int = await self.thread(Room, names[0]).call(Room.relay, names[1:])
        return result

    @rpc
    async def ask_twice(self, name: str) -> list[int]:
        other = self.thread(Room, name)
        return [await other.call(Room.relay, [self.name]), await other.call(Room.relay, [self.name])]

    def _note(self, what: str) -> None:
        found = current()
        assert found.thread is self
        id = None if found.connection is None else found.connection.id
        self._diary.append([what, id, None if found.request is None else found.request.method])


class Quiet(Thread[Any]):
    """Has no state and no hooks."""

    @rpc
    def hello(self) -> str:
        return f"hello from {self.name}"


@pytest.fixture
async def app() -> AsyncIterator[Plait]:
    async with Plait(Room, Quiet, store=MemoryStore()) as app:
        yield app


# Handles


async def test_a_handle_calls_rpcs_and_changes_the_state(app: Plait) -> None:
    room = app.thread(Room, "one")
    assert room.name == "one"
    assert await room.state() == {"n": 0}
    assert await room.call(Room.add, 2) == 2
    assert await room.call(Room.add_twice, n=3) == 3
    assert await room.call("addTwice", 1) == 5
    assert await room.set_state({"n": 20}) == 6
    assert await room.set_state(lambda state: {"n": state["n"] + 1}) == 7
    assert await room.state() == {"n": 21}
    assert [n async for n in room.stream(Room.count, 3)] == [0, 1, 2]
    assert await room.call("count", 2) == [0, 1]
    assert await app.thread(Quiet, "Ünïcode / name").call(Quiet.hello) == "hello from Ünïcode / name"
    assert await app.thread(Quiet, "one").state() is None


async def test_a_stream_parameter_may_come_first(app: Plait) -> None:
    assert await app.thread(Room, "one").call("tell", ["a", "b"]) == ["a", "b"]
    async with running(Plait(Room, store=MemoryStore())) as address, connected(address, "/threads/room/one") as client:
        assert await client.call("tell", ["a", "b"]) == ["a", "b", 2]


async def test_a_handle_raises_what_went_wrong(app: Plait) -> None:
    room = app.thread(Room, "one")
    with pytest.raises(Reject, match="negative"):
        await room.call(Room.add, -1)
    with pytest.raises(Reject, match="negative"):
        await room.set_state({"n": -1})
    with pytest.raises(InvalidState):
        await room.set_state({"n": object()})
    with pytest.raises(TooLarge):
        await room.set_state({"n": 1, "text": "x" * 2_000_000})
    with pytest.raises(KeyError, match="lost"):
        await room.call(Room.fail)
    with pytest.raises(AttributeError, match="no rpc 'missing'"):
        getattr(room, "missing")  # noqa: B009
    with pytest.raises(NotFound):
        app.thread(Room, "")
    assert await room.state() == {"n": 0}


async def test_many_handles_at_once_lose_no_change(app: Plait) -> None:
    results = await asyncio.gather(*(app.thread(Room, "one").call(Room.add) for _ in range(500)))
    assert sorted(results) == [*range(1, 501)]
    assert await app.thread(Room, "one").state() == {"n": 500}


async def test_a_caller_who_goes_away_does_not_disturb_the_others(app: Plait) -> None:
    room = app.thread(Room, "one")
    calls = [asyncio.create_task(room.call(Room.add)) for _ in range(10)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.wait(calls)
    assert all(not call.cancelled() for call in calls[1::2])
    assert await room.call(Room.add) <= 11


async def test_a_handle_of_an_app_that_does_not_run_says_so() -> None:
    app = Plait(Room, store=MemoryStore())
    with pytest.raises(Unavailable, match="async with app"):
        await app.thread(Room, "one").state()
    async with app:
        assert await app.thread(Room, "one").call(Room.add) == 1
    with pytest.raises(Unavailable):
        await app.thread(Room, "one").state()
    with pytest.raises(NotFound, match="not one of the classes"):
        app.thread(type("Other", (Thread,), {}), "one")


async def test_sockets_see_what_handles_do(tmp_path: Path) -> None:
    app = Plait(Room, store=f"sqlite:///{tmp_path}/plait.db")
    async with running(app) as address, connected(address, "/threads/room/one") as client:
        await client.until_state({"n": 0})
        assert await app.thread(Room, "one").call(Room.add, 4) == 4
        await client.until_state({"n": 4})
        await client.push({"n": 9})
        assert await client.call("add") == 10
        assert await app.thread(Room, "one").state() == {"n": 10}


# Chains of calls


@pytest.mark.parametrize("names", [["a"], ["b", "a"], ["b", "a", "b", "a"], ["b", "c", "a", "c", "b"]], ids="-".join)
async def test_a_chain_that_comes_back_to_its_thread_does_not_wait_for_itself(app: Plait, names: list[str]) -> None:
    assert await asyncio.wait_for(app.thread(Room, "a").call(Room.relay, names), TIMEOUT) == 1
    assert await app.thread(Room, names[-1]).state() == {"n": 1}


async def test_a_chain_may_come_back_more_than_once(app: Plait) -> None:
    assert await asyncio.wait_for(app.thread(Room, "a").call(Room.ask_twice, "b"), TIMEOUT) == [1, 2]


async def test_many_chains_through_other_threads_end(app: Plait) -> None:
    calls = (app.thread(Room, "a").call(Room.relay, [f"b{n}", "a"]) for n in range(50))
    results = await asyncio.wait_for(asyncio.gather(*calls), TIMEOUT)
    assert sorted(results) == [*range(1, 51)]


# What is running


async def test_current_tells_hooks_and_rpcs_what_they_are_for() -> None:
    async with (
        running(Plait(Room, store=MemoryStore())) as address,
        connected(address, "/threads/room/one", query={"_pk": "ada"}) as client,
        http(address) as web,
    ):
        await client.send("hello")
        await client.until(lambda client: len(client.messages) == 3)
        await client.push({"n": 1})
        diary = await client.call("diary")
        id = diary[1][1]
        assert diary[:3] == [["on_start", None, None], ["on_connect", id, "GET"], ["on_message", id, None]]
        assert diary[-1] == ["rpc", id, None]
        diary = (await web.get("/threads/room/one/page")).json()
        assert diary[-1] == ["on_request", None, "GET"]
        assert ["on_state_changed", id, None] in diary
        answer = await web.post("/threads/room/one/rpc/diary")
        what, connection, method = answer.json()["result"][-1]
        assert (what, connection[:5], method) == ("rpc", "http-", "POST")


async def test_the_id_of_a_connection_stays_the_same_and_does_not_tell_what_the_client_is_known_by() -> None:
    async with running(Plait(Room, store=MemoryStore())) as address:
        ids = []
        for key in ("ada", "ada", "eve"):
            async with connected(address, "/threads/room/one", query={"_pk": key}) as client:
                ids += await client.call("shout", "")
        assert ids[0] == ids[1] != ids[2]
        async with connected(address, "/threads/room/one", query={"_pk": ids[0]}) as client:
            assert ids[0] not in await client.call("shout", "")


def test_current_outside_of_a_turn_raises() -> None:
    with pytest.raises(LookupError):
        current()


# Sleep


async def test_an_idle_thread_is_stopped_and_wakes_with_its_state(tmp_path: Path) -> None:
    kind, stopped = sleepy()
    async with running(Plait(kind, store=f"sqlite:///{tmp_path}/plait.db")) as address:
        async with connected(address, "/threads/sleepy/one") as client:
            assert await client.call("add", 5) == 5
        assert await asyncio.wait_for(stopped.get(), TIMEOUT) == "one"
        async with connected(address, "/threads/sleepy/one") as client:
            await client.until_state({"n": 5, "stops": 1})
            assert [what for what, *_ in await client.call("diary")] == ["on_start", "on_connect", "rpc"]


async def test_a_thread_with_a_socket_is_not_stopped() -> None:
    kind, stopped = sleepy()
    app = Plait(kind, store=MemoryStore())
    async with running(app) as address, connected(address, "/threads/sleepy/awake") as client:
        assert await client.call("add") == 1
        await app.thread(kind, "asleep").call(Room.add)
        assert await asyncio.wait_for(stopped.get(), TIMEOUT) == "asleep"
        assert await client.call("add") == 2
        assert client.state == {"n": 2}
        assert stopped.empty()


def sleepy() -> tuple[type[Room], asyncio.Queue[str]]:
    """Return a kind of Room, and a queue of the names of those that were stopped."""
    stopped: asyncio.Queue[str] = asyncio.Queue()

    class Sleepy(Room):
        idle_timeout = 0.1

        def on_stop(self) -> None:
            super().on_stop()
            stopped.put_nowait(self.name)

    return Sleepy, stopped


# Messages


async def test_tags_choose_connections() -> None:
    async with (
        running(Plait(Room, store=MemoryStore())) as address,
        connected(address, "/threads/room/one?tag=red&tag=big") as first,
        connected(address, "/threads/room/one?tag=red") as second,
        connected(address, "/threads/room/one") as third,
    ):
        assert len(await third.call("shout", "to red", "red")) == 2
        assert len(await third.call("shout", "to big", "big")) == 1
        assert await third.call("shout", "to nobody", "blue") == []
        assert len(await third.call("shout", "to others")) == 3
        await first.until(lambda first: first.messages == ["first", "second", "to red", "to big", "to others"])
        await second.until(lambda second: second.messages == ["first", "second", "to red", "to others"])
        assert third.messages == ["first", "second"]


async def test_messages_and_states_leave_in_the_order_of_the_code(tmp_path: Path) -> None:
    app = Plait(Room, store=f"sqlite:///{tmp_path}/plait.db")
    async with running(app) as address, connected(address, "/threads/room/one") as client:
        await client.until(lambda client: client.messages == ["first", "second"])
        start = len(client.received)
        assert await client.call("mix") == "done"
        seen = [
            frame["state"]["n"] if isinstance(frame, dict) and frame["type"] == "cf_agent_state" else data
            for data, frame in zip(client.received[start:-1], client.frames[start:-1], strict=True)
        ]
        assert seen == ["before 1", 1, "after 1", "before 2", 2, "after 2", "before 3", 3, "after 3"]
        assert client.frames[-1]["result"] == "done"


async def test_no_message_is_handled_before_on_connect_has_finished() -> None:
    async with running(Plait(Room, store=MemoryStore())) as address:
        for _ in range(20):
            async with connected(address, "/threads/room/one") as client:
                await client.send("early")
                answer = await client.begin("diary")
                await client.until(lambda client: len(client.messages) == 3)
                assert client.messages == ["first", "second", '{"echo":"early"}']
                diary = await asyncio.wait_for(answer, TIMEOUT)
                assert [what for what, *_ in diary[-3:]] == ["on_connect", "on_message", "rpc"]
