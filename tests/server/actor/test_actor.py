"""One awake thread: its hooks, its rpcs, and the order in which they run."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.cases import each_case
from tests.server.rooms import Client, House, make_request, open_house
from tests.told import check_internal

from plait.actor.connection import Connection, Source
from plait.actor.current import current
from plait.actor.outcome import make_resolver
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import CallFailed, PlaitError, Readonly, Reject, StoreError, TurnTimeout, Unavailable

PATIENCE = 10.0


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


class Room(Thread[Any]):
    initial_state: Any = 0

    def on_start(self) -> None:
        self.lines: list[Any] = []
        self.gate = asyncio.Event()
        self.runs = asyncio.Event()


async def lines(house: House, cls: type[Thread[Any]]) -> list[Any]:
    """Return what a thread has recorded, when it is idle."""
    actor = await house.actor(cls)
    await outcome(actor.wait_until_idle())
    found: list[Any] = actor.thread.lines  # type: ignore[attr-defined]
    return found


# Changes


class Counter(Room):
    def on_state_changed(self, state: Any, source: Source) -> None:
        self.lines.append((state, source if isinstance(source, str) else source.id))

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)

    @rpc
    async def add_slowly(self) -> None:
        self.lines.append("begins")
        await self.set_state(lambda state: state + 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.lines.append("ends")

    @rpc
    async def add_and_fail(self) -> None:
        self.set_state(lambda state: state + 1)
        raise LookupError("after the change")


async def test_a_change_is_told_once_with_who_made_it_and_in_order() -> None:
    async with open_house(Counter) as house:
        client = await house.join(Counter, "a")
        house.store.is_held = True
        client.push(1)
        (await house.actor(Counter)).thread.set_state(2)
        client.push(3)
        house.store.resume()
        assert await lines(house, Counter) == [(1, "a"), (2, "server"), (3, "a")]


async def test_the_initial_state_is_no_change_that_is_told() -> None:
    async with open_house(Counter) as house:
        assert await lines(house, Counter) == []


async def test_a_change_is_told_after_it_was_sent() -> None:
    class Telling(Room):
        kind = "room"

        def on_state_changed(self, state: Any, source: Source) -> None:
            self.broadcast(f"told {state}")

    async with open_house(Telling) as house:
        client = await house.join(Telling, "a")
        await house.handle(Telling).set_state(1)
        assert await client.next() == {"type": "cf_agent_state", "state": 1}
        assert await client.next() == "told 1"


async def test_telling_a_change_does_not_interrupt_the_turn_that_made_it() -> None:
    async with open_house(Counter) as house:
        await outcome(house.handle(Counter).add_slowly())
        assert await lines(house, Counter) == ["begins", "ends", (1, "server")]


async def test_a_change_that_on_state_changed_makes_is_told_in_turn() -> None:
    class Settling(Counter):
        def on_state_changed(self, state: Any, source: Source) -> None:
            super().on_state_changed(state, source)
            if state < 3:
                self.set_state(state + 1)

    async with open_house(Settling) as house:
        await house.handle(Settling).set_state(1)
        assert await lines(house, Settling) == [(1, "server"), (2, "server"), (3, "server")]


class Restless(Room):
    """Makes so many changes each time that it is told of one."""

    changes = 1

    async def on_state_changed(self, state: Any, source: Source) -> None:
        self.lines.append(state)
        for _ in range(self.changes):
            await self.change()

    async def change(self) -> None:
        self.set_state(lambda state: state + 1)

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.errors = [*getattr(self, "errors", []), error]


class RestlessInCalls(Restless):
    """Does so through calls of itself."""

    async def change(self) -> None:
        await self.thread(RestlessInCalls, self.name).call(RestlessInCalls.add)

    @rpc
    def add(self) -> None:
        self.set_state(lambda state: state + 1)


class RestlessTwice(Restless):
    changes = 2


@each_case("cls", [Restless, RestlessInCalls, RestlessTwice])
async def test_on_state_changed_that_makes_a_change_each_time_is_stopped(cls: type[Restless]) -> None:
    async with open_house(cls) as house:
        for _ in range(2):
            await house.handle(cls).set_state(1)
            told = await lines(house, cls)
            errors = (await house.actor(cls)).thread.errors  # type: ignore[attr-defined]
            assert {str(error) for error in errors} == {
                "on_state_changed has made a change 1,000 times in a row, and is not called again"
            }
            if cls is not RestlessTwice:
                assert told == list(range(1, 1002))
                assert len(errors) == 1
            told.clear()
            errors.clear()


async def test_on_state_changed_may_make_any_number_of_changes_that_lead_to_no_others() -> None:
    class Filling(Restless):
        async def on_state_changed(self, state: Any, source: Source) -> None:
            if state == 1:
                for _ in range(1_500):
                    await self.change()

    async with open_house(Filling) as house:
        for _ in range(3):
            await house.handle(Filling).set_state(1)
            await lines(house, Filling)
            assert await house.handle(Filling).state() == 1_501
        assert not hasattr((await house.actor(Filling)).thread, "errors")


async def test_a_task_that_on_state_changed_has_begun_may_change_the_state_for_ever() -> None:
    class Ticking(Restless):
        async def on_state_changed(self, state: Any, source: Source) -> None:
            if state < 1_200:
                self.task = asyncio.get_running_loop().call_soon(lambda: self.set_state(state + 1))

    async with open_house(Ticking) as house:
        await house.handle(Ticking).set_state(1)
        actor = await house.actor(Ticking)
        async with asyncio.timeout(PATIENCE):
            while actor.state.durable.state < 1_200:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not hasattr(actor.thread, "errors")


async def test_a_change_that_failed_is_not_told() -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        house.store.fail_next()
        with pytest.raises(StoreError):
            await outcome(actor.thread.set_state(5))
        await outcome(actor.thread.set_state(1))
        assert await lines(house, Counter) == [(1, "server")]


async def test_a_call_that_fails_keeps_the_changes_that_it_has_made() -> None:
    async with open_house(Counter) as house:
        with pytest.raises(LookupError, match="after the change"):
            await outcome(house.handle(Counter).add_and_fail())
        assert await house.handle(Counter).state() == 1


async def test_calls_are_turns_that_never_lose_an_update() -> None:
    async with open_house(Counter) as house:
        handle = house.handle(Counter)
        assert await outcome(asyncio.gather(*(handle.add(1) for _ in range(50)))) == list(range(1, 51))


async def test_the_result_of_a_call_waits_for_the_disk_while_the_next_call_runs() -> None:
    async with open_house(Counter) as house:
        handle = house.handle(Counter)
        await handle.state()
        house.store.is_held = True
        calls = [asyncio.create_task(handle.add(1)) for _ in range(5)]
        async with asyncio.timeout(PATIENCE):
            while len(house.store.submitted) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        house.store.resume()
        assert await outcome(asyncio.gather(*calls)) == [1, 2, 3, 4, 5]


async def test_the_version_counts_changes() -> None:
    async with open_house(Counter) as house:
        thread = (await house.actor(Counter)).thread
        assert (thread.name, thread.version) == ("one", 0)
        await outcome(thread.set_state(5))
        await outcome(thread.set_state(5))
        await outcome(thread.set_state(6))
        assert thread.version == 2


# Hooks


async def test_hooks_may_be_plain_functions_coroutines_or_return_an_awaitable() -> None:
    class Mixed(Room):
        def on_message(self, connection: Connection, data: str | bytes) -> Any:
            match data:
                case "awaitable":
                    return self.set_state(lambda state: [*state, "awaitable"])
                case "task":
                    return asyncio.create_task(self.note("task"))
                case _:
                    return self.note(str(data))

        async def note(self, what: str) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            self.lines.append(what)

        initial_state = list

    async with open_house(Mixed) as house:
        client = await house.join(Mixed, "a")
        for data in ("awaitable", "task", "coroutine", "last"):
            client.send(data)
        assert await lines(house, Mixed) == ["task", "coroutine", "last"]


class Failing(Room):
    errors: list[tuple[str, str | None]]

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        raise LookupError(str(data))

    def on_state_changed(self, state: Any, source: Source) -> None:
        raise LookupError("on_state_changed")

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        raise LookupError("on_close")

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.lines.append((str(error), connection.id if connection else None))


async def test_what_hooks_raise_goes_to_on_error_and_no_further() -> None:
    async with open_house(Failing) as house:
        client = await house.join(Failing, "a")
        client.send("one")
        client.push(1)
        await outcome((await house.actor(Failing)).wait_until_idle())
        await house.handle(Failing).set_state(2)
        client.leave()
        assert await lines(house, Failing) == [
            ("one", "a"),
            ("on_state_changed", "a"),
            ("on_state_changed", None),
            ("on_close", "a"),
        ]
        assert await house.handle(Failing).state() == 2


async def test_without_on_error_what_hooks_raise_is_logged_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    class Careless(Room):
        def on_message(self, connection: Connection, data: str | bytes) -> None:
            raise LookupError("careless")

    async with open_house(Careless) as house:
        client = await house.join(Careless, "a")
        client.send("x")
        await lines(house, Careless)
    (record,) = [each for each in caplog.records if each.name.startswith("plait")]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "careless" in caplog.text
    assert (record.plait_thread, record.plait_connection) == ("careless/one", "a")  # type: ignore[attr-defined]


async def test_a_state_whose_type_refuses_it_by_then_fails_on_state_changed_and_nothing_else() -> None:
    gone: list[str] = []

    @dataclass
    class Auction:
        bids: int = 0

        def __post_init__(self) -> None:
            if gone:
                raise TimeoutError("over")

    class Room(Thread[Auction]):
        initial_state = Auction
        told: ClassVar[list[str]] = []

        def on_state_changed(self, state: Auction, source: Source) -> None:
            self.told.append("state")

        def on_error(self, error: BaseException, connection: Connection | None) -> None:
            self.told.append(str(error))

    async with open_house(Room) as house:
        actor = await house.actor(Room)
        house.store.is_held = True
        commit = actor.thread.set_state(Auction(1))
        gone.append("over")
        house.store.resume()
        assert await outcome(commit) == 1
        await actor.wait_until_idle()
        assert Room.told == ["over"]


async def test_an_on_error_that_raises_is_logged_and_does_not_go_round(caplog: pytest.LogCaptureFixture) -> None:
    class Hopeless(Failing):
        def on_error(self, error: BaseException, connection: Connection | None) -> None:
            raise ZeroDivisionError("in on_error")

    async with open_house(Hopeless) as house:
        client = await house.join(Hopeless, "a")
        client.send("first error")
        await lines(house, Hopeless)
        assert await house.handle(Hopeless).state() == 0
    assert "first error" in caplog.text
    assert "in on_error" in caplog.text


async def wait_for_what_is_cancelled() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


async def test_a_hook_in_which_something_else_was_cancelled_has_failed_and_does_not_stop_the_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Cancelling(Room):
        async def on_message(self, connection: Connection, data: str | bytes) -> None:
            await wait_for_what_is_cancelled()

        @rpc
        async def cancel(self) -> None:
            raise asyncio.CancelledError

        def on_error(self, error: BaseException, connection: Connection | None) -> None:
            self.lines.append((str(error), connection and connection.id))

    async with open_house(Cancelling) as house:
        client = await house.join(Cancelling, "a")
        client.send("x")
        client.push(1)
        assert await outcome(house.handle(Cancelling).state()) == 1
        client.call("1", "cancel")
        found = await client.next()
        assert (found["id"], found["success"]) == ("1", False)
        check_internal(found["error"], caplog, "rpc cancel was cancelled, by its own code or with work it awaited")
        with pytest.raises(RuntimeError, match="was cancelled"):
            await outcome(house.handle(Cancelling).cancel())
        assert await lines(house, Cancelling) == [
            ("on_message was cancelled, by its own code or with work it awaited", "a")
        ]


async def test_a_client_is_not_let_in_where_something_else_was_cancelled_and_that_is_told() -> None:
    class Cancelling(Room):
        async def on_connect(self, connection: Connection, request: Request) -> None:
            await wait_for_what_is_cancelled()

        def on_error(self, error: BaseException, connection: Connection | None) -> None:
            self.lines.append(str(error))

    async with open_house(Cancelling) as house:
        client = Client(await house.actor(Cancelling), "a")
        client.open()
        while await client.next() is not None:
            pass
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1011
        (line,) = await lines(house, Cancelling)
        assert line.endswith("on_connect was cancelled, by its own code or with work it awaited")


async def test_a_thread_does_not_wake_when_something_else_was_cancelled_in_on_start() -> None:
    class Cancelling(Thread[Any]):
        async def on_start(self) -> None:
            await wait_for_what_is_cancelled()

    async with open_house(Cancelling) as house:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="on_start was cancelled, by its own code or with work it awaited"):
                await outcome(house.handle(Cancelling).state())


# What is running


async def test_code_knows_its_thread_its_connection_and_its_request() -> None:
    class Knowing(Room):
        def on_message(self, connection: Connection, data: str | bytes) -> None:
            self.lines.append(current())

        def on_request(self, request: Request) -> Response:
            self.lines.append(current())
            return PlainTextResponse("ok")

        async def on_connect(self, connection: Connection, request: Request) -> None:
            await asyncio.sleep(0)
            self.lines.append(current())

        @rpc
        async def look(self) -> None:
            await asyncio.sleep(0)
            self.lines.append(current())

    async with open_house(Knowing) as house:
        actor = await house.actor(Knowing)
        request = make_request("/a")
        client = Client(actor, "a")
        client.open(request)
        client.send("x")
        client.call("1", "look")
        await client.joined()
        assert (await client.next())["id"] == "1"
        await outcome(house.handle(Knowing).look())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        actor.turns.request(request, make_resolver(future), party="a")
        assert (await outcome(future)).body == b"ok"
        thread, connection = actor.thread, client.connection
        assert await lines(house, Knowing) == [
            (thread, connection, request),
            (thread, connection, None),
            (thread, connection, None),
            (thread, None, None),
            (thread, None, request),
        ]
    with pytest.raises(LookupError):
        current()


# Readonly


async def test_what_a_readonly_client_asked_for_may_not_change_the_state_but_other_turns_may() -> None:
    class Guarded(Room):
        def should_be_readonly(self, connection: Connection, request: Request) -> bool:
            return True

        def on_connect(self, connection: Connection, request: Request) -> None:
            self.set_state(lambda state: state + 1)

        def on_message(self, connection: Connection, data: str | bytes) -> None:
            self.set_state(100)

        def on_error(self, error: BaseException, connection: Connection | None) -> None:
            self.lines.append(type(error))
            self.set_state(lambda state: state + 10)

    async with open_house(Guarded) as house:
        client = Client(await house.actor(Guarded), "a")
        client.open()
        client.send("x")
        assert await lines(house, Guarded) == [Readonly]
        assert await house.handle(Guarded).state() == 11


class Board(Room):
    """Is changed in all the ways in which an rpc can bring that about."""

    initial_state = 0

    def on_start(self) -> None:
        super().on_start()
        self.jobs: asyncio.Queue[int] = asyncio.Queue()
        self.background = [asyncio.create_task(self.work())]

    def on_stop(self) -> None:
        for task in self.background:
            task.cancel()

    async def work(self) -> None:
        while True:
            n = await self.jobs.get()
            await self.set_state(n)
            self.runs.set()

    async def change(self) -> None:
        self.set_state(9)

    @rpc
    def set_now(self) -> None:
        self.set_state(9)

    @rpc
    async def stream(self) -> AsyncIterator[int]:
        self.set_state(9)
        yield 9

    @rpc
    async def through_itself(self) -> None:
        await self.thread(Board, self.name).call(Board.set_now)

    @rpc
    async def by_its_handle(self) -> None:
        await self.thread(Board, self.name).set_state(9)

    @rpc
    async def by_its_own_stream(self) -> None:
        async for _ in self.thread(Board, self.name).stream(Board.stream):
            pass

    @rpc(concurrent=True)
    async def beside_other_turns(self) -> None:
        await self.thread(Board, self.name).call(Board.set_now)

    @rpc
    async def by_a_task(self) -> None:
        await asyncio.create_task(self.change())

    @rpc
    async def in_a_group(self) -> None:
        await asyncio.gather(self.change(), asyncio.sleep(0))

    @rpc
    async def by_a_timer(self) -> None:
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def change() -> None:
            try:
                self.set_state(9)
            except Readonly as error:
                changed.set_exception(error)
            else:
                changed.set_result(None)

        asyncio.get_running_loop().call_later(0, change)
        await changed

    @rpc
    async def through_another(self) -> None:
        await self.thread(Relay, "relay").call(Relay.pass_on, self.name)

    @rpc
    async def by_a_task_of_another(self) -> None:
        await self.thread(Relay, "relay").call(Relay.pass_on_in_a_task, self.name)

    @rpc
    def after_the_turn(self) -> None:
        async def go_on() -> None:
            await self.gate.wait()
            try:
                await self.thread(Board, self.name).call(Board.set_now)
            except Readonly as error:
                self.lines.append(type(error))
            self.runs.set()

        self.background.append(asyncio.create_task(go_on()))

    @rpc
    def by_the_one_who_works(self) -> None:
        self.jobs.put_nowait(9)

    @rpc
    async def note_elsewhere(self) -> None:
        await self.thread(Relay, "relay").call(Relay.note)


class Relay(Room):
    def __init__(self) -> None:
        self.is_told = asyncio.Event()
        self.begun = asyncio.create_task(self.change_when_told())

    async def change_when_told(self) -> None:
        await self.is_told.wait()
        await self.thread(Board, "one").set_state(5)

    @rpc
    async def pass_on(self, name: str) -> None:
        await self.thread(Board, name).call(Board.set_now)

    @rpc
    async def pass_on_in_a_task(self, name: str) -> None:
        await asyncio.create_task(self.thread(Board, name).set_state(9))

    @rpc
    async def note(self) -> None:
        await self.set_state(lambda state: state + 1)


WAYS = (
    "set_now",
    "through_itself",
    "by_its_handle",
    "by_its_own_stream",
    "beside_other_turns",
    "by_a_task",
    "in_a_group",
    "by_a_timer",
    "through_another",
    "by_a_task_of_another",
)


@each_case("way", WAYS)
async def test_what_a_readonly_client_causes_may_not_change_the_state_of_its_thread(way: str) -> None:
    async with open_house(Board, Relay) as house:
        client = await house.join(Board, "a")
        client.connection.readonly = True
        client.call("1", way)
        answer = await outcome(client.next())
        assert (answer["success"], answer["error"]) == (False, "Connection is readonly")
        assert await house.handle(Board).state() == 0
        client.connection.readonly = False
        client.call("2", way)
        frames = [await outcome(client.next()) for _ in range(2)]
        assert {"type": "cf_agent_state", "state": 9} in frames
        assert [frame["success"] for frame in frames if frame["type"] == "rpc"] == [True]


@each_case("is_readonly", [False, True])
async def test_what_goes_on_after_a_turn_has_the_rights_that_its_client_has_meanwhile(is_readonly: bool) -> None:
    async with open_house(Board) as house:
        client = await house.join(Board, "a")
        client.connection.readonly = not is_readonly
        client.call("1", "after_the_turn")
        assert (await outcome(client.next()))["success"]
        client.connection.readonly = is_readonly
        client.leave()
        board: Any = (await house.actor(Board)).thread
        board.gate.set()
        await outcome(board.runs.wait())
        assert board.lines == ([Readonly] if is_readonly else [])
        assert board.state == (0 if is_readonly else 9)


async def test_what_the_server_has_begun_may_change_the_state_whoever_asks_it_to() -> None:
    async with open_house(Board, Relay) as house:
        client = await house.join(Board, "a")
        client.connection.readonly = True
        client.call("1", "by_the_one_who_works")
        board: Any = (await house.actor(Board)).thread
        await outcome(board.runs.wait())
        assert board.state == 9
        await outcome(client.next())
        await outcome(client.next())
        # In another thread a connection has no rights, and lacks none. To wake that changes nothing for it.
        client.call("2", "note_elsewhere")
        assert (await outcome(client.next()))["success"]
        assert await house.handle(Relay, "relay").state() == 1
        relay: Any = (await house.actor(Relay, "relay")).thread
        relay.is_told.set()
        await outcome(relay.begun)
        assert board.state == 5


# Threads that call each other


class Ping(Room):
    @rpc
    async def ping(self, depth: int) -> list[str]:
        self.lines.append("ping begins")
        found = await self.thread(Pong, "one").call(Pong.pong, depth) if depth else []
        self.lines.append("ping ends")
        return ["ping", *found]

    @rpc
    async def note(self) -> None:
        self.lines.append("note")

    @rpc
    async def through(self) -> None:
        await self.thread(Pong, "one").call(Pong.back_and_wait)

    @rpc
    async def wait(self) -> None:
        self.lines.append("wait begins")
        self.runs.set()
        await self.gate.wait()
        self.lines.append("wait ends")

    @rpc
    async def itself(self) -> str:
        return str((await self.thread(Ping, self.name).call(Ping.ping, 0))[0])


class Pong(Room):
    @rpc
    async def pong(self, depth: int) -> list[str]:
        return ["pong", *await self.thread(Ping, "one").call(Ping.ping, depth - 1)]

    @rpc
    async def back_and_wait(self) -> None:
        await self.thread(Ping, "one").call(Ping.wait)


async def test_threads_may_call_each_other_in_circles() -> None:
    async with open_house(Ping, Pong) as house:
        assert await outcome(house.handle(Ping).ping(3)) == ["ping", "pong"] * 3 + ["ping"]
        assert await outcome(house.handle(Ping).itself()) == "ping"


class Deep(Room):
    @rpc
    async def down(self, calls: int) -> int:
        return 0 if calls == 1 else 1 + int(await self.thread(Deep, self.name).call(Deep.down, calls - 1))

    @rpc(concurrent=True)
    async def down_elsewhere(self, calls: int) -> int:
        return 0 if calls == 1 else 1 + int(await self.thread(Deep, str(calls)).call(Deep.down_elsewhere, calls - 1))


@pytest.mark.parametrize("method", ["down", "down_elsewhere"])
async def test_a_chain_of_more_than_64_calls_is_refused_with_one_error_that_is_not_logged(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Deep) as house:
        call = house.handle(Deep).call
        assert await outcome(call(method, 64)) == 63
        with pytest.raises(CallFailed, match=rf"^rpc {method} of deep/\w+ is called in a chain of more than 64 calls"):
            await outcome(call(method, 65))
        assert await outcome(call(method, 1)) == 0
        assert caplog.text == ""


class Baton(msgspec.Struct, eq=False, weakref=True):
    """What a call is given: a thread keeps it as long as it keeps the call."""


class Ring(Thread[int]):
    """Hands on to the next thread in a task, and does not wait for that."""

    initial_state: Any = 0
    next: ClassVar[asyncio.Future[None]]
    batons: ClassVar[weakref.WeakSet[Baton]] = weakref.WeakSet()

    @rpc
    async def hand_on(self, left: int, baton: Baton) -> None:
        self.batons.add(baton)
        await self.set_state(lambda n: n + 1)
        if left:
            Ring.next = asyncio.ensure_future(self.thread(Ring, str(left % 3)).call(Ring.hand_on, left - 1, Baton()))
            await asyncio.sleep(0)


async def test_turns_that_hand_on_and_end_are_no_chain_of_calls_and_are_not_kept() -> None:
    async with open_house(Ring) as house:
        Ring.next = asyncio.ensure_future(house.handle(Ring).hand_on(300, Baton()))
        last = None
        async with asyncio.timeout(PATIENCE):
            while Ring.next is not last:
                last = Ring.next
                await last
        states = [await house.handle(Ring, str(place)).state() for place in range(3)]
        assert sum(states) + await house.handle(Ring).state() == 301
        gc.collect()
        assert len(Ring.batons) < 150


async def test_a_call_from_elsewhere_waits_for_the_whole_chain() -> None:
    async with open_house(Ping, Pong) as house:
        handle = house.handle(Ping)
        await outcome(asyncio.gather(handle.ping(1), handle.note()))
        assert await lines(house, Ping) == ["ping begins"] * 2 + ["ping ends"] * 2 + ["note"]


async def test_a_chain_whose_first_caller_timed_out_still_holds_the_thread_until_it_has_ended() -> None:
    async with open_house(Ping, Pong) as house:
        handle, actor = house.handle(Ping), await house.actor(Ping)
        thread: Any = actor.thread
        call = asyncio.create_task(handle.through())
        await outcome(thread.runs.wait())
        note = asyncio.create_task(handle.note())
        actor.sweep(asyncio.get_running_loop().time() + 1_000)
        with pytest.raises(TurnTimeout):
            await outcome(call)
        thread.gate.set()
        await outcome(note)
        found = await lines(house, Ping)
        assert found in (["wait begins", "wait ends", "note"], ["wait begins", "note"])


async def test_a_chain_that_never_ends_is_given_up_whole() -> None:
    async with open_house(Ping, Pong) as house:
        handle, actor = house.handle(Ping), await house.actor(Ping)
        thread: Any = actor.thread
        call = asyncio.create_task(handle.through())
        await outcome(thread.runs.wait())
        note = asyncio.create_task(handle.note())
        now = asyncio.get_running_loop().time()
        for minutes in (10, 20, 30):
            actor.sweep(now + 60 * minutes)
            await asyncio.sleep(0)
        with pytest.raises(TurnTimeout):
            await outcome(call)
        try:
            await outcome(note)
        finally:
            thread.gate.set()
        assert (await lines(house, Ping))[-1] == "note"


async def test_a_thread_may_call_others_and_itself_while_it_starts() -> None:
    class Waking(Room):
        async def on_start(self) -> None:  # type: ignore[override]
            super().on_start()
            self.lines += await self.thread(Pong, "one").call(Pong.pong, 1)
            self.lines.append(await self.thread(Waking, self.name).call(Waking.hello))

        @rpc
        def hello(self) -> str:
            return "hello"

    async with open_house(Waking, Ping, Pong) as house:
        assert await lines(house, Waking) == ["pong", "ping", "hello"]


# Turns that run too long


class Slow(Room):
    turn_timeout = 5.0

    @rpc
    async def hang(self) -> None:
        self.runs.set()
        await self.never_there()

    async def never_there(self) -> None:
        await asyncio.Event().wait()

    @rpc
    async def tidy(self) -> None:
        try:
            self.runs.set()
            await asyncio.Event().wait()
        finally:
            await self.gate.wait()
            self.lines.append("tidied")

    @rpc
    def note(self) -> None:
        self.lines.append("note")


async def test_a_turn_that_runs_too_long_is_cancelled_and_logged_with_where_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house(Slow) as house:
        actor, handle = await house.actor(Slow), house.handle(Slow)
        thread: Any = actor.thread
        call = asyncio.create_task(handle.hang())
        await outcome(thread.runs.wait())
        now = asyncio.get_running_loop().time()
        actor.sweep(now + 4)
        assert not call.done()
        actor.sweep(now + 6)
        with pytest.raises(TurnTimeout, match="hang"):
            await outcome(call)
        await outcome(handle.note())
    assert "never_there" in caplog.text
    assert "slow/one" in [getattr(each, "plait_thread", None) for each in caplog.records]


async def test_the_next_turn_begins_when_the_one_that_ran_too_long_has_ended() -> None:
    async with open_house(Slow) as house:
        actor, handle = await house.actor(Slow), house.handle(Slow)
        thread: Any = actor.thread
        call, note = asyncio.create_task(handle.tidy()), asyncio.create_task(handle.note())
        await outcome(thread.runs.wait())
        now = asyncio.get_running_loop().time()
        actor.sweep(now + 6)
        actor.sweep(now + 60)
        thread.gate.set()
        with pytest.raises(TurnTimeout):
            await outcome(call)
        await outcome(note)
        assert await lines(house, Slow) == ["tidied", "note"]


async def test_a_thread_may_have_no_limit_for_its_turns() -> None:
    class Patient(Ping):
        turn_timeout = None

    async with open_house(Patient) as house:
        actor = await house.actor(Patient)
        thread: Any = actor.thread
        call = asyncio.create_task(house.handle(Patient).wait())
        await outcome(thread.runs.wait())
        actor.sweep(asyncio.get_running_loop().time() + 1e9)
        thread.gate.set()
        await outcome(call)


# Callers that go away


async def test_a_call_whose_caller_went_away_before_its_turn_is_skipped() -> None:
    async with open_house(Slow) as house:
        handle, thread = house.handle(Slow), (await house.actor(Slow)).thread
        first = asyncio.create_task(handle.tidy())
        await outcome(thread.runs.wait())  # type: ignore[attr-defined]
        second, third = asyncio.create_task(handle.note()), asyncio.create_task(handle.note())
        await asyncio.sleep(0)
        second.cancel()
        thread.gate.set()  # type: ignore[attr-defined]
        (await house.actor(Slow)).sweep(asyncio.get_running_loop().time() + 60)
        with pytest.raises(TurnTimeout):
            await outcome(first)
        await outcome(third)
        assert await lines(house, Slow) == ["tidied", "note"]


async def test_a_call_that_has_begun_ends_whoever_was_cancelled() -> None:
    async with open_house(Ping, Pong) as house:
        handle, thread = house.handle(Ping), (await house.actor(Ping)).thread
        call = asyncio.create_task(handle.wait())
        await outcome(thread.runs.wait())  # type: ignore[attr-defined]
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        note = asyncio.create_task(handle.note())
        thread.gate.set()  # type: ignore[attr-defined]
        await outcome(note)
        assert await lines(house, Ping) == ["wait begins", "wait ends", "note"]


# Requests


async def test_a_request_is_a_turn_whose_answer_waits_for_the_disk() -> None:
    class Page(Room):
        async def on_request(self, request: Request) -> Response:
            self.set_state(lambda state: state + 1)
            return PlainTextResponse(str(self.state))

    async with open_house(Page) as house:
        actor = await house.actor(Page)
        house.store.is_held = True
        futures: list[asyncio.Future[Any]] = []
        for _ in range(2):
            futures.append(asyncio.get_running_loop().create_future())
            actor.turns.request(make_request(), make_resolver(futures[-1]), party=None)
        async with asyncio.timeout(PATIENCE):
            while len(house.store.submitted) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert not futures[0].done()
        house.store.resume()
        assert [(await outcome(future)).body for future in futures] == [b"1", b"2"]


async def test_a_request_that_no_author_answers_is_not_found() -> None:
    async with open_house(Room) as house:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (await house.actor(Room)).turns.request(make_request(), make_resolver(future), party=None)
        assert (await outcome(future)).status_code == 404


# Sleep


async def test_a_thread_is_idle_when_nobody_needs_it() -> None:
    class Streaming(Room):
        @rpc
        async def count(self) -> AsyncIterator[int]:
            yield 1
            await self.gate.wait()

    async with open_house(Streaming) as house:
        actor = await house.actor(Streaming)
        assert actor.is_unused
        client = await house.join(Streaming, "a")
        assert not actor.is_unused
        client.leave()
        await outcome(actor.wait_until_idle())
        assert actor.is_unused
        stream = house.handle(Streaming).count()
        assert await outcome(anext(stream)) == 1
        assert not actor.is_unused
        await stream.aclose()
        async with asyncio.timeout(PATIENCE):
            while not actor.is_unused:  # noqa: ASYNC110
                await asyncio.sleep(0)
        house.store.is_held = True
        commit = actor.thread.set_state(1)
        assert not actor.is_unused
        house.store.resume()
        await outcome(commit)
        assert actor.is_unused


async def test_an_idle_thread_keeps_nothing_of_its_log_in_memory() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        client = await house.join(Room, "a")
        await outcome(actor.thread.set_state(1))
        now = asyncio.get_running_loop().time()
        assert actor.sweep(now) == inf
        assert len(actor.state.history.recent(1)) == 1
        client.leave()
        await outcome(actor.wait_until_idle())
        assert actor.sweep(now) == actor.usage.last_used + 60
        assert actor.state.history.recent(1) == []


async def test_a_stopped_thread_takes_no_more_changes() -> None:
    class Leaving(Room):
        def on_stop(self) -> None:
            self.set_state("stopped")

    async with open_house(Leaving) as house:
        actor = await house.actor(Leaving)
        await outcome(actor.stop())
        assert actor.state.is_durable
        with pytest.raises(Unavailable):
            actor.thread.set_state(1)


async def test_an_on_stop_that_raises_is_told_and_stops_nothing() -> None:
    class Clumsy(Room):
        def on_stop(self) -> None:
            raise LookupError("clumsy")

        def on_error(self, error: BaseException, connection: Connection | None) -> None:
            self.lines.append(str(error))

    async with open_house(Clumsy) as house:
        actor = await house.actor(Clumsy)
        await outcome(actor.stop())
        assert actor.thread.lines == ["clumsy"]  # type: ignore[attr-defined]


async def test_a_call_that_is_given_up_ends_in_an_error_of_ours() -> None:
    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        calls = [asyncio.create_task(house.handle(Slow).hang()) for _ in range(2)]
        await outcome(actor.thread.runs.wait())  # type: ignore[attr-defined]
        actor.abort()
        await asyncio.wait(calls, timeout=PATIENCE)
        assert [not call.cancelled() and isinstance(call.exception(), PlaitError) for call in calls] == [True, True]


async def test_a_reject_is_told_to_the_code_that_tried() -> None:
    class Strict(Room):
        def validate_state_change(self, next_state: Any, source: Source) -> None:
            raise Reject("never", path="/n")

    async with open_house(Strict) as house:
        with pytest.raises(Reject, match="never") as caught:
            await house.handle(Strict).set_state(1)
        assert caught.value.path == "/n"


@each_case("answer", [True, False, 0, "no"])
async def test_a_validator_that_returns_an_answer_accepts_nothing(answer: Any) -> None:
    class Asking(Room):
        def validate_state_change(self, next_state: Any, source: Source) -> Any:
            return answer

    async with open_house(Asking) as house:
        name = type(answer).__name__
        with pytest.raises(
            TypeError,
            match=rf"^validate_state_change returned {name}: it must raise an error, for example Reject",
        ):
            await house.handle(Asking).set_state(1)
        assert await house.handle(Asking).state() == 0
        client = await house.join(Asking, "a")
        client.push(5)
        assert (await client.next())["type"] == "cf_agent_state_error"
        assert await house.handle(Asking).state() == 0


class Endless(Thread[Any]):
    """Streams numbers, and never ends by itself."""

    @rpc
    async def count(self) -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()


async def test_a_stream_that_is_cancelled_before_it_has_begun_ends_all_the_same() -> None:
    async with open_house(Endless) as house:
        actor = await house.actor(Endless)
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        method = actor.kind.methods["count"]
        turn = actor.turns.call(method, ([], {}), make_resolver(ended), sink=lambda what, value: lambda: None)
        turn.cancel()
        with pytest.raises(Unavailable):
            await outcome(ended)
        await outcome(actor.wait_until_idle())
        assert actor.is_unused
