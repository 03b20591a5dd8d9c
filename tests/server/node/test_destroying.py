"""The end of a thread: what is told to whom, what is left, and what comes at the same moment."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.fakes import TroubledStore
from tests.server.owning import submit
from tests.server.rooms import Client, House, open_house
from tests.server.session.guests import Guest

from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.errors import (
    CorruptThread,
    Destroyed,
    Fenced,
    Indeterminate,
    NotFound,
    PlaitError,
    Readonly,
    StoreError,
    TurnTimeout,
)
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, Record, Snapshot, ThreadKey
from plait_schemas.codes import DESTROYED, TRY_AGAIN_LATER

PATIENCE = 10.0


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Room(Thread[Any]):
    initial_state = 0

    @rpc
    def add(self, n: int) -> int:
        self.set_state(lambda state: state + n)
        return int(self.state)

    @rpc
    async def end(self) -> str:
        await self.destroy()
        return "ended"


class Gate:
    """Makes a hook wait until a test releases it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self.opened.wait()


class Mourned(Room):
    """Has an `on_destroyed` that can be held up and that can fail."""

    gate: Gate | None
    raises: Exception | None
    told: list[Any]

    async def on_destroyed(self) -> None:
        self.told.append(self.state)
        if self.gate is not None:
            await self.gate.wait()
        if self.raises is not None:
            raise self.raises

    def on_error(self, error: BaseException, connection: Any) -> None:
        self.told.append(error)

    def on_close(self, connection: Any, code: int, reason: str) -> None:
        self.told.append(code)


@pytest.fixture
def mourned() -> type[Mourned]:
    class Fresh(Mourned):
        kind = "mourned"
        gate = None
        raises = None
        told: list[Any] = []  # noqa: RUF012

    return Fresh


def key_of(cls: type[Thread[Any]], name: str = "one") -> ThreadKey:
    return ThreadKey(cls._kind.name, name)


async def is_gone(house: House, cls: type[Thread[Any]], name: str = "one") -> bool:
    key = key_of(cls, name)
    return await house.store.find(key) is None and house.node._threads.find_awake(key) is None


# What is left


async def test_of_a_destroyed_thread_nothing_is_left_and_its_name_begins_a_new_one() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).add(5)
        epoch = (await house.actor(Room)).state.epoch
        await outcome(house.handle(Room).destroy())
        assert await is_gone(house, Room)
        assert await house.handle(Room).add(1) == 1
        assert (await house.actor(Room)).state.epoch != epoch


async def test_a_thread_destroys_itself_in_a_turn() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).add(5)
        assert await outcome(house.handle(Room).end()) == "ended"
        assert await is_gone(house, Room)


async def test_a_sleeping_thread_is_destroyed_without_waking() -> None:
    starts: list[str] = []

    class Sleeper(Room):
        def on_start(self) -> None:
            starts.append(self.name)

    async with open_house(Sleeper) as house:
        await house.handle(Sleeper).add(5)
    async with open_house(Sleeper, store=house.store) as house:
        starts.clear()
        await outcome(house.node.destroy(key_of(Sleeper)))
        assert await is_gone(house, Sleeper)
        assert starts == []


async def test_a_thread_that_is_not_there_is_not_found(mourned: type[Mourned]) -> None:
    async with open_house(Room, mourned) as house:
        for cls in (Room, mourned):
            with pytest.raises(NotFound, match="there is no thread"):
                await outcome(house.node.destroy(key_of(cls)))
        await house.handle(Room).add(1)
        await house.handle(Room).destroy()
        with pytest.raises(NotFound):
            await outcome(house.handle(Room).destroy())


async def test_one_of_many_destroys_it_and_the_others_find_nothing(mourned: type[Mourned]) -> None:
    async with open_house(mourned) as house:
        await house.handle(mourned).add(1)
        found = await outcome(
            asyncio.gather(*(house.handle(mourned).destroy() for _ in range(5)), return_exceptions=True)
        )
        assert sorted(type(each).__name__ for each in found) == ["NoneType", *["NotFound"] * 4]
        assert mourned.told == [1]


async def test_a_thread_of_a_kind_that_there_is_no_more_can_be_destroyed() -> None:
    async with open_house(Room) as house:
        await submit(house.store.inner, Write(ThreadKey("old", "one"), "e", None, 0, snapshots=(Snapshot(0, b"1"),)))
        await outcome(house.node.destroy(ThreadKey("old", "one")))
        assert await house.store.find(ThreadKey("old", "one")) is None


async def test_a_thread_that_cannot_be_loaded_is_destroyed_without_on_destroyed(
    mourned: type[Mourned], caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(mourned) as house:
        key = key_of(mourned)
        row = ChangeRow(1, b"no operations", "server", 0)
        await submit(house.store.inner, Write(key, "e", None, 1, (row,), (Snapshot(0, b"1"),)))
        await outcome(house.node.destroy(key))
        assert await is_gone(house, mourned)
        assert mourned.told == []
        assert "destroyed without on_destroyed" in caplog.text
        assert await house.handle(mourned).add(2) == 2


# on_destroyed


async def test_on_destroyed_reads_the_last_state_and_cannot_change_it(mourned: type[Mourned]) -> None:
    class Writing(mourned):  # type: ignore[valid-type, misc]
        async def on_destroyed(self) -> None:
            self.told.append(self.state)
            with pytest.raises(Destroyed, match="is being destroyed"):
                self.set_state(7)
            with pytest.raises(Destroyed), self.transaction():
                pass
            self.told.append(self.state)

    async with open_house(Writing) as house:
        await house.handle(Writing).add(5)
        await outcome(house.handle(Writing).destroy())
        assert mourned.told == [5, 5]


async def test_on_destroyed_wakes_a_sleeping_thread(mourned: type[Mourned]) -> None:
    async with open_house(mourned) as house:
        await house.handle(mourned).add(5)
    async with open_house(mourned, store=house.store) as house:
        await outcome(house.node.destroy(key_of(mourned)))
        assert mourned.told == [5]
        assert await is_gone(house, mourned)


async def test_what_on_destroyed_raises_is_reported_and_the_end_goes_on(mourned: type[Mourned]) -> None:
    mourned.raises = error = RuntimeError("no more")
    async with open_house(mourned) as house:
        await house.handle(mourned).add(5)
        await outcome(house.handle(mourned).destroy())
        assert mourned.told == [5, error]
        assert await is_gone(house, mourned)


async def test_an_on_destroyed_that_takes_too_long_is_cancelled_and_the_end_goes_on(mourned: type[Mourned]) -> None:
    mourned.gate, mourned.turn_timeout = Gate(), 0.05
    async with open_house(mourned) as house:
        await house.handle(mourned).add(5)
        with suppress(TurnTimeout):
            await outcome(house.handle(mourned).destroy())
        while not await is_gone(house, mourned):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert isinstance(mourned.told[1], TurnTimeout)


async def test_on_destroyed_may_call_its_own_thread_which_still_answers(mourned: type[Mourned]) -> None:
    class Asking(mourned):  # type: ignore[valid-type, misc]
        @rpc
        def look(self) -> int:
            return int(self.state)

        async def on_destroyed(self) -> None:
            self.told.append(await self.thread(Asking, self.name).call(Asking.look))

    async with open_house(Asking) as house:
        await house.handle(Asking).add(5)
        await outcome(house.handle(Asking).destroy())
        assert mourned.told == [5]


async def test_a_farewell_is_sent_when_the_end_is_durable(mourned: type[Mourned]) -> None:
    class Polite(mourned):  # type: ignore[valid-type, misc]
        async def on_destroyed(self) -> None:
            self.broadcast("goodbye")

    async with open_house(Polite) as house:
        client = await house.join(Polite, "a")
        house.store.is_held = True
        ending = asyncio.create_task(house.handle(Polite).destroy())
        await settle()
        assert client.transport.take() == []
        house.store.resume()
        await outcome(ending)
        assert client.transport.take() == ["goodbye", None]


# Sockets, turns and pushes


async def join_all(house: House, cls: type[Thread[Any]]) -> tuple[Guest, Client]:
    """Return a client of each protocol that has joined."""
    client = await house.join(cls, "cloudflare")
    guest = Guest(await house.actor(cls), "native")
    await guest.open()
    await settle()
    assert guest.frames[0]["type"] == "joined"
    return guest, client


@each_case("is_stored", [True, False])
async def test_sockets_are_closed_with_4410_when_the_end_is_durable(*, is_stored: bool) -> None:
    async with open_house(Room) as house:
        if is_stored:
            await house.handle(Room).add(5)
        guest, client = await join_all(house, Room)
        house.store.is_held = True
        ending = asyncio.create_task(house.handle(Room).destroy())
        await settle()
        if is_stored:
            assert guest.closed is client.transport.closed is None
        house.store.resume()
        await outcome(ending)
        assert guest.transport.closed == client.transport.closed == (DESTROYED, "room/one was destroyed")


async def test_turns_before_the_end_are_finished_and_those_after_it_are_told_that_it_was_destroyed() -> None:
    gate = Gate()

    class Slow(Room):
        @rpc
        async def wait(self) -> int:
            await gate.wait()
            self.set_state(lambda state: state + 1)
            return int(self.state)

        @rpc(concurrent=True)
        async def stay(self) -> None:
            await asyncio.Event().wait()

    async with open_house(Slow) as house:
        room = house.handle(Slow)
        await room.add(1)
        before = [asyncio.create_task(room.wait()), asyncio.create_task(room.stay())]
        await outcome(gate.reached.wait())
        ending = asyncio.create_task(room.destroy())
        await settle()
        actor = await house.actor(Slow)
        after = [asyncio.create_task(room.add(1)), asyncio.create_task(room.stay())]
        await settle()
        house.store.is_held = True
        gate.opened.set()
        await settle()
        assert not any(each.done() for each in (*before, *after, ending))
        house.store.resume()
        await outcome(ending)
        assert await outcome(before[0]) == 2
        with pytest.raises(Destroyed):
            await outcome(before[1])
        for each in after:
            with pytest.raises(Destroyed):
                await outcome(each)
        with pytest.raises(Destroyed):
            actor.thread.set_state(3)
        assert await is_gone(house, Slow)


async def test_a_push_during_the_end_gets_no_answer_and_the_socket_is_closed(mourned: type[Mourned]) -> None:
    mourned.gate = Gate()
    async with open_house(mourned) as house:
        await house.handle(mourned).add(1)
        guest, client = await join_all(house, mourned)
        ending = asyncio.create_task(house.handle(mourned).destroy())
        await outcome(mourned.gate.reached.wait())
        guest.push({"op": "replace", "path": "", "value": 9}, base=1)
        client.push(9)
        mourned.gate.opened.set()
        await outcome(ending)
        assert guest.frames == [None]
        assert client.transport.take() == [None]
        assert guest.closed == DESTROYED
        await settle()
        assert await is_gone(house, mourned)
        assert mourned.told == [1]  # No `on_close` follows.


async def test_a_call_on_a_socket_that_waits_is_told_before_the_socket_is_closed(mourned: type[Mourned]) -> None:
    mourned.gate = Gate()
    async with open_house(mourned) as house:
        await house.handle(mourned).add(1)
        guest, _ = await join_all(house, mourned)
        ending = asyncio.create_task(house.handle(mourned).destroy())
        await outcome(mourned.gate.reached.wait())
        guest.send("call", ref=1, method="add", args=[1])
        await settle()
        assert guest.frames == []
        mourned.gate.opened.set()
        await outcome(ending)
        told, closed = guest.frames
        assert (told["type"], told["code"], told["ref"], closed) == ("error", "destroyed", 1, None)


async def test_whoever_joins_during_the_end_is_let_in_by_the_next_thread(mourned: type[Mourned]) -> None:
    mourned.gate = Gate()
    async with open_house(mourned) as house:
        await house.handle(mourned).add(1)
        old = await house.actor(mourned)
        ending = asyncio.create_task(house.handle(mourned).destroy())
        await outcome(mourned.gate.reached.wait())
        late = Client(old, "late")
        late.open()
        assert late.transport.closed == (TRY_AGAIN_LATER, "the thread is being destroyed")
        waking = asyncio.create_task(house.actor(mourned))
        await settle()
        assert not waking.done()
        mourned.gate.opened.set()
        await outcome(ending)
        new = await outcome(waking)
        assert (new.state.epoch != old.state.epoch, new.state.current.state) == (True, 0)
        later = Client(old, "later")
        later.open()
        assert later.transport.closed == (DESTROYED, "mourned/one was destroyed")


async def test_whoever_waits_for_on_connect_is_told_that_the_thread_was_destroyed(mourned: type[Mourned]) -> None:
    class Greeting(mourned):  # type: ignore[valid-type, misc]
        def on_connect(self, connection: Any, request: Any) -> None:
            connection.send("hello")

    mourned.gate = Gate()
    async with open_house(Greeting) as house:
        await house.handle(Greeting).add(1)
        actor = await house.actor(Greeting)
        ending = asyncio.create_task(house.handle(Greeting).destroy())
        await outcome(mourned.gate.reached.wait())
        guest, client = Guest(actor, "native"), Client(actor, "cloudflare")
        joining = asyncio.create_task(guest.open())
        client.open()
        await settle()
        assert client.transport.closed is None
        mourned.gate.opened.set()
        await outcome(ending)
        await outcome(joining)
        await settle()
        assert client.transport.closed == (DESTROYED, "greeting/one was destroyed")
        assert guest.closed == DESTROYED


async def test_a_chain_of_calls_may_come_back_to_destroy_the_thread_where_it_began() -> None:
    class Chained(Room):
        @rpc
        async def ask(self, other: str) -> int:
            await self.thread(Chained, other).call(Chained.kill, self.name)
            with pytest.raises(Destroyed):
                self.set_state(3)
            return int(self.state)

        @rpc
        async def kill(self, name: str) -> None:
            await self.thread(Chained, name).destroy()

    async with open_house(Chained) as house:
        await house.handle(Chained).add(5)
        assert await outcome(house.handle(Chained).ask("two")) == 5
        assert await is_gone(house, Chained)


async def test_a_thread_may_destroy_itself_when_it_goes_to_sleep() -> None:
    class Ephemeral(Room):
        idle_timeout = 0.0

        async def on_stop(self) -> None:
            await self.destroy()

    async with open_house(Ephemeral) as house:
        await house.handle(Ephemeral).add(5)
        async with asyncio.timeout(PATIENCE):
            while not await is_gone(house, Ephemeral):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert await house.handle(Ephemeral).add(1) == 1


async def test_a_thread_that_destroys_itself_as_it_wakes_is_an_error_to_whoever_wakes_it() -> None:
    class Stillborn(Room):
        is_stillborn = False

        async def on_start(self) -> None:
            if self.is_stillborn:
                await self.destroy()

    async with open_house(Stillborn) as house:
        await house.handle(Stillborn).add(5)
    Stillborn.is_stillborn = True
    async with open_house(Stillborn, store=house.store) as house:
        with pytest.raises((Destroyed, NotFound)):
            await outcome(house.handle(Stillborn).add(1))
        assert await is_gone(house, Stillborn)


async def test_the_destruction_of_a_thread_that_destroys_itself_as_it_is_woken_for_it_is_awaited() -> None:
    class Hasty(Mourned):
        kind = "mourned"
        gate = None
        raises = None
        told: list[Any] = []  # noqa: RUF012
        is_hasty: ClassVar[bool] = False

        async def on_start(self) -> None:
            if self.is_hasty:
                self.ending = asyncio.create_task(self.destroy())
                await settle()

    async with open_house(Hasty) as house:
        await house.handle(Hasty).add(5)
    Hasty.is_hasty = True
    async with open_house(Hasty, store=house.store) as house:
        house.store.is_held = True
        ending = asyncio.create_task(house.node.destroy(key_of(Hasty)))
        await settle()
        await settle()
        assert not ending.done()
        house.store.resume()
        await outcome(ending)
        assert await house.store.find(key_of(Hasty)) is None


async def test_a_readonly_client_cannot_end_a_thread_by_a_call() -> None:
    class Open(Room):
        nodes: ClassVar[list[Any]] = []

        @rpc
        async def end_by_handle(self) -> None:
            await self.thread(Open, self.name).destroy()

        @rpc
        async def end_by_way_of_another(self) -> None:
            await self.thread(Other, "other").call(Other.kill, self.name)

        @rpc
        async def end_by_app(self) -> None:
            await self.nodes[0].destroy(key_of(Open, self.name))

    class Other(Room):
        @rpc
        async def kill(self, name: str) -> None:
            await self.thread(Open, name).destroy()

    async with open_house(Open, Other) as house:
        Open.nodes.append(house.node)
        await house.handle(Open).add(5)
        guest, _ = await join_all(house, Open)
        guest.connection.readonly = True
        for method in ("end", "end_by_handle", "end_by_way_of_another", "end_by_app"):
            guest.send("call", ref=1, method=method)
            while not (frames := guest.frames):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert frames[0]["code"] == Readonly.code
            assert not await is_gone(house, Open)


# Failures


@pytest.mark.parametrize("error", [StoreError("the disk is full"), Indeterminate("who knows"), Fenced("moved")])
async def test_a_deletion_that_fails_is_told_to_the_caller_and_the_thread_is_loaded_again(
    error: StoreError, mourned: type[Mourned]
) -> None:
    async with open_house(mourned) as house:
        room = house.handle(mourned)
        await room.add(5)
        guest, client = await join_all(house, mourned)
        epoch = guest.actor.state.epoch
        house.store.is_held = True
        ending = asyncio.create_task(room.destroy())
        await settle()
        waiting = guest.actor.turns.call(mourned._kind.method("add"), ([1], {}), lambda *told: answers.append(told))
        answers: list[Any] = []
        house.store.fail_next(error)
        house.store.resume()
        with pytest.raises(type(error)):
            await outcome(ending)
        assert guest.closed == TRY_AGAIN_LATER
        assert client.transport.closed is not None
        assert client.transport.closed[0] == TRY_AGAIN_LATER
        assert [type(each[1]) for each in answers] == [type(error)]
        assert waiting is not None
        assert await outcome(room.add(1)) == 6
        assert (await house.actor(mourned)).state.epoch == epoch


async def test_a_change_before_the_end_that_fails_ends_nothing(mourned: type[Mourned]) -> None:
    async with open_house(mourned) as house:
        room = house.handle(mourned)
        await room.add(5)
        house.store.is_held = True
        adding = asyncio.create_task(room.add(1))
        await settle()
        ending = asyncio.create_task(room.destroy())
        await settle()
        house.store.fail_next()
        house.store.resume()
        for each in (adding, ending):
            with pytest.raises(StoreError):
                await outcome(each)
        assert mourned.told == []
        assert await outcome(room.add(1)) == 6


async def test_a_caller_that_goes_away_does_not_stop_the_end(mourned: type[Mourned]) -> None:
    mourned.gate = Gate()
    async with open_house(mourned) as house:
        await house.handle(mourned).add(5)
        ending = asyncio.create_task(house.handle(mourned).destroy())
        await outcome(mourned.gate.reached.wait())
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        mourned.gate.opened.set()
        async with asyncio.timeout(PATIENCE):
            while not await is_gone(house, mourned):  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_caller_that_goes_away_before_the_end_has_begun_ends_nothing() -> None:
    gate = Gate()

    class Slow(Room):
        @rpc
        async def wait(self) -> None:
            await gate.wait()

    async with open_house(Slow) as house:
        room = house.handle(Slow)
        await room.add(5)
        waiting = asyncio.create_task(room.wait())
        await outcome(gate.reached.wait())
        ending = asyncio.create_task(room.destroy())
        await settle()
        ending.cancel()
        await settle()
        gate.opened.set()
        await outcome(waiting)
        assert await outcome(room.add(1)) == 6


async def test_a_node_that_stops_waits_for_an_end(mourned: type[Mourned]) -> None:
    mourned.gate = gate = Gate()
    async with open_house(mourned) as house:
        await house.handle(mourned).add(5)
        ending = asyncio.create_task(house.handle(mourned).destroy())
        await outcome(gate.reached.wait())
        asyncio.get_running_loop().call_later(0.05, gate.opened.set)
    await outcome(ending)
    async with house.store:
        assert await house.store.find(key_of(mourned)) is None


@each_case("error", [Destroyed("another thread"), CorruptThread("another thread")])
async def test_a_thread_whose_on_start_fails_for_another_thread_stays(error: PlaitError) -> None:
    class Failing(Room):
        idle_timeout = 0.0
        error: ClassVar[PlaitError | None] = None

        def on_start(self) -> None:
            if self.error is not None:
                raise self.error

        def on_destroyed(self) -> None:
            pass

    async with open_house(Failing) as house:
        assert await house.handle(Failing).add(1) == 1
        async with asyncio.timeout(PATIENCE):
            while house.node.actors:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        Failing.error = error
        with pytest.raises(type(error), match="another thread"):
            await outcome(house.handle(Failing).destroy())
        Failing.error = None
        assert await outcome(house.handle(Failing).add(1)) == 2


async def test_a_hook_that_hangs_in_a_thread_that_is_woken_for_its_end_is_cancelled() -> None:
    class Stuck(Room):
        idle_timeout = 0.0
        turn_timeout = 0.1
        is_stuck: ClassVar[bool] = False

        async def on_start(self) -> None:
            await self.set_state(lambda state: state + 1)

        async def on_state_changed(self, state: Any, source: Any) -> None:
            if self.is_stuck:
                await asyncio.Event().wait()

        def on_destroyed(self) -> None:
            pass

    async with open_house(Stuck) as house:
        await house.handle(Stuck).add(1)
        async with asyncio.timeout(PATIENCE):
            while house.node.actors:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        Stuck.is_stuck = True
        await outcome(house.handle(Stuck).destroy())
        assert await house.store.find(key_of(Stuck)) is None


async def test_an_end_that_takes_longer_than_a_turn_may_succeeds() -> None:
    class Slow(Room):
        turn_timeout = 0.1

        async def on_destroyed(self) -> None:
            await asyncio.Event().wait()

        async def on_error(self, error: BaseException, connection: Any) -> None:
            await asyncio.sleep(0.09)

    async with open_house(Slow) as house:
        await house.handle(Slow).add(1)
        assert await outcome(house.handle(Slow).end()) == "ended"


# At the same moment


async def play(house: House, chance: random.Random, told: list[tuple[str, str, int]]) -> None:
    """Do things to a thread in any order, and record what was acknowledged: the epoch, and the count in it."""

    async def call() -> None:
        with suppress(PlaitError):
            await house.handle(Room).add(1)

    async def push() -> None:
        guest = Guest(await house.actor(Room), f"guest {chance.random()}")
        with suppress(PlaitError):
            await guest.open()
        await asyncio.sleep(0)
        if guest.closed is None and any(frame["type"] == "joined" for frame in guest.frames if frame):
            ref = guest.push({"op": "replace", "path": "", "value": 1000}, base=guest.actor.state.durable.version)
            await settle()
            for frame in guest.frames:
                if frame and frame["type"] == "ack":
                    assert ref == frame["ref"]
                    told.append(("push", guest.actor.state.epoch, frame["version"]))

    async def join() -> None:
        client = Client(await house.actor(Room), f"client {chance.random()}")
        client.open()
        await asyncio.sleep(0)
        if client.transport.closed is None:
            client.leave()

    async def destroy() -> None:
        with suppress(NotFound, Destroyed):
            epoch = actor.state.epoch if (actor := house.node._threads.find_awake(key_of(Room))) else ""
            await house.handle(Room).destroy()
            told.append(("destroy", epoch, -1))

    acts: Sequence[Any] = (call, push, join, destroy)
    tasks = []
    for _ in range(30):
        tasks.append(asyncio.create_task(chance.choice(acts)()))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
    await outcome(asyncio.gather(*tasks))


@play_seeds(4)
async def test_whatever_comes_at_the_same_moment_a_destroyed_thread_never_comes_back(seed: int) -> None:
    chance = random.Random(seed)
    told: list[tuple[str, str, int]] = []
    logging.getLogger(__name__).info("seed %d", seed)
    store = TroubledStore()
    async with open_house(Room, store=store) as house:
        await play(house, chance, told)
        ended = {epoch for what, epoch, _ in told if what == "destroy" and epoch}
        found = await store.find(key_of(Room))
        awake = house.node._threads.find_awake(key_of(Room))
        assert found is None or found.epoch not in ended
        assert awake is None or awake.state.epoch not in ended
        if found is not None:
            acknowledged = [version for what, epoch, version in told if what == "push" and epoch == found.epoch]
            assert max(acknowledged, default=0) <= found.version
        # What is written last of a history is its deletion.
        last = {write.epoch: write for write in store.submitted}
        assert all(last[epoch].is_deletion for epoch in ended & last.keys())
        await outcome(house.handle(Room).add(1))
        await outcome(house.handle(Room).destroy())
        assert await is_gone(house, Room)
    assert await store.threads() == []


async def test_records_go_with_their_thread() -> None:
    async with open_house(Room) as house:
        await house.handle(Room).add(1)
        actor = await house.actor(Room)
        await actor.records.write([Record("p", "a", b"1")])
        await outcome(house.handle(Room).destroy())
        assert await house.store.record(key_of(Room), "p", "a") is None
