"""A conversation in the Cloudflare Agents protocol, without a socket."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.fakes import TroubledStore
from tests.server.rooms import Client, House, open_house
from tests.told import check_internal

from plait.actor.connection import Connection, Rights, Source
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.errors import Reject
from plait.limits import Limits
from plait.web.fairness import FairScheduler

PATIENCE = 10.0
IDENTITY = {"type": "cf_agent_identity", "name": "one", "agent": "room"}
MCP = {
    "type": "cf_agent_mcp_servers",
    "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []},
}
REJECTED = {"type": "cf_agent_state_error", "error": "State update rejected"}
READONLY = {"type": "cf_agent_state_error", "error": "Connection is readonly"}


def state(value: Any) -> dict[str, Any]:
    return {"type": "cf_agent_state", "state": value}


def result(id: str, *value: Any, done: bool = True) -> dict[str, Any]:
    found = {"type": "rpc", "id": id, "success": True, "done": done}
    return {**found, "result": value[0]} if value else found


def failure(id: str, error: str) -> dict[str, Any]:
    return {"type": "rpc", "id": id, "success": False, "error": error}


class Room(Thread[Any]):
    initial_state = 0

    def on_start(self) -> None:
        self.heard: list[Any] = []
        self.gate = asyncio.Event()

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if next_state == "forbidden":
            raise Reject("that one is forbidden", path="/secret")
        if next_state == "broken":
            raise ZeroDivisionError("secret")

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        self.heard.append(data)
        connection.send("heard")

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)

    @rpc
    def count(self) -> None:
        self.set_state(lambda state: state + 1)

    @rpc
    def nothing(self) -> int | None:
        return None

    @rpc
    def look(self) -> Any:
        return self.state

    @rpc
    def fail(self) -> None:
        raise LookupError("no such thing")

    @rpc
    def leak(self) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/etc/secret")

    @rpc
    def odd(self) -> Any:
        return object()

    @rpc
    async def wait(self) -> str:
        await self.gate.wait()
        return "waited"

    @rpc(concurrent=True)
    async def wait_beside(self) -> str:
        await self.gate.wait()
        return "waited beside"

    @rpc
    def open_gate(self) -> None:
        self.gate.set()

    @rpc
    async def stream(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            yield n
        if to > 2:
            raise LookupError("too many")

    @rpc
    async def stream_states(self, to: int) -> AsyncIterator[int]:
        for _ in range(to):
            self.set_state(lambda state: state + 1)
            yield self.state

    @rpc
    async def stream_by_hand(self, stream: Stream, value: Any) -> None:
        stream.send(value)
        stream.end("last")

    @rpc
    async def stream_odd(self) -> AsyncIterator[Any]:
        yield 1
        yield object()
        yield 3

    @rpc
    async def stream_and_fail(self, stream: Stream) -> None:
        stream.send(1)
        stream.error("by hand")

    def hidden(self) -> None:
        pass


class Guarded(Room):
    kind = "room"

    def connection_tags(self, connection: Connection, request: Request) -> list[str]:
        return [connection.id[0], "all"]

    def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        return connection.id.startswith("reader")

    def should_send_protocol_messages(self, connection: Connection, request: Request) -> bool:
        return not connection.id.startswith("plain")


async def turns_end(house: House, cls: type[Room]) -> None:
    """Wait until the thread has no turns, though what they changed may be on its way to the disk."""
    actor = await house.actor(cls)
    async with asyncio.timeout(PATIENCE):
        while not actor.turns.mailbox.is_idle or actor.turns._concurrent:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def submitted(store: TroubledStore, count: int) -> None:
    """Wait until a store has been given so many writes."""
    async with asyncio.timeout(PATIENCE):
        while len(store.submitted) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


# Joining


async def test_a_client_is_sent_its_identity_the_state_and_the_mcp_servers_in_this_order() -> None:
    async with open_house(Room) as house:
        client = Client(await house.actor(Room), "a")
        client.open()
        assert await client.joined() == [{**IDENTITY, "stateFollows": True}, state(0), MCP]


async def test_what_on_connect_sends_comes_after_that_and_before_any_answer() -> None:
    class Greeting(Room):
        kind = "room"

        async def on_connect(self, connection: Connection, request: Request) -> None:
            connection.send({"hello": connection.id})
            await self.gate.wait()
            self.broadcast("everybody")

    async with open_house(Greeting) as house:
        actor = await house.actor(Greeting)
        client = Client(actor, "a")
        client.open()
        client.send("too early")
        client.call("1", "look")
        assert (await client.joined())[1:] == [state(0), MCP]
        assert await client.next() == {"hello": "a"}
        assert actor.thread.heard == []  # type: ignore[attr-defined]
        actor.thread.gate.set()  # type: ignore[attr-defined]
        assert [await client.next() for _ in range(3)] == ["everybody", "heard", result("1", 0)]


async def test_a_state_that_is_pushed_before_on_connect_has_finished_waits_for_it() -> None:
    class Slow(Room):
        kind = "room"

        async def on_connect(self, connection: Connection, request: Request) -> None:
            await self.gate.wait()
            await self.set_state("set by on_connect")

    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        client, other = Client(actor, "a"), Client(actor, "b")
        client.open()
        client.push("pushed")
        other.open()
        assert await client.joined() == [{**IDENTITY, "stateFollows": True}, state(0), MCP]
        assert actor.thread.state == 0
        actor.thread.gate.set()  # type: ignore[attr-defined]
        assert await client.next() == state("set by on_connect")
        await actor.wait_until_idle()
        assert [each["state"] for each in other.transport.sent if each["type"] == "cf_agent_state"][-1] != 0


async def test_a_thread_without_state_sends_none_and_one_whose_state_is_null_does() -> None:
    class Empty(Thread[Any]):
        kind = "room"

    async with open_house(Empty) as house:
        actor = await house.actor(Empty)
        first = Client(actor, "a")
        first.open()
        assert await first.joined() == [IDENTITY, MCP]
        first.push(None)
        await house.handle(Empty).state()
        second = Client(actor, "b")
        second.open()
        assert await second.joined() == [{**IDENTITY, "stateFollows": True}, state(None), MCP]


async def test_a_thread_that_keeps_its_identity_to_itself_sends_the_rest() -> None:
    class Quiet(Room):
        kind = "room"
        send_identity = False

    async with open_house(Quiet) as house:
        client = Client(await house.actor(Quiet), "a")
        client.open()
        assert await client.joined() == [state(0), MCP]


async def test_a_client_that_joins_while_a_change_is_on_its_way_gets_the_durable_state_first() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        house.store.is_held = True
        commit = actor.thread.set_state(1)
        client = Client(actor, "a")
        client.open()
        assert (await client.joined())[1] == state(0)
        house.store.resume()
        assert await client.next() == state(1)
        assert await commit == 1


@each_case("hook", ["on_connect", "connection_tags", "should_be_readonly"])
async def test_a_hook_that_raises_when_a_client_joins_closes_the_socket_and_says_nothing(hook: str) -> None:
    def fail(*_: object) -> None:
        raise LookupError("secret")

    failing = type("Room", (Room,), {hook: fail})
    async with open_house(failing) as house:
        actor = await house.actor(failing)
        client = Client(actor, "a")
        client.open()
        while await client.next() is not None:
            pass
        assert client.transport.closed is not None
        code, reason = client.transport.closed
        assert code == 1011
        assert "secret" not in reason
        assert "secret" not in str(client.transport.sent)
        await actor.wait_until_idle()
        assert len(actor.sockets) == 0


async def test_a_client_that_is_gone_before_its_turn_to_join_never_joins() -> None:
    async with open_house(Guarded) as house:
        actor = await house.actor(Guarded)
        first = await house.join(Guarded, "a")
        first.call("1", "wait")
        late = Client(actor, "b")
        late.open()
        late.leave(1006)
        actor.thread.gate.set()  # type: ignore[attr-defined]
        assert await first.next() == result("1", "waited")
        await actor.wait_until_idle()
        assert list(actor.sockets) == [first.connection]


async def test_a_client_that_joins_when_the_server_is_ending_is_closed_with_1013() -> None:
    async with open_house(Room) as house:
        client = Client(await house.actor(Room), "a")
        await house.node.drain(PATIENCE)
        client.open()
        assert await client.next() is None
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1013


async def test_a_client_that_is_gone_while_it_joins_is_taken_out_again() -> None:
    class Slow(Room):
        kind = "room"

        async def connection_tags(self, connection: Connection, request: Request) -> list[str]:
            self.joining.set()
            await self.gate.wait()
            return []

        def on_start(self) -> None:
            super().on_start()
            self.joining = asyncio.Event()

    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        client = Client(actor, "a")
        client.open()
        async with asyncio.timeout(PATIENCE):
            await actor.thread.joining.wait()  # type: ignore[attr-defined]
        client.leave()
        actor.thread.gate.set()  # type: ignore[attr-defined]
        await actor.wait_until_idle()
        assert len(actor.sockets) == 0


class Doorkeeper(Room):
    """Waits with each connection, then closes it, accepts it, or raises."""

    kind = "room"
    verdict: str

    def on_start(self) -> None:
        super().on_start()
        self.asked = asyncio.Event()
        self.greeted: list[str] = []

    async def think(self, connection: Connection) -> None:
        self.asked.set()
        await self.gate.wait()
        if self.verdict == "close":
            connection.close(4403, "you may not")
        elif self.verdict == "raise":
            raise PermissionError("you may not")

    def on_connect(self, connection: Connection, request: Request) -> Any:
        self.greeted.append(connection.id)
        return self.think(connection)


class Asking(Doorkeeper):
    kind = "room"

    async def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        await self.think(connection)
        return False

    def on_connect(self, connection: Connection, request: Request) -> None:
        self.greeted.append(connection.id)


async def at_the_door(house: House, cls: type[Doorkeeper], verdict: str) -> tuple[Client, Doorkeeper]:
    """Return a client that has sent a state, a call and a message while a hook thinks about it."""
    actor = await house.actor(cls)
    thread = actor.thread
    assert isinstance(thread, Doorkeeper)
    thread.verdict = verdict
    client = Client(actor, "a")
    client.open()
    client.push(1)
    client.call("1", "add", 10)
    client.send("hello")
    async with asyncio.timeout(PATIENCE):
        await thread.asked.wait()
    return client, thread


@each_case("is_storing", [False, True])
@each_case("cls", [Doorkeeper, Asking])
async def test_nothing_is_done_of_what_a_client_sent_before_a_hook_closed_it(
    cls: type[Doorkeeper], *, is_storing: bool
) -> None:
    async with open_house(cls) as house:
        client, thread = await at_the_door(house, cls, "close")
        house.store.is_held = is_storing
        changed = thread.set_state(5)
        thread.gate.set()
        await turns_end(house, cls)
        client.push(2)
        client.send("still here")
        house.store.resume()
        await changed
        await turns_end(house, cls)
        assert client.transport.closed == (4403, "you may not")
        assert thread.heard == []
        assert thread.state == 5
        assert thread.greeted == (["a"] if cls is Doorkeeper else [])
        assert not client.transport.is_paused


@each_case("verdict", ["let in", "close", "raise"])
async def test_nothing_is_done_of_what_a_client_sent_that_was_gone_before_it_could_join(verdict: str) -> None:
    async with open_house(Asking) as house:
        client, thread = await at_the_door(house, Asking, verdict)
        client.leave()
        thread.gate.set()
        await turns_end(house, Asking)
        assert thread.greeted == []
        assert thread.heard == []
        assert thread.state == 0


@each_case(("verdict", "is_done"), [("let in", True), ("close", False), ("raise", False)])
async def test_what_a_client_sent_that_left_while_on_connect_ran_is_done_if_that_let_it_in(
    verdict: str, *, is_done: bool
) -> None:
    async with open_house(Doorkeeper) as house:
        client, thread = await at_the_door(house, Doorkeeper, verdict)
        client.leave()
        thread.gate.set()
        await turns_end(house, Doorkeeper)
        assert thread.heard == (["hello"] if is_done else [])
        assert thread.state == (11 if is_done else 0)


async def test_tags_and_rights_are_asked_for_when_a_client_joins() -> None:
    async with open_house(Guarded) as house:
        writer, reader = await house.join(Guarded, "writer"), await house.join(Guarded, "reader")
        assert writer.connection.tags == ("w", "all")
        thread = (await house.actor(Guarded)).thread
        assert thread.connections("r") == [reader.connection]
        assert thread.connections("all") == [writer.connection, reader.connection]
        assert (writer.connection.readonly, reader.connection.readonly) == (False, True)


# State


async def test_a_clients_state_goes_to_the_others_and_not_back_to_it() -> None:
    async with open_house(Room) as house:
        a, b, c = [await house.join(Room, id) for id in "abc"]
        a.push({"n": 1})
        assert await b.next() == state({"n": 1})
        assert await c.next() == state({"n": 1})
        await house.handle(Room).state()
        assert a.transport.take() == []
        assert await house.handle(Room).state() == {"n": 1}


@each_case("value", [None, False, True, 1, 1.5, "", "text", [], [1, [None]], {}, {"a": {"b": []}}])
async def test_any_json_is_a_state(value: Any) -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        a.push(value)
        assert await b.next() == state(value)
        assert await house.handle(Room).state() == value
        assert a.transport.take() == []


async def test_a_frame_may_have_its_keys_in_any_order_and_others_beside_them() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        for n, text in enumerate(
            [
                '{"type":"cf_agent_state","state":1}',
                '{ "state" : 2 , "type" : "cf_agent_state" }',
                '{"by":"me","state":3,"type":"cf_agent_state"}',
                '{"state":4,"by":"me","type":"cf_agent_state"}',
                '{"state":{"state":5},"more":{"state":6},"type":"cf_agent_state"}',
            ],
            1,
        ):
            a.send(text)
            assert await b.next() == state(n if n < 5 else {"state": 5})


async def test_a_state_of_the_server_goes_to_everyone() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        await house.handle(Room).set_state(5)
        assert [await a.next(), await b.next()] == [state(5), state(5)]


async def test_nothing_is_sent_before_it_is_durable() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        house.store.is_held = True
        a.push(1)
        b.call("1", "look")
        (await house.actor(Room)).thread.broadcast("after one")
        await asyncio.sleep(0)
        assert a.transport.take() == b.transport.take() == []
        house.store.resume()
        assert [await b.next() for _ in range(3)] == [state(1), "after one", result("1", 1)]


async def test_a_state_that_was_made_another_by_its_type_is_sent_back_as_it_is() -> None:
    class Game(msgspec.Struct, frozen=True):
        score: int = 0
        name: str = "unnamed"

    class Typed(Thread[Game]):
        kind = "room"
        initial_state = Game()

    async with open_house(Typed) as house:
        a, b = await house.join(Typed, "a"), await house.join(Typed, "b")
        a.push({"score": 3, "extra": True})
        assert [await a.next(), await b.next()] == [state({"score": 3, "name": "unnamed"})] * 2
        a.transport.answer_ping()
        a.push({"name": "x", "score": 4})
        assert await b.next() == state({"score": 4, "name": "x"})
        await house.handle(Typed).state()
        assert a.transport.take() == []


async def test_a_state_that_is_refused_is_told_to_its_sender_alone_with_the_state_as_it_is() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        for value in ("forbidden", "broken"):
            a.push(value)
            assert [await a.next(), await a.next()] == [REJECTED, state(0)]
        assert "secret" not in str(a.transport.sent)
        await house.handle(Room).state()
        assert b.transport.take() == []
        assert len(house.store.submitted) == 1


async def test_a_state_that_is_no_state_is_refused() -> None:
    class Typed(Thread[dict[str, int]]):
        kind = "room"
        initial_state = {"n": 0}  # noqa: RUF012

    async with open_house(Typed, limits=Limits(state=100, depth=3)) as house:
        a = await house.join(Typed, "a")
        for value in (5, None, {"n": "x"}, {"n": 1.5}, {str(n): n for n in range(50)}):
            a.push(value)
            assert [await a.next(), await a.next()] == [REJECTED, state({"n": 0})]


async def test_a_state_of_hostile_depth_harms_nobody() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        a.send('{"state":' + "[" * 100_000 + "]" * 100_000 + ',"type":"cf_agent_state"}')
        b.send('{"type":"cf_agent_state","state":' + '{"a":' * 100_000)
        b.call("1", "look")
        c = await house.join(Room, "c")
        c.push(1)
        assert await house.handle(Room).state() == 1


async def test_a_state_that_could_not_be_stored_is_refused_and_the_true_one_sent() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        house.store.fail_next()
        a.push(1)
        assert [await a.next(), await a.next()] == [REJECTED, state(0)]
        a.push(2)
        assert await b.next() == state(2)
        assert a.transport.closed is b.transport.closed is None


# Readonly


async def test_a_readonly_client_receives_but_its_writes_are_refused() -> None:
    async with open_house(Guarded) as house:
        reader, writer = await house.join(Guarded, "reader"), await house.join(Guarded, "writer")
        writer.push(1)
        assert await reader.next() == state(1)
        reader.push(2)
        assert [await reader.next(), await reader.next()] == [READONLY, state(1)]
        assert await house.handle(Guarded).state() == 1


async def test_a_readonly_client_may_call_what_does_not_change_the_state() -> None:
    async with open_house(Guarded) as house:
        reader = await house.join(Guarded, "reader")
        reader.call("1", "look")
        assert await reader.next() == result("1", 0)
        reader.call("2", "add", 1)
        assert await reader.next() == failure("2", "Connection is readonly")
        assert await house.handle(Guarded).state() == 0


async def test_readonly_can_be_switched_at_any_time() -> None:
    async with open_house(Guarded) as house:
        client, other = await house.join(Guarded, "reader"), await house.join(Guarded, "writer")
        client.connection.readonly = False
        client.push(1)
        assert await other.next() == state(1)
        client.connection.readonly = True
        client.push(2)
        assert await client.next() == READONLY


# Clients that opted out


async def test_a_client_without_protocol_frames_gets_none_but_may_write_and_call() -> None:
    async with open_house(Guarded) as house:
        actor = await house.actor(Guarded)
        plain = Client(actor, "plain")
        plain.open()
        other = await house.join(Guarded, "other")
        assert plain.transport.sent == []
        plain.push(1)
        assert await other.next() == state(1)
        other.push(2)
        plain.call("1", "add", 3)
        assert await plain.next() == result("1", 5)
        actor.thread.broadcast("hello")
        assert await plain.next() == "hello"
        plain.push("forbidden")
        assert await plain.next() == REJECTED
        await house.handle(Guarded).state()
        assert plain.transport.take() == []
        assert not plain.transport.pings


async def test_a_client_without_protocol_frames_that_comes_back_may_write_again() -> None:
    async with open_house(Guarded) as house:
        actor = await house.actor(Guarded)
        first = Client(actor, "plain")
        first.open()
        await actor.wait_until_idle()
        first.leave()
        await house.handle(Guarded).set_state(1)
        second = Client(actor, "plain")
        second.open()
        await actor.wait_until_idle()
        second.push(2)
        assert await house.handle(Guarded).state() == 2


# What a client has seen


async def test_a_write_that_crossed_a_state_frame_is_answered_with_the_state() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        b.push("from b")
        assert await a.next() == state("from b")
        a.push("from a")
        assert await b.next() == state("from a")
        assert a.transport.take() == [state("from a")]


async def test_a_write_that_crosses_another_on_its_way_to_the_disk_is_answered_with_the_state() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        house.store.is_held = True
        a.push("from a")
        b.push("from b")
        house.store.resume()
        await house.handle(Room).state()
        shown = {"a": "from a", "b": "from b"}
        for name, client in (("a", a), ("b", b)):
            for frame in client.transport.take():
                shown[name] = frame["state"]
        assert shown == {"a": "from b", "b": "from b"}


async def test_a_write_after_all_was_seen_is_not_echoed() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        for n in range(10):
            a.push(n + 1)
            assert await b.next() == state(n + 1)
        await house.handle(Room).state()
        assert a.transport.take() == []


async def test_a_pong_that_answers_no_ping_is_nothing_that_was_seen() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        a.push("first of a")
        await b.next()
        b.push("from b")
        assert await a.next() == state("from b")
        assert len(a.transport.pings) == 2
        for payload in (b"", b"x", (99).to_bytes(8), (0).to_bytes(8), b"\xff" * 9, a.transport.pings[0]):
            a.session.pong(payload)
        a.push("from a")
        assert [await b.next(), await b.next()] == [state("from b"), state("from a")]
        assert a.transport.take() == [state("from a")]


@contextmanager
def a_minute_later() -> Iterator[None]:
    """Set the loop's clock to another time."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: now + 60)
        yield


async def test_a_socket_that_cannot_be_pinged_has_seen_nothing_just_now() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a", can_ping=False), await house.join(Room, "b")
        b.push("from b")
        assert await a.next() == state("from b")
        a.push("from a")
        assert await a.next() == state("from a")


async def test_a_socket_that_cannot_be_pinged_has_not_seen_an_old_state_that_it_was_sent_just_now() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).set_state("old")
        with a_minute_later():
            a = await house.join(Room, "a", can_ping=False)
            a.push("from a")
            assert await a.next() == state("from a")


@play_seeds(2)
async def test_clients_that_write_at_the_same_time_end_with_the_state_of_the_server(seed: int) -> None:
    chance = random.Random(seed)
    async with open_house(Room) as house:
        clients = [await house.join(Room, str(number)) for number in range(4)]
        shown: list[Any] = [0] * 4
        answered = [len(client.transport.pings) for client in clients]

        def read(number: int) -> None:
            for frame in clients[number].transport.take():
                shown[number] = frame["state"]

        for n in range(100):
            number = chance.randrange(4)
            match chance.randrange(6):
                case 0 | 1:
                    # A browser answers a ping when it has the frames before it.
                    read(number)
                    if len(clients[number].transport.pings) > answered[number]:
                        answered[number] = len(clients[number].transport.pings)
                        clients[number].transport.answer_ping()
                case 2 | 3:
                    shown[number] = f"{number}: {n}"
                    clients[number].push(shown[number])
                case 4:
                    house.store.is_held = True
                case _:
                    house.store.resume()
                    await asyncio.sleep(0)
        house.store.resume()
        final = await house.handle(Room).state()
        for number in range(4):
            read(number)
        assert shown == [final] * 4


# Clients that come back


async def back(house: Any, first: Client, *, can_ping: bool = True) -> Client:
    """Return the client with the same id, on another socket."""
    actor = await house.actor(Room)
    client = Client(actor, first.connection.id, can_ping=can_ping, departures=house.departures)
    client.open()
    await client.joined()
    return client


async def test_a_write_made_offline_over_a_newer_state_is_refused_and_the_newer_one_sent() -> None:
    async with open_house(Room) as house:
        first = await house.join(Room, "a")
        first.leave()
        await house.handle(Room).set_state("newer")
        second = await back(house, first)
        second.push("made offline")
        assert [await second.next(), await second.next()] == [REJECTED, state("newer")]
        second.transport.answer_ping()
        with a_minute_later():
            second.push("after it was seen")
        assert await house.handle(Room).state() == "after it was seen"


async def test_an_answer_to_a_ping_does_not_overtake_a_write_that_waits_for_its_turn() -> None:
    async with open_house(Room) as house:
        first = await house.join(Room, "a")
        first.leave()
        await house.handle(Room).set_state("newer")
        second = Client(await house.actor(Room), first.connection.id, departures=house.departures)
        second.transport.scheduler = scheduler = FairScheduler()
        scheduler.spend(1.0)
        second.push("made offline")
        second.open()
        await second.joined()
        second.transport.answer_ping()
        assert [await second.next(), await second.next()] == [REJECTED, state("newer")]
        assert await house.handle(Room).state() == "newer"


async def test_a_write_made_offline_is_refused_where_the_last_one_was_merged_with_what_was_not_seen() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).set_state({"a": 0, "b": 0})
        first = await house.join(Room, "a")
        first.transport.answer_ping()
        await house.handle(Room).set_state({"a": 0, "b": 1})
        first.push({"a": 1, "b": 0})
        assert await house.handle(Room).state() == {"a": 1, "b": 1}
        first.leave()
        second = await back(house, first)
        second.push({"a": 2, "b": 0})
        assert [await second.next(), await second.next()] == [REJECTED, state({"a": 1, "b": 1})]


async def test_a_write_made_offline_over_the_same_state_is_taken() -> None:
    async with open_house(Room) as house:
        first, other = await house.join(Room, "a"), await house.join(Room, "b")
        first.leave()
        second = await back(house, first)
        second.push("made offline")
        assert await other.next() == state("made offline")


async def test_a_write_made_offline_by_a_client_that_had_not_seen_the_last_state_is_refused() -> None:
    async with open_house(Room) as house:
        first = await house.join(Room, "a")
        await house.handle(Room).set_state("unseen")
        first.leave()
        second = await back(house, first)
        second.push("made offline")
        assert await second.next() == REJECTED
        assert await house.handle(Room).state() == "unseen"


async def come_and_wait(house: House, cls: type[Doorkeeper], first: Client) -> Client:
    """Return the client with the same id on another socket, about which a hook thinks."""
    actor = await house.actor(cls)
    assert isinstance(actor.thread, Doorkeeper)
    actor.thread.asked.clear()
    actor.thread.gate.clear()
    client = Client(actor, first.connection.id, departures=house.departures)
    client.open()
    async with asyncio.timeout(PATIENCE):
        await actor.thread.asked.wait()
    return client


@each_case("leaves_before", [True, False])
async def test_a_write_made_offline_is_refused_where_a_socket_of_the_client_closed_before_it_could_join(
    *, leaves_before: bool
) -> None:
    async with open_house(Asking) as house:
        actor = await house.actor(Asking)
        thread = actor.thread
        assert isinstance(thread, Asking)
        thread.verdict = "let in"
        thread.gate.set()
        first = await house.join(Asking, "a")
        first.leave()
        await house.handle(Asking).set_state("newer")
        second = await come_and_wait(house, Asking, first)
        if leaves_before:
            second.leave()
        third = Client(actor, first.connection.id, departures=house.departures)
        third.open()
        second.leave()
        thread.gate.set()
        await third.joined()
        third.push("made offline")
        assert [await third.next(), await third.next()] == [REJECTED, state("newer")]
        assert await house.handle(Asking).state() == "newer"


async def test_a_new_client_is_not_taken_for_one_that_comes_back() -> None:
    async with open_house(Room) as house:
        first = await house.join(Room, "a")
        first.leave()
        await house.handle(Room).set_state("newer")
        new = Client(await house.actor(Room), "b")
        new.open()
        new.push("hello")
        assert await house.handle(Room).state() == "hello"


async def test_a_client_that_cannot_be_pinged_and_came_back_may_write_once_it_had_time_to_see() -> None:
    async with open_house(Room) as house:
        first = await house.join(Room, "a", can_ping=False)
        first.leave()
        await house.handle(Room).set_state("newer")
        second = await back(house, first, can_ping=False)
        second.push("made offline")
        assert [await second.next(), await second.next()] == [REJECTED, state("newer")]
        with a_minute_later():
            second.push("a minute later")
        assert await house.handle(Room).state() == "a minute later"


async def test_two_sockets_with_one_id_do_not_starve_each_other() -> None:
    async with open_house(Room) as house:
        one, two = await house.join(Room, "same"), await house.join(Room, "same")
        one.push("from one")
        assert await two.next() == state("from one")
        two.transport.answer_ping()
        with a_minute_later():
            two.push("from two")
        assert await one.next() == state("from two")
        one.leave()
        with a_minute_later():
            two.push("alone")
        assert await house.handle(Room).state() == "alone"
        assert two.transport.closed is None


# Ordinary messages


@each_case(
    "data",
    [
        "",
        "hello",
        "{",
        '{"type":"cf_agent_state"}',
        '{"type":"chat","state":1}',
        '{"type":"rpc","id":1,"method":"look","args":[]}',
        '{"type":"rpc","id":"1","method":"look","args":{}}',
        b"",
        b"\x00\xff",
        b'{"type":"cf_agent_state","state":1}',
    ],
)
async def test_anything_else_goes_to_on_message_as_it_is(data: str | bytes) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.send(data)
        assert await client.next() == "heard"
        thread = (await house.actor(Room)).thread
        assert thread.heard == [data]  # type: ignore[attr-defined]
        assert thread.state == 0


async def test_messages_are_handled_in_the_order_in_which_they_came() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        for n in range(200):
            client.send(str(n))
        for _ in range(200):
            assert await client.next() == "heard"
        assert (await house.actor(Room)).thread.heard == [str(n) for n in range(200)]  # type: ignore[attr-defined]


# Calls


async def test_a_call_is_answered_with_what_it_returned() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "look")
        assert await client.next() == result("1", 0)
        client.call("2", "nothing")
        assert await client.next() == result("2", None)
        client.call("3", "open_gate")
        assert await client.next() == result("3")


async def test_the_state_frame_of_a_call_comes_before_its_result() -> None:
    async with open_house(Room) as house:
        client, other = await house.join(Room, "a"), await house.join(Room, "b")
        client.call("1", "add", 5)
        assert [await client.next(), await client.next()] == [state(5), result("1", 5)]
        assert await other.next() == state(5)


async def test_the_result_of_a_call_that_changed_the_state_waits_for_the_disk() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        house.store.is_held = True
        client.call("1", "add", 1)
        client.call("2", "add", 1)
        await submitted(house.store, 3)
        assert client.transport.take() == []
        house.store.resume()
        assert [await client.next() for _ in range(4)] == [state(1), result("1", 1), state(2), result("2", 2)]


async def test_a_call_whose_change_could_not_be_stored_fails() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        house.store.fail_next()
        client.call("1", "add", 1)
        assert await client.next() == failure("1", "the disk is full")
        client.call("2", "add", 1)
        assert [await client.next(), await client.next()] == [state(1), result("2", 1)]


@each_case(
    ("method", "args", "error"),
    [
        ("missing", [], "Method missing does not exist"),
        ("hidden", [], "Method hidden is not callable"),
        ("_actor", [], "Method _actor does not exist"),
        ("__init__", [], "Method __init__ does not exist"),
        ("", [], "Method  does not exist"),
    ],
)
async def test_a_call_that_fails_says_why(method: str, args: list[Any], error: str) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", method, *args)
        assert await client.next() == failure("1", error)
        client.call("2", "look")
        assert await client.next() == result("2", 0)


@pytest.mark.parametrize("method", ["fail", "leak"])
async def test_a_call_that_raises_tells_an_id_that_the_log_has(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", method)
        check_internal((await client.next())["error"], caplog, "no such" if method == "fail" else "")
        client.call("2", "look")
        assert await client.next() == result("2", 0)


@each_case("args", [[], ["x"], [1, 2], [None], [1.5]])
async def test_bad_arguments_fail_the_call_and_run_nothing(args: list[Any]) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "add", *args)
        found = await client.next()
        assert (found["success"], found["id"]) == (False, "1")
        assert "add" in found["error"]
        assert await house.handle(Room).state() == 0


async def test_a_result_that_is_no_json_fails_the_call() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "odd")
        found = await client.next()
        assert (found["success"], found["id"]) == (False, "1")


async def test_calls_are_turns_and_concurrent_ones_overtake_them() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "wait_beside")
        client.call("2", "add", 1)
        assert [await client.next(), await client.next()] == [state(1), result("2", 1)]
        client.call("3", "open_gate")
        assert {(await client.next())["id"] for _ in range(2)} == {"1", "3"}


async def test_a_client_that_may_not_call_is_told_so() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.connection.rights = Rights(may_call=False)
        client.call("1", "add", 1)
        assert await client.next() == failure("1", "Forbidden")
        assert await house.handle(Room).state() == 0


@each_case(
    ("act", "expected"),
    [
        (lambda client: client.call("9", "missing"), [failure("9", "Method missing does not exist")]),
        (lambda client: client.call("9", "add", "x"), None),
        (lambda client: client.push("forbidden"), [REJECTED, state(0)]),
    ],
)
async def test_a_refusal_is_told_even_if_a_change_before_it_could_not_be_stored(
    act: Callable[[Client], None], expected: list[Any] | None
) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        house.store.is_held = True
        (await house.actor(Room)).thread.set_state(1)
        act(client)
        house.store.fail_next()
        house.store.resume()
        if expected is None:
            assert (await client.next())["success"] is False
        else:
            assert [await client.next() for _ in expected] == expected


# Streams


async def test_a_generator_streams_chunks_and_a_last_frame() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "stream", 2)
        assert [await client.next() for _ in range(3)] == [
            result("1", 0, done=False),
            result("1", 1, done=False),
            result("1"),
        ]


async def test_a_generator_that_raises_ends_in_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "stream", 3)
        found = [await client.next() for _ in range(4)]
        assert [each["result"] for each in found[:3]] == [0, 1, 2]
        assert found[3]["success"] is False
        check_internal(found[3]["error"], caplog, "too many")


async def test_a_stream_may_be_sent_by_hand_whatever_place_it_has_among_the_parameters() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "stream_by_hand", {"n": 1})
        assert [await client.next(), await client.next()] == [result("1", {"n": 1}, done=False), result("1", "last")]
        client.call("2", "stream_and_fail")
        assert [await client.next(), await client.next()] == [result("2", 1, done=False), failure("2", "by hand")]


async def test_a_streamed_chunk_waits_for_the_change_before_it() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "stream_states", 2)
        assert [await client.next() for _ in range(5)] == [
            state(1),
            result("1", 1, done=False),
            state(2),
            result("1", 2, done=False),
            result("1"),
        ]


@each_case(("method", "args"), [("stream_odd", []), ("stream_states", [3])])
async def test_nothing_follows_the_failure_of_a_stream(method: str, args: list[Any]) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        if method == "stream_states":
            house.store.fail_next()
        client.call("1", method, *args)
        found: list[Any] = []
        while not found or found[-1].get("success") is not False:
            found.append(await client.next())
        client.call("2", "look")
        while (await client.next()).get("id") == "1":
            pytest.fail("a frame of a stream that had failed")


async def test_a_stream_does_not_hold_up_other_calls() -> None:
    class Endless(Room):
        kind = "room"

        @rpc
        async def forever(self) -> AsyncIterator[int]:
            n = 0
            while not self.gate.is_set():
                yield n
                n += 1

    async with open_house(Endless) as house:
        client = await house.join(Endless, "a")
        client.call("1", "forever")
        client.call("2", "open_gate")
        found: list[Any] = []
        while not {("1", True), ("2", True)} <= {(each["id"], each["done"]) for each in found}:
            found.append(await client.next())


class Telling(Room):
    """Notes how its methods came to their end."""

    kind = "room"

    def on_start(self) -> None:
        super().on_start()
        self.ends: list[str] = []

    async def work(self, name: str) -> None:
        how = "cancelled"
        try:
            await self.gate.wait()
            how = "finished"
        finally:
            self.ends.append(f"{name} {how}")

    @rpc
    async def turn(self) -> None:
        await self.work("turn")

    @rpc
    async def tell(self) -> AsyncIterator[int]:
        yield 1
        await self.work("tell")

    @rpc
    async def tell_by_hand(self, stream: Stream, how: str) -> None:
        if how == "value":
            stream.end(1)
        elif how == "error":
            stream.error("by hand")
        else:
            stream.send(1)
        await self.work(how)


async def test_when_the_socket_closes_streams_end_and_running_turns_and_what_has_ended_its_stream_finish() -> None:
    async with open_house(Telling) as house:
        client = await house.join(Telling, "a")
        actor = await house.actor(Telling)
        thread = actor.thread
        assert isinstance(thread, Telling)
        client.call("1", "turn")
        client.call("2", "tell")
        client.call("2", "tell")
        for how in ("chunk", "value", "error"):
            client.call(how, "tell_by_hand", how)
        for _ in range(5):
            await client.next()
        client.leave()
        async with asyncio.timeout(PATIENCE):
            while len(actor.turns._concurrent) > 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert sorted(thread.ends) == ["chunk cancelled", "tell cancelled", "tell cancelled"]
        thread.gate.set()
        await actor.wait_until_idle()
        assert sorted(thread.ends[3:]) == ["error finished", "turn finished", "value finished"]


async def test_a_stream_is_not_begun_for_a_client_that_left_while_on_connect_ran() -> None:
    class Slow(Telling):
        kind = "room"

        async def on_connect(self, connection: Connection, request: Request) -> None:
            await self.gate.wait()

    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        thread = actor.thread
        assert isinstance(thread, Slow)
        client = Client(actor, "a")
        client.open()
        await client.joined()
        client.call("1", "tell")
        client.call("2", "turn")
        client.leave()
        thread.gate.set()
        await actor.wait_until_idle()
        assert thread.ends == ["turn finished"]


# Limits


async def test_more_messages_than_allowed_are_refused_each_in_its_own_way() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=2)) as house:
        client = await house.join(Room, "a")
        client.push(1)
        client.call("1", "look")
        assert await client.next() == result("1", 1)
        client.push(2)
        assert [await client.next(), await client.next()] == [REJECTED, state(1)]
        client.call("2", "look")
        found = await client.next()
        assert (found["id"], found["success"]) == ("2", False)
        client.send("chatter")
        assert await client.next() is None
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1013
        other = await house.join(Room, "b")
        other.call("3", "look")
        assert await other.next() == result("3", 1)


@each_case(("size", "is_taken"), [(1_000, True), (1_000_000, False)])
async def test_a_large_message_counts_as_several(size: int, is_taken: bool) -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=50)) as house:
        client = await house.join(Room, "a")
        client.push("x" * size)
        client.call("1", "look")
        assert (await client.next())["success"] is is_taken


async def test_pushes_that_come_too_fast_are_answered_with_one_state_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=20)) as house:
        actor = await house.actor(Room)
        client = await house.join(Room, "a")
        for n in range(40):
            client.push(n)
        await actor.wait_until_idle()
        assert [await client.next() for _ in range(21)] == [REJECTED] * 20 + [state(19)]
        assert [record.message.split(":")[0] for record in caplog.records] == ["rate_limited"]
        assert client.transport.closed is None


async def test_who_goes_on_pushing_too_fast_is_closed_with_1013() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=20)) as house:
        actor = await house.actor(Room)
        client = await house.join(Room, "a")
        for n in range(1000):
            client.push(n)
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1013
        await actor.wait_until_idle()
        assert actor.thread.state == 19


class Gated(Room):
    """Admits clients when its gate opens."""

    kind = "room"

    async def on_connect(self, connection: Connection, request: Request) -> None:
        await self.gate.wait()


async def test_what_a_client_sends_before_it_has_joined_does_not_pile_up() -> None:
    async with open_house(Gated, limits=Limits(messages_per_second=0.001, message_burst=5)) as house:
        actor = await house.actor(Gated)
        client = Client(actor, "a")
        client.open()
        await client.joined()
        for _ in range(100):
            client.send("flood")
        try:
            assert client.transport.is_paused or client.transport.closed is not None
        finally:
            actor.thread.gate.set()  # type: ignore[attr-defined]


async def test_what_a_client_sends_before_it_has_joined_is_counted_too() -> None:
    async with open_house(Gated, limits=Limits(messages_per_second=0.001, message_burst=5)) as house:
        actor = await house.actor(Gated)
        client = Client(actor, "a")
        client.open()
        for _ in range(10):
            client.send("flood")
        actor.thread.gate.set()  # type: ignore[attr-defined]
        while await client.next() is not None:
            pass
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1013
        await actor.wait_until_idle()
        assert len(actor.thread.heard) <= 5  # type: ignore[attr-defined]


# Closing


async def test_on_close_is_told_of_each_client_that_had_joined_once() -> None:
    class Watching(Room):
        kind = "room"
        closed: list[tuple[str, int, str]]

        def on_start(self) -> None:
            super().on_start()
            self.closed = []

        def on_close(self, connection: Connection, code: int, reason: str) -> None:
            self.closed.append((connection.id, code, reason))

    async with open_house(Watching) as house:
        actor = await house.actor(Watching)
        a, b = await house.join(Watching, "a"), await house.join(Watching, "b")
        a.leave(1001, "bye")
        a.leave(1006)
        b.connection.close(4000, "out")
        await actor.wait_until_idle()
        assert actor.thread.closed == [("a", 1001, "bye"), ("b", 4000, "out")]  # type: ignore[attr-defined]
        assert len(actor.sockets) == 0


async def test_a_turn_that_closes_a_connection_is_not_interrupted_by_on_close() -> None:
    class Bouncer(Room):
        kind = "room"
        lines: list[str]

        def on_start(self) -> None:
            super().on_start()
            self.lines = []

        @rpc
        async def clear(self) -> None:
            self.lines.append("clear begins")
            for connection in self.connections("all"):
                connection.close(4000, "out")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.lines.append("clear ends")

        def connection_tags(self, connection: Connection, request: Request) -> list[str]:
            return ["all"]

        async def on_close(self, connection: Connection, code: int, reason: str) -> None:
            self.lines.append(f"close {connection.id}")

    async with open_house(Bouncer) as house:
        actor = await house.actor(Bouncer)
        for id in "ab":
            await house.join(Bouncer, id)
        await house.handle(Bouncer).clear()
        await actor.wait_until_idle()
        assert actor.thread.lines == ["clear begins", "clear ends", "close a", "close b"]  # type: ignore[attr-defined]


@each_case("is_storing", [False, True])
async def test_what_comes_after_the_close_of_a_connection_is_not_taken(*, is_storing: bool) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        actor = await house.actor(Room)
        house.store.is_held = is_storing
        actor.thread.set_state(1)
        client.send("early")
        client.connection.close(4000, "out")
        client.send("late")
        client.push(2)
        house.store.resume()
        await actor.wait_until_idle()
        assert actor.thread.heard == ["early"]  # type: ignore[attr-defined]
        assert actor.thread.state == 1


async def test_what_comes_after_the_servers_end_is_not_taken() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        actor = await house.actor(Room)
        await house.node.drain(PATIENCE)
        client.send("late")
        await actor.wait_until_idle()
        assert client.transport.closed is not None
        assert actor.thread.heard == []  # type: ignore[attr-defined]


async def test_a_client_that_left_gets_nothing_more() -> None:
    async with open_house(Room) as house:
        a, b = await house.join(Room, "a"), await house.join(Room, "b")
        a.call("1", "wait")
        a.leave()
        sent = len(a.transport.sent)
        b.push(1)
        b.call("2", "open_gate")
        (await house.actor(Room)).thread.gate.set()  # type: ignore[attr-defined]
        assert await b.next() == result("2")
        assert len(a.transport.sent) == sent


async def test_a_store_that_fails_closes_no_socket() -> None:
    store = TroubledStore()
    async with open_house(Room, store=store) as house:
        clients = [await house.join(Room, id) for id in "abc"]
        for n in range(5):
            store.fail_next()
            clients[n % 3].push(n + 1)
            assert [await clients[n % 3].next() for _ in range(2)] == [REJECTED, state(0)]
        assert [client.transport.closed for client in clients] == [None] * 3
