"""A store that ends all claims at once, because it may have lost durable changes."""

import asyncio
from typing import Any

import pytest
from tests.server.rooms import open_house

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import StoreError

PATIENCE = 10.0


class Room(Thread[Any]):
    initial_state = 0

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)


async def test_all_threads_are_dropped_and_claimed_anew_when_they_are_used() -> None:
    async with open_house(Room) as house, asyncio.timeout(PATIENCE):
        clients = [await house.join(Room, "c", name=name) for name in ("one", "two")]
        before = [await house.actor(Room, name) for name in ("one", "two")]
        assert await house.handle(Room).add(1) == 1
        house.store.lose_claims()
        assert all(client.transport.closed is not None for client in clients)
        after = [await house.actor(Room, name) for name in ("one", "two")]
        assert not set(before) & set(after)
        assert await house.handle(Room).add(1) == 2


async def test_a_thread_that_was_waking_is_not_used_as_it_may_have_loaded_what_is_lost() -> None:
    is_waking, may_start = asyncio.Event(), asyncio.Event()

    class Slow(Room):
        async def on_start(self) -> None:
            is_waking.set()
            await may_start.wait()

    async with open_house(Slow) as house, asyncio.timeout(PATIENCE):
        waking = asyncio.create_task(house.handle(Slow).state())
        await is_waking.wait()
        house.store.lose_claims()
        may_start.set()
        with pytest.raises(StoreError):
            await waking
        assert await house.handle(Slow).add(1) == 1
