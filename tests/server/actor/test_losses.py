"""What becomes of a turn that has made or seen a change, when that is lost while the turn awaits something else."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from tests.server.fakes import TroubledStore
from tests.server.rooms import Client, House, make_request, open_house
from tests.server.session.guests import Guest

from plait.actor.connection import Connection
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.errors import CallFailed, StoreError
from plait.parts.values import Values
from plait.state.commit import Commit

PATIENCE = 10.0


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def tell(change: Commit) -> str:
    """Return what became of a change."""
    try:
        await change
    except StoreError:
        return "not added"
    return "added"


class Left(BaseException):
    """What an interrupt raises is no Exception, either."""


class Counter(Thread[int]):
    initial_state: Any = 0
    values = Values()

    def on_start(self) -> None:
        self.gate = asyncio.Event()
        self.told: list[Any] = []

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.told.append(error)

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        seen = self.state
        await self.gate.wait()
        connection.send(f"{data!r}: {seen}")

    @rpc
    async def add(self, n: int) -> str:
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        return "added"

    @rpc
    async def add_and_read(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        self.set_state(lambda state: state + n)
        return self.state

    @rpc
    async def add_and_know(self, n: int) -> str:
        return await tell(self.set_state(lambda state: state + n))

    @rpc
    async def add_and_emit(self, n: int) -> None:
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        self.emit("added", n)

    @rpc
    async def add_and_get(self, n: int) -> str:
        self.set_state(lambda state: state + n)
        await self.values.get("key")  # Waits for the change, and says nothing of what became of it.
        return "added"

    @rpc
    async def add_and_undo(self, n: int) -> str:
        self.set_state(lambda state: state + n)
        await self.undo("server")
        return "added"

    @rpc
    async def add_in_block(self, n: int) -> str:
        with self.transaction():
            commit = self.set_state(lambda state: state + n)
        return await tell(commit)

    @rpc
    async def add_twice_and_know_once(self, n: int) -> str:
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        try:
            await self.set_state(lambda state: state + n)
        except StoreError:
            return "added once"
        return "added"

    @rpc
    async def add_and_tell_in_block(self, n: int) -> None:
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        with self.transaction():
            self.set_state(lambda state: state + 100)
            self.emit("added", n)
            self.set_presence("server", n)

    @rpc(concurrent=True)
    async def look_and_close(self) -> None:
        assert self.state
        await self.gate.wait()
        for connection in self.connections():
            connection.close(4000, "the end")

    @rpc(concurrent=True)
    async def add_and_greet(self, n: int) -> None:
        self.set_state(lambda state: state + n)
        self.broadcast("hello")

    @rpc(concurrent=True)
    async def look_at_version(self) -> int:
        seen = self.version
        await self.gate.wait()
        return seen

    @rpc(concurrent=True)
    async def look_at_value(self) -> Any:
        seen = await self.values.get("key")
        await self.gate.wait()
        return seen

    @rpc
    async def add_while_a_task_saves(self, n: int) -> str:
        await self.values.get("key")
        saving = asyncio.create_task(self.values.set("key", n))
        await asyncio.sleep(0)
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        with pytest.raises(StoreError):
            await saving
        return "added"

    @rpc
    async def add_and_leave(self, n: int) -> str:
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        raise Left

    @rpc
    async def add_after_the_end(self, stream: Stream) -> None:
        stream.end("the end")
        self.set_state(lambda state: state + 1)
        await self.gate.wait()

    @rpc
    async def add_often_and_know_only_the_first(self, n: int) -> str:
        commits = []
        for _ in range(n):
            commits.append(self.set_state(lambda state: state + 1))
            while not commits[-1].is_done:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for commit in commits[:-1]:
            with pytest.raises(StoreError):
                await commit
        return "added"

    @rpc
    async def count(self) -> AsyncIterator[int]:
        self.set_state(lambda state: state + 1)
        seen = self.state
        await self.gate.wait()
        yield seen

    @rpc(concurrent=True)
    async def look(self) -> int:
        seen = self.state
        await self.gate.wait()
        return seen

    @rpc(concurrent=True)
    async def wait(self) -> str:
        await self.gate.wait()
        return "waited"

    @rpc
    async def add_in_steps(self, n: int, steps: int) -> str:
        self.set_state(lambda state: state + n)
        for _ in range(steps):
            await asyncio.sleep(0)
        return "added"


async def fail(house: House, change: Awaitable[Any]) -> None:
    """Make the write of a change fail, while the turns wait at the gate, and let them go on then."""
    actor = await house.actor(Counter)
    house.store.fail_next()
    house.store.resume()
    await outcome(actor.pipeline.wait_until_durable())
    cast(Counter, actor.thread).gate.set()
    with pytest.raises((StoreError, CallFailed), match="the disk is full"):
        await outcome(change)


async def begun(house: House, *calls: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Begin calls, of which the first one makes a change whose write waits."""
    await house.actor(Counter)
    house.store.is_held = True
    tasks = [asyncio.create_task(call) for call in calls]
    async with asyncio.timeout(PATIENCE):
        while not house.store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize(
    ("method", "state"),
    [("add", 0), ("add_and_read", 5), ("add_and_emit", 0), ("add_and_get", 0), ("add_and_tell_in_block", 100)],
)
async def test_a_call_whose_change_was_lost_while_it_waited_for_something_else_is_told(method: str, state: int) -> None:
    async with open_house(Counter) as house:
        client, actor = await house.join(Counter, "a"), await house.actor(Counter)
        (call,) = await begun(house, house.handle(Counter).call(method, 5))
        await fail(house, call)
        assert await outcome(house.handle(Counter).state()) == state
        assert [each for each in client.transport.sent if each.get("type") == "event"] == []
        assert actor.thread.presence() == {}


async def test_a_task_that_knows_of_a_loss_does_not_answer_for_its_call() -> None:
    async with open_house(Counter) as house:
        (call,) = await begun(house, house.handle(Counter).call("add_while_a_task_saves", 5))
        await fail(house, call)


async def test_a_call_that_is_interrupted_is_so_whatever_was_lost() -> None:
    async with open_house(Counter) as house:
        (call,) = await begun(house, house.handle(Counter).call("add_and_leave", 5))
        house.store.fail_next()
        house.store.resume()
        actor = await house.actor(Counter)
        await outcome(actor.pipeline.wait_until_durable())
        cast(Counter, actor.thread).gate.set()
        with pytest.raises(Left):
            await outcome(call)


async def test_a_stream_that_has_ended_is_answered_once_and_on_error_is_told_of_a_loss() -> None:
    async with open_house(Counter) as house:
        client, actor = await house.join(Counter, "a"), await house.actor(Counter)
        house.store.is_held = True
        client.call("1", "add_after_the_end")
        async with asyncio.timeout(PATIENCE):
            while not house.store.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        await outcome(actor.pipeline.wait_until_durable())
        cast(Counter, actor.thread).gate.set()
        await outcome(actor.wait_until_idle())
        assert [each["result"] for each in client.transport.sent if each.get("type") == "rpc"] == ["the end"]
        assert [type(each) for each in cast(Counter, actor.thread).told] == [StoreError]


@pytest.mark.parametrize("count", [2, 11, 12])
async def test_a_call_is_told_however_many_changes_it_has_lost(count: int) -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        await outcome(actor.store())
        house.store.fail_all()
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(house.handle(Counter).call("add_often_and_know_only_the_first", count))


async def test_an_undo_of_a_change_that_was_lost_is_not_answered() -> None:
    async with open_house(Counter) as house:
        await outcome(house.handle(Counter).set_state(1))
        (call,) = await begun(house, house.handle(Counter).call("add_and_undo", 5))
        await fail(house, call)


@pytest.mark.parametrize("method", ["add_and_know", "add_in_block"])
async def test_a_call_that_awaits_its_change_answers_for_the_loss_itself(method: str) -> None:
    async with open_house(Counter) as house:
        (call,) = await begun(house, house.handle(Counter).call(method, 5))
        house.store.fail_next()
        house.store.resume()
        assert await outcome(call) == "not added"
        assert await outcome(house.handle(Counter).call(method, 5)) == "added"


async def test_a_call_that_knows_of_one_loss_does_not_answer_for_another_one() -> None:
    async with open_house(Counter) as house:
        (call,) = await begun(house, house.handle(Counter).call("add_twice_and_know_once", 5))
        actor = await house.actor(Counter)
        house.store.fail_next()
        house.store.resume()
        await outcome(actor.pipeline.wait_until_durable())
        house.store.fail_next()
        cast(Counter, actor.thread).gate.set()
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(call)


@pytest.mark.parametrize("method", ["look", "look_at_version"])
async def test_a_call_that_has_seen_a_lost_change_of_another_one_is_told(method: str) -> None:
    async with open_house(Counter) as house:
        change, look = await begun(house, house.handle(Counter).set_state(7), house.handle(Counter).call(method))
        await fail(house, change)
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(look)


async def test_a_call_that_has_seen_a_lost_value_is_told() -> None:
    async with open_house(Counter) as house:
        handle = house.handle(Counter)
        await outcome(handle.values.set("key", "old"))
        change, look = await begun(house, handle.values.set("key", "lost"), handle.call("look_at_value"))
        await fail(house, change)
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(look)
        assert await outcome(handle.values.get("key")) == "old"


@asynccontextmanager
async def open_with_value() -> AsyncIterator[House]:
    """Open a house with a stored value that is not known yet."""
    store = TroubledStore()
    async with open_house(Counter, store=store) as house:
        await outcome(house.handle(Counter).values.set("key", "old"))
    async with open_house(Counter, store=store) as house:
        yield house


async def test_a_call_that_has_read_what_is_stored_is_answered_whatever_else_is_lost() -> None:
    async with open_with_value() as house:
        handle = house.handle(Counter)
        change, look = await begun(house, handle.set_state(7), handle.call("look_at_value"))
        await fail(house, change)
        assert await outcome(look) == "old"


async def test_a_call_is_told_of_a_lost_value_that_was_written_while_it_read() -> None:
    async with open_with_value() as house:
        handle = house.handle(Counter)
        await house.actor(Counter)
        gate = house.store.read_gate = asyncio.Event()
        look = asyncio.create_task(handle.call("look_at_value"))
        async with asyncio.timeout(PATIENCE):
            while house.store.read_gate is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        (clearing,) = await begun(house, handle.values.clear())
        gate.set()
        await asyncio.sleep(0)
        await fail(house, clearing)
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(look)
        assert await outcome(handle.values.get("key")) == "old"


async def test_what_a_call_sends_after_a_loss_does_not_overtake_what_others_have_sent() -> None:
    async with open_house(Counter) as house:
        handle, client = house.handle(Counter), await house.join(Counter, "a")
        change, look = await begun(house, handle.set_state(7), handle.call("look_and_close"))
        actor = await house.actor(Counter)
        house.store.fail_next()
        house.store.resume(1)
        await outcome(actor.pipeline.wait_until_durable())
        (greeting,) = await begun(house, handle.call("add_and_greet", 1))
        cast(Counter, actor.thread).gate.set()
        await asyncio.sleep(0)
        house.store.resume()
        await outcome(greeting)
        for lost in (change, look):
            with pytest.raises(StoreError, match="the disk is full"):
                await outcome(lost)
        assert client.transport.sent[-2:] == [{"type": "cf_agent_state", "state": 1}, "hello"]


async def test_a_call_is_not_told_of_the_loss_of_a_clients_change() -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        guest = Guest(actor, "a" * 16)
        joining = await guest.prepare()
        (call,) = await begun(house, house.handle(Counter).call("add", 5))
        guest.join(joining)
        guest.push({"op": "replace", "path": "", "value": 9}, base=1)
        house.store.resume(1)
        async with asyncio.timeout(PATIENCE):
            while not house.store.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        await outcome(actor.pipeline.wait_until_durable())
        cast(Counter, actor.thread).gate.set()
        assert await outcome(call) == "added"
        assert [each["type"] for each in guest.frames] == ["joined", "nack"]


async def test_what_a_hook_would_send_after_a_loss_is_told_to_on_error() -> None:
    async with open_house(Counter) as house:
        client, actor = await house.join(Counter, "a"), await house.actor(Counter)
        (change,) = await begun(house, house.handle(Counter).set_state(7))
        client.send("hello")
        await asyncio.sleep(0)
        await fail(house, change)
        await outcome(actor.wait_until_idle())
        assert [type(each) for each in cast(Counter, actor.thread).told] == [StoreError]
        assert [each for each in client.transport.sent if isinstance(each, str)] == []


async def test_who_holds_a_change_does_not_keep_the_thread_in_memory() -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        commit = actor.thread.set_state(1)
        assert await outcome(commit) == 1
        thread = weakref.ref(actor.thread)
        await house.node.stop(PATIENCE)
        del actor
        gc.collect()
        assert thread() is None


class Guarded(Counter):
    async def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        may = self.state == 7
        await self.gate.wait()
        return not may


class Quick(Counter):
    def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        return bool(self.state != 7)


GUARDED = pytest.mark.parametrize("guarded", [Guarded, Quick])


@GUARDED
async def test_nobody_is_let_in_by_a_state_that_was_lost(guarded: type[Counter]) -> None:
    async with open_house(guarded) as house:
        actor = await house.actor(guarded)
        await outcome(actor.store())
        house.store.is_held = True
        change = asyncio.create_task(house.handle(guarded).set_state(7))
        await asyncio.sleep(0)
        client = Client(actor, "a")
        client.open()
        await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        with pytest.raises(StoreError):
            await outcome(change)
        cast(Counter, actor.thread).gate.set()
        await outcome(actor.wait_until_idle())
        assert client.transport.sent == []
        assert client.transport.closed is not None


@GUARDED
async def test_nobody_may_write_by_a_state_that_was_lost(guarded: type[Counter]) -> None:
    async with open_house(guarded) as house:
        actor = await house.actor(guarded)
        house.store.is_held = True
        change = asyncio.create_task(house.handle(guarded).set_state(7))
        await asyncio.sleep(0)
        asking = asyncio.ensure_future(actor.is_readonly(Client(actor, "a").connection, make_request()))
        await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        with pytest.raises(StoreError):
            await outcome(change)
        cast(Counter, actor.thread).gate.set()
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(asking)


async def test_a_call_that_has_neither_made_nor_seen_a_lost_change_is_answered() -> None:
    async with open_house(Counter) as house:
        handle = house.handle(Counter)
        await outcome(handle.set_state(1))
        look = asyncio.ensure_future(handle.call("look"))
        await asyncio.sleep(0)
        change, wait = await begun(house, handle.set_state(7), handle.call("wait"))
        await fail(house, change)
        assert (await outcome(look), await outcome(wait)) == (1, "waited")


async def test_a_call_that_has_seen_only_the_state_is_answered_where_a_value_is_lost() -> None:
    async with open_house(Counter) as house:
        handle = house.handle(Counter)
        await outcome(handle.set_state(7))
        change, look = await begun(house, handle.values.set("key", 1), handle.call("look"))
        await fail(house, change)
        assert await outcome(look) == 7


async def test_a_stream_gives_nothing_more_after_a_lost_change() -> None:
    async with open_house(Counter) as house:
        found: list[int] = []

        async def read() -> None:
            async for each in house.handle(Counter).count():
                found[len(found) :] = [each]

        (reading,) = await begun(house, read())
        await fail(house, reading)
        assert found == []


async def test_a_loss_is_of_the_calls_at_that_time() -> None:
    async with open_house(Counter) as house:
        (call,) = await begun(house, house.handle(Counter).call("add", 5))
        await fail(house, call)
        assert await outcome(house.handle(Counter).call("add", 3)) == "added"
        assert await outcome(house.handle(Counter).state()) == 3


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
async def test_what_is_answered_is_in_the_state(calls: list[tuple[int, bool]]) -> None:
    async with open_house(Counter) as house:
        handle = house.handle(Counter)
        await handle.state()
        tasks = []
        for place, (steps, is_failing) in enumerate(calls):
            if is_failing:
                house.store.fail_next()
            tasks.append(asyncio.ensure_future(handle.call("add_in_steps", 1 << place, steps)))
            for _ in range(steps):
                await asyncio.sleep(0)
        answers = await outcome(asyncio.gather(*tasks, return_exceptions=True))
        state = await outcome(handle.state())
        for place, answer in enumerate(answers):
            assert (answer == "added") == bool(state & 1 << place), (place, answer, state)
