"""What becomes of a turn that has made or seen a change, when that is lost while the turn awaits something else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.rooms import House, open_house

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import CallFailed, StoreError

PATIENCE = 10.0


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


class Counter(Thread[int]):
    initial_state: Any = 0

    def on_start(self) -> None:
        self.gate = asyncio.Event()
        self.told: list[Any] = []

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
        commit = self.set_state(lambda state: state + n)
        try:
            await commit
        except StoreError:
            return "not added"
        return "added"

    @rpc
    async def add_and_emit(self, n: int) -> None:
        self.set_state(lambda state: state + n)
        await self.gate.wait()
        self.emit("added", n)

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


@pytest.mark.parametrize("method", ["add", "add_and_read", "add_and_emit"])
async def test_a_call_whose_change_was_lost_while_it_waited_for_something_else_is_told(method: str) -> None:
    async with open_house(Counter) as house:
        client = await house.join(Counter, "a")
        (call,) = await begun(house, house.handle(Counter).call(method, 5))
        await fail(house, call)
        assert await outcome(house.handle(Counter).state()) == (5 if method == "add_and_read" else 0)
        assert [each for each in client.transport.sent if each.get("type") == "event"] == []


async def test_a_call_that_awaits_its_change_answers_for_the_loss_itself() -> None:
    async with open_house(Counter) as house:
        (call,) = await begun(house, house.handle(Counter).call("add_and_know", 5))
        house.store.fail_next()
        house.store.resume()
        assert await outcome(call) == "not added"
        assert await outcome(house.handle(Counter).call("add_and_know", 5)) == "added"


async def test_a_call_that_has_seen_a_lost_change_of_another_one_is_told() -> None:
    async with open_house(Counter) as house:
        change, look = await begun(house, house.handle(Counter).set_state(7), house.handle(Counter).call("look"))
        await fail(house, change)
        with pytest.raises(StoreError, match="the disk is full"):
            await outcome(look)


async def test_a_call_that_has_neither_made_nor_seen_a_lost_change_is_answered() -> None:
    async with open_house(Counter) as house:
        handle = house.handle(Counter)
        await outcome(handle.set_state(1))
        look = asyncio.ensure_future(handle.call("look"))
        await asyncio.sleep(0)
        change, wait = await begun(house, handle.set_state(7), handle.call("wait"))
        await fail(house, change)
        assert (await outcome(look), await outcome(wait)) == (1, "waited")


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
