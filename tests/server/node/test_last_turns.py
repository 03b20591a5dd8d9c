"""What runs and waits in a thread while it ends: who owns it, and what it is told."""

import asyncio
from typing import Any

from tests.server.node.test_destroying import Gate, key_of, outcome, settle
from tests.server.rooms import open_house

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import Indeterminate


class Room(Thread[Any]):
    """Has turns that can be held up."""

    initial_state = 0
    gate: Gate
    rest: Gate

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
        await self.rest.wait()
        return "ended"


def make_room() -> type[Room]:
    class Fresh(Room):
        kind = "room"
        gate, rest = Gate(), Gate()

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
