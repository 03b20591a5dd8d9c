"""What runs and waits in a thread while it ends: who owns it, and what it is told."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.node.test_destroying import Gate, is_gone, join_all, key_of, outcome, settle
from tests.server.rooms import open_house

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import Destroyed, Indeterminate, Readonly, TurnTimeout, Unavailable


class Room(Thread[Any]):
    """Has turns that can be held up."""

    initial_state = 0
    gate: Gate
    rest: Gate
    told: list[Any]

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)

    @rpc
    async def wait(self) -> int:
        await self.gate.wait()
        return int(self.state)

    @rpc
    async def end(self) -> str:
        await self.gate.wait()
        await self.destroy()
        try:
            await self.rest.wait()
        finally:
            await settle()
            self.told.append("rest")
        return "ended"

    @rpc(concurrent=True)
    async def end_beside(self) -> str:
        return await self.end()


def make_room() -> type[Room]:
    class Fresh(Room):
        kind = "room"
        gate, rest = Gate(), Gate()
        told: list[Any] = []  # noqa: RUF012

    return Fresh


# A thread that ends while something waits for it to be idle


async def test_a_server_that_drains_waits_for_a_turn_that_ends_its_thread_and_for_the_rest_of_it() -> None:
    cls = make_room()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        ending = asyncio.create_task(house.handle(cls).end())
        await outcome(cls.gate.reached.wait())
        draining = house.node.drain(60)
        await settle()
        cls.gate.opened.set()
        await outcome(cls.rest.reached.wait())
        assert not draining.done()
        cls.rest.opened.set()
        assert await outcome(ending) == "ended"
        await outcome(draining)
        assert await house.store.find(key_of(cls)) is None


async def test_a_server_that_drains_waits_for_an_end_that_waits_for_a_turn() -> None:
    cls = make_room()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        waiting = asyncio.create_task(house.handle(cls).wait())
        await outcome(cls.gate.reached.wait())
        ending = asyncio.create_task(house.handle(cls).destroy())
        await settle()
        draining = house.node.drain(60)
        await settle()
        cls.gate.opened.set()
        assert await outcome(waiting) == 5
        await outcome(ending)
        await outcome(draining)
        assert await house.store.find(key_of(cls)) is None


async def test_a_turn_of_a_lost_thread_cannot_end_it() -> None:
    told: list[Any] = []

    class Lost(Room):
        gate = Gate()

        @rpc
        async def work(self) -> None:
            self.set_state(9)
            try:
                await self.gate.wait()
            finally:
                try:
                    await self.destroy()
                except Indeterminate as error:
                    told.append(error)
                    raise

        def on_destroyed(self) -> None:
            told.append(self.state)

    async with open_house(Lost) as house:
        await house.handle(Lost).add(5)
        house.store.is_held = True
        working = asyncio.create_task(house.handle(Lost).work())
        await outcome(Lost.gate.reached.wait())
        house.store.fail_next(error := Indeterminate("who knows"))
        house.store.resume()
        found = await outcome(asyncio.gather(working, return_exceptions=True))
        assert found == told == [error]
        assert await outcome(house.handle(Lost).add(1)) == 6


# The rest of a turn, after the end


async def test_the_rest_of_a_turn_ends_after_turn_timeout_and_the_next_thread_begins_before() -> None:
    cls = make_room()
    cls.turn_timeout = 0.2
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        cls.gate.opened.set()
        ending = asyncio.create_task(house.handle(cls).end())
        await outcome(cls.rest.reached.wait())
        assert await outcome(house.handle(cls).add(1)) == 1
        with pytest.raises(TurnTimeout):
            await outcome(ending)
        assert cls.told == ["rest"]


@each_case("method", ["end", "end_beside"])
async def test_a_node_that_stops_ends_the_rest_of_a_turn(method: str) -> None:
    cls = make_room()
    cls.turn_timeout = None
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        cls.gate.opened.set()
        ending = asyncio.create_task(house.handle(cls).call(method))
        await outcome(cls.rest.reached.wait())
        assert not cls.told
        await outcome(house.node.stop(0.3))
        assert cls.told == ["rest"]
        with pytest.raises(Destroyed):
            await outcome(ending)


async def test_a_node_that_stops_cancels_the_rest_of_a_turn_again() -> None:
    class Stubborn(Room):
        turn_timeout = None
        gate = Gate()
        told: list[Any] = []  # noqa: RUF012

        @rpc
        async def end(self) -> str:
            await self.destroy()
            with suppress(asyncio.CancelledError):
                await self.gate.wait()
            try:
                await asyncio.Event().wait()
            finally:
                self.told.append("rest")
            return "ended"

    async with open_house(Stubborn) as house:
        await house.handle(Stubborn).add(5)
        ending = asyncio.create_task(house.handle(Stubborn).end())
        await outcome(Stubborn.gate.reached.wait())
        await outcome(house.node.stop(0.05))
        assert Stubborn.told == ["rest"]
        with pytest.raises(Destroyed):
            await outcome(ending)


async def test_a_node_that_stops_waits_for_the_rest_of_a_turn() -> None:
    cls = make_room()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        cls.gate.opened.set()
        ending = asyncio.create_task(house.handle(cls).end())
        await outcome(cls.rest.reached.wait())
        stopping = asyncio.create_task(house.node.stop(60))
        await settle()
        assert not stopping.done()
        cls.rest.opened.set()
        assert await outcome(ending) == "ended"
        await outcome(stopping)


# An end that waits for turns


async def test_an_end_that_waits_for_a_turn_is_told_that_its_thread_was_dropped() -> None:
    cls = make_room()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        waiting = asyncio.create_task(house.handle(cls).wait())
        await outcome(cls.gate.reached.wait())
        ending = asyncio.create_task(house.handle(cls).destroy())
        await settle()
        house.store.fail_next(error := Indeterminate("who knows"))
        with pytest.raises(Indeterminate):
            await outcome(house.handle(cls).set_state(7))
        assert await outcome(asyncio.gather(waiting, ending, return_exceptions=True)) == [error, error]


async def test_an_end_that_waits_for_a_turn_is_told_that_the_server_shuts_down() -> None:
    cls = make_room()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        waiting = asyncio.create_task(house.handle(cls).wait())
        await outcome(cls.gate.reached.wait())
        ending = asyncio.create_task(house.handle(cls).destroy())
        await settle()
        await outcome(house.node.drain(0.05))
        for each in (waiting, ending):
            with pytest.raises(Unavailable, match="shutting down"):
                await outcome(each)
        assert await house.store.find(key_of(cls)) is not None


# An end that a node cancels, as it stops


class Stuck(Room):
    """Has an `on_destroyed` that does not end by itself."""

    turn_timeout = None

    async def on_destroyed(self) -> None:
        self.broadcast("goodbye")
        try:
            await self.gate.wait()
        finally:
            self.told.append("cancelled")


def make_stuck() -> type[Stuck]:
    class Fresh(Stuck):
        kind = "stuck"
        gate = Gate()
        told: list[Any] = []  # noqa: RUF012

    return Fresh


@each_case("is_drained", [False, True])
async def test_whoever_waits_for_an_end_that_does_not_come_is_told_that_the_server_shuts_down(
    *, is_drained: bool
) -> None:
    cls = make_stuck()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
        guest, client = await join_all(house, cls)
        if is_drained:
            await outcome(house.node.drain(60))
        ending = asyncio.create_task(house.handle(cls).destroy())
        await outcome(cls.gate.reached.wait())
        answers: list[Any] = []
        guest.actor.turns.call(cls._kind.method("add"), ([1], {}), lambda *told: answers.append(told))
        later = asyncio.create_task(house.handle(cls).add(1))
        await settle()
        await outcome(house.node.stop(0.05))
        for each in (ending, later):
            with pytest.raises(Unavailable, match="shutting down"):
                await outcome(each)
        assert cls.told == ["cancelled"]
        assert [type(error) for _, error in answers] == [Unavailable]
        assert guest.frames == client.transport.take() == [None]
        assert await house.store.find(key_of(cls)) is not None


async def test_whoever_ends_a_sleeping_thread_that_is_stuck_is_told_that_the_server_shuts_down() -> None:
    cls = make_stuck()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
    async with open_house(cls, store=house.store) as house:
        ending = asyncio.create_task(house.handle(cls).destroy())
        await outcome(cls.gate.reached.wait())
        await outcome(house.node.stop(0.05))
        with pytest.raises(Unavailable, match="shutting down"):
            await outcome(ending)
        assert cls.told == ["cancelled"]
        assert await house.store.find(key_of(cls)) is not None


async def test_a_node_that_stops_ends_the_turns_of_a_thread_that_it_has_woken_to_destroy_it() -> None:
    class Busy(Room):
        turn_timeout = None
        gate = Gate()
        told: list[Any] = []  # noqa: RUF012

        async def on_start(self) -> None:
            await self.set_state(lambda state: state + 1)

        async def on_state_changed(self, state: Any, source: Any) -> None:
            if state > 1:
                try:
                    await self.gate.wait()
                finally:
                    self.told.append("cancelled")

        def on_destroyed(self) -> None:
            self.told.append("destroyed")

    async with open_house(Busy) as house:
        await house.handle(Busy).state()
    async with open_house(Busy, store=house.store) as house:
        ending = asyncio.create_task(house.handle(Busy).destroy())
        await outcome(Busy.gate.reached.wait())
        await outcome(house.node.stop(0.05))
        with pytest.raises(Unavailable, match="shutting down"):
            await outcome(ending)
        assert Busy.told == ["cancelled"]
        assert await house.store.find(key_of(Busy)) is not None


async def test_an_end_goes_on_when_the_on_start_that_has_begun_it_fails() -> None:
    class Stillborn(Room):
        gate = Gate()
        endings: list[asyncio.Task[None]] = []  # noqa: RUF012
        is_stillborn = False

        async def on_start(self) -> None:
            if self.is_stillborn:
                self.endings.append(asyncio.create_task(self.destroy()))
                await self.gate.reached.wait()
                raise RuntimeError("no start")

        async def on_destroyed(self) -> None:
            await self.gate.wait()

    async with open_house(Stillborn) as house:
        await house.handle(Stillborn).add(5)
    Stillborn.is_stillborn = True
    async with open_house(Stillborn, store=house.store) as house:
        waking = asyncio.create_task(house.handle(Stillborn).state())
        await outcome(Stillborn.gate.reached.wait())
        await settle()
        Stillborn.gate.opened.set()
        with pytest.raises(RuntimeError, match="no start"):
            await outcome(waking)
        await outcome(Stillborn.endings[0])
        assert await is_gone(house, Stillborn)


async def test_whoever_ends_a_sleeping_thread_that_is_not_deleted_in_time_is_told_that_the_server_shuts_down() -> None:
    cls = make_room()
    async with open_house(cls) as house:
        await house.handle(cls).add(5)
    async with open_house(cls, store=house.store) as house:
        house.store.is_held = True
        ending = asyncio.create_task(house.handle(cls).destroy())
        await settle()
        await outcome(house.node.stop(0.05))
        with pytest.raises(Unavailable, match="shutting down"):
            await outcome(ending)


# Calls of on_destroyed


class Hall(Room):
    told: list[Any] = []  # noqa: RUF012

    @rpc
    async def close(self) -> str:
        await self.thread(Closing, "one").destroy()
        return "closed"

    @rpc
    async def hear(self, what: str) -> None:
        self.set_state(1)
        self.told.append(what)


class Closing(Room):
    told: list[Any] = []  # noqa: RUF012

    async def on_destroyed(self) -> None:
        await self.thread(Hall, "hall").call(Hall.hear, "destroyed")
        raise RuntimeError("no more")

    async def on_error(self, error: BaseException, connection: Any) -> None:
        if isinstance(error, Readonly):
            self.told.append(error)
        else:
            await self.thread(Hall, "hall").call(Hall.hear, str(error))


@each_case("is_awake", [True, False])
async def test_on_destroyed_may_call_the_thread_that_has_ended_its_own(*, is_awake: bool) -> None:
    Hall.told.clear()
    async with open_house(Hall, Closing) as house:
        await house.handle(Closing).add(5)
    async with open_house(Hall, Closing, store=house.store) as house:
        if is_awake:
            await house.handle(Closing).state()
        assert await outcome(house.handle(Hall, "hall").close()) == "closed"
        assert Hall.told == ["destroyed", "no more"]
        assert await is_gone(house, Closing)


@each_case("is_awake", [True, False])
async def test_a_readonly_client_changes_nothing_by_the_end_of_another_thread(*, is_awake: bool) -> None:
    Hall.told.clear()
    Closing.told.clear()
    async with open_house(Hall, Closing) as house:
        await house.handle(Closing).add(5)
    async with open_house(Hall, Closing, store=house.store) as house:
        if is_awake:
            await house.handle(Closing).state()
        client = await house.join(Hall, "a", name="hall")
        client.connection.readonly = True
        client.call("1", "close")
        assert (await client.next())["success"]
        assert Hall.told == []
        assert [type(each) for each in Closing.told] == [Readonly]
        assert await is_gone(house, Closing)
