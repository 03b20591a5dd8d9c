"""Which awake threads the node looks at, and when."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.cases import each_case
from tests.server.rooms import House, open_house

from plait.actor.actor import Actor
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import TurnTimeout, Unavailable
from plait.store.thread_rows import ThreadKey

PATIENCE = 10.0


class Room(Thread[Any]):
    initial_state: Any = 0

    @rpc
    async def add(self) -> None:
        self.set_state(lambda state: state + 1)

    @rpc
    async def rest_for(self, seconds: float) -> None:
        room: Any = self
        room.idle_timeout = seconds


def take(house: House, now: float) -> list[str]:
    """Look at the threads as the node does, and return the names of those that it looks at."""
    looked_at: list[Actor] = house.node._sweeper.take(now)
    for actor in looked_at:
        house.node._sweeper.put_off(actor, actor.sweep(now))
    return [actor.key.name for actor in looked_at]


def stop_sweeping(house: House) -> float:
    assert house.node._sweeper._task is not None
    house.node._sweeper._task.cancel()
    return asyncio.get_running_loop().time()


async def test_only_threads_that_were_used_since_and_those_whose_idle_time_is_over_are_looked_at() -> None:
    async with open_house(Room) as house:
        now = stop_sweeping(house)
        names = [f"room-{number}" for number in range(300)]
        for name in names:
            await house.actor(Room, name)
        assert take(house, now) == names
        assert take(house, now + 1) == []
        await house.handle(Room, "room-7").add()
        assert take(house, now + 2) == ["room-7"]
        assert take(house, now + 3) == []
        assert sorted(take(house, now + 1000)) == sorted(names)


async def test_times_of_threads_that_are_used_all_the_time_do_not_pile_up() -> None:
    async with open_house(Room) as house:
        now = stop_sweeping(house)
        for number in range(10):
            await house.actor(Room, f"room-{number}")
        for moment in range(1000):
            for number in range(10):
                await house.actor(Room, f"room-{number}")
            assert len(take(house, now + moment / 1000)) == 10
        assert len(house.node._sweeper._times) == 10


async def test_times_of_threads_that_are_not_awake_are_removed() -> None:
    async with open_house(Room) as house:
        now = stop_sweeping(house)
        for number in range(3000):
            await house.actor(Room, f"room-{number}")
            take(house, now)
            await house.node.destroy(ThreadKey("room", f"room-{number}"))
        assert len(house.node._sweeper._times) < 1100


async def test_a_thread_stays_looked_at_until_its_changes_are_durable() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        now = stop_sweeping(house)
        house.store.is_held = True
        commit = actor.thread.set_state(1)
        assert take(house, now) == take(house, now + 1) == ["one"]
        assert actor.state.history.recent(1)
        house.store.resume()
        async with asyncio.timeout(PATIENCE):
            await commit
        assert take(house, now + 2) == ["one"]
        assert not actor.state.history.recent(1)
        assert take(house, now + 3) == []


async def test_a_change_that_no_turn_has_made_is_forgotten_when_it_is_durable() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        now = stop_sweeping(house)
        take(house, now)
        async with asyncio.timeout(PATIENCE):
            await actor.thread.set_state(1)
        assert actor.state.history.recent(1)
        assert take(house, now + 1) == ["one"]
        assert not actor.state.history.recent(1)


class Restless(Room):
    stopped: ClassVar[asyncio.Event]

    async def on_stop(self) -> None:
        self.stopped.set()


async def test_an_idle_time_that_a_thread_shortens_counts_from_then_on() -> None:
    Restless.stopped = asyncio.Event()
    async with open_house(Restless) as house:
        await house.handle(Restless).rest_for(0.05)
        async with asyncio.timeout(PATIENCE):
            await Restless.stopped.wait()


async def test_a_turn_that_a_socket_begins_is_cancelled_when_it_takes_too_long() -> None:
    class Stuck(Room):
        runs: ClassVar[asyncio.Event]
        errors: ClassVar[asyncio.Queue[BaseException]]

        async def on_state_changed(self, state: Any, source: Any) -> None:
            self.runs.set()
            await asyncio.Event().wait()

        async def on_error(self, error: BaseException, connection: Any = None) -> None:
            self.errors.put_nowait(error)

    Stuck.runs, Stuck.errors = asyncio.Event(), asyncio.Queue()
    async with open_house(Stuck) as house:
        actor = await house.actor(Stuck)
        await house.join(Stuck, "a")
        now = stop_sweeping(house)
        take(house, now)
        actor.thread.set_state(1)
        async with asyncio.timeout(PATIENCE):
            await Stuck.runs.wait()
            assert take(house, now + 1000) == ["one"]
            assert isinstance(await Stuck.errors.get(), TurnTimeout)


async def test_a_thread_does_not_stop_before_the_caller_that_woke_it_has_resumed() -> None:
    class Brief(Room):
        idle_timeout = 0.0
        starts: ClassVar[list[str]] = []

        def on_start(self) -> None:
            self.starts.append(self.name)

    async with open_house(Brief) as house:
        stop_sweeping(house)
        async with asyncio.timeout(PATIENCE):
            waking = asyncio.create_task(house.actor(Brief))
            while not waking.done():
                await house.node._sweeper._look()
                await asyncio.sleep(0)
        assert Brief.starts == ["one"]


async def test_a_thread_that_has_gone_to_sleep_is_not_kept() -> None:
    async with open_house(Room) as house:
        last = weakref.ref((await house.actor(Room)).thread)
        await house.handle(Room).rest_for(0)
        async with asyncio.timeout(PATIENCE):
            while house.node.actors:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while last() is not None:
                gc.collect()
                await asyncio.sleep(0.01)


@dataclass
class Board:
    cards: list[str] = field(default_factory=list)


class Table(Thread[Board]):
    initial_state = Board(["a"])


def stop(house: House, actor: Actor) -> None:
    house.node._lifecycle.stop(actor)


def drop(house: House, actor: Actor) -> None:
    house.node._lifecycle.evict(actor, Unavailable("the store has failed"))


async def destroy(house: House, actor: Actor) -> None:
    await house.node.destroy(actor.key)


@each_case("end", [stop, drop, destroy])
async def test_what_is_decoded_of_a_state_is_freed_when_its_thread_ends(end: Callable[[House, Actor], Any]) -> None:
    async with open_house(Table) as house:
        actor = await house.actor(Table)
        async with asyncio.timeout(PATIENCE):
            await actor.thread.set_state(Board(["b"]))
            current = actor.state.history.current
            gc.disable()  # Reference counting frees it.
            try:
                decoded = [weakref.ref(current.tree), weakref.ref(current.state)]
                if (ending := end(house, actor)) is not None:
                    await ending
                while tasks := house.node._threads.tasks:
                    await asyncio.wait(tasks)
                assert [each() for each in decoded] == [None, None]
            finally:
                gc.enable()
        assert actor.thread.state == actor.state.history.durable.tree == Board(["b"])
