"""Threads whose shards move to another node."""

import asyncio
from typing import Any

import pytest
from tests.server.rooms import open_house

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.node.forking import Fork
from plait.store.protocol import Store
from plait.store.shards import SHARDS, find_shard
from plait.store.thread_rows import ThreadKey

PATIENCE = 10.0
# What may take long must end at once.
SOON = 0.01

ALL = range(SHARDS)


class Room(Thread[Any]):
    initial_state = 0


class Stuck(Room):
    """Does not end what it begins."""

    stuck: asyncio.Event

    async def on_start(self) -> None:
        if self.name == "starts":
            await self._stick()

    async def on_stop(self) -> None:
        if self.name == "stops":
            await self._stick()

    async def _stick(self) -> None:
        self.stuck.set()
        await asyncio.Event().wait()


async def test_threads_that_never_start_or_stop_do_not_keep_their_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.node.moving._GRACE", SOON)
    for name in ("starts", "stops"):
        Stuck.stuck = asyncio.Event()
        async with open_house(Stuck) as house, asyncio.timeout(PATIENCE):
            use = asyncio.create_task(house.actor(Stuck, name))
            if name == "starts":
                await Stuck.stuck.wait()
            else:
                await use
            await house.node.moving.vacate(ALL, SOON)
            assert not house.node.actors
            await asyncio.gather(use, return_exceptions=True)


class Endless(Fork):
    """A fork that takes long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_begun = asyncio.Event()

    async def write(self, store: Store, fence: int) -> None:
        self.is_begun.set()
        await asyncio.Event().wait()


async def test_a_thread_that_is_being_filled_moves_last_and_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plait.node.moving._GRACE", SOON)
    async with open_house(Room) as house, asyncio.timeout(PATIENCE):
        await house.handle(Room, "one").set_state(1)
        key = ThreadKey("room", "two")
        fork = Endless(house.node.find_kind(Room), "one", "two", at=None, limits=house.node.limits)
        forking = asyncio.create_task(house.node.transfers.fork_thread(fork))
        await fork.is_begun.wait()
        assert house.node.moving.find_busy() == {find_shard(key)}
        await house.node.moving.vacate(ALL, SOON)
        await asyncio.wait([forking])
        assert forking.exception() is not None
        assert not house.node.moving.find_busy()


class Worker(Room):
    """Works until it is told to end."""

    may_end: asyncio.Event
    is_begun: asyncio.Event

    @rpc
    async def work(self) -> None:
        self.is_begun.set()
        await self.may_end.wait()


async def test_a_thread_with_a_turn_moves_after_the_others() -> None:
    Worker.may_end, Worker.is_begun = asyncio.Event(), asyncio.Event()
    async with open_house(Worker) as house, asyncio.timeout(PATIENCE):
        await house.handle(Worker, "idle").state()
        working = asyncio.create_task(house.handle(Worker, "one").work())
        await Worker.is_begun.wait()
        assert house.node.moving.find_busy() == {find_shard(ThreadKey("worker", "one"))}
        Worker.may_end.set()
        await working
        assert not house.node.moving.find_busy()
