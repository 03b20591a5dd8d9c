"""What instruments are told of threads that wake, sleep and end, of their store, and of other apps in the process."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.fakes import TroubledStore
from tests.server.recorder import Recorder
from tests.server.rooms import open_house
from tests.server.session.guests import until

from plait import Connection, MemoryStore, NoInstruments, Plait, StoreError, Thread, rpc
from plait.instruments.combining import combine_instruments
from plait.store.protocol import ThreadHeader, Write
from plait.store.thread_rows import ThreadKey

KIND = "room"
PATIENCE = 10.0


class Room(Thread[Any]):
    initial_state = {"n": 0}  # noqa: RUF012
    # The other app, set by tests.
    other: Plait

    @rpc
    async def add(self) -> int:
        self.set_state(lambda state: {"n": state["n"] + 1})
        return int(self.state["n"])

    @rpc
    async def add_elsewhere(self) -> int:
        return int(await self.other.thread(Room, "other").call(Room.add))

    @rpc
    async def set_elsewhere(self) -> int:
        return int(await self.other.thread(Room, "other").set_state({"n": 7}))

    @rpc
    async def end(self) -> None:
        await self.destroy()


class Mourned(Room):
    kind = KIND

    def on_destroyed(self) -> None:
        raise ZeroDivisionError

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        pass


class Failing(TroubledStore):
    """A store with one method that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = ""

    def _check(self, method: str) -> None:
        if self.fails == method:
            raise StoreError("the disk is broken")

    async def claim(self, key: ThreadKey) -> int:
        self._check("claim")
        return await super().claim(key)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        self._check("find")
        return await super().find(key)

    async def store(self, write: Write) -> int:
        self._check("submit")
        return await super().store(write)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


# Awake threads


@each_case("fails", ["", "submit"])
@each_case("cls", [Room, Mourned])
async def test_a_thread_that_is_destroyed_is_no_longer_awake(cls: type[Room], fails: str) -> None:
    recorder, store = Recorder(), Failing()
    async with open_house(cls, instruments=recorder, store=store) as house:
        await house.handle(cls).add()
        store.fails = fails
        with suppress(StoreError):
            await outcome(house.handle(cls).destroy())
        await until(lambda: recorder.of("slept"))
        store.fails = ""
        assert recorder.of("woke", "slept") == [(KIND,)] * 2
        assert len(recorder.of("store_failed")) == bool(fails)
    assert len(recorder.of("slept")) == 1


async def test_a_thread_that_is_destroyed_while_it_sleeps_has_not_woken() -> None:
    recorder, store = Recorder(), TroubledStore()
    async with open_house(Mourned, store=store) as house:
        await house.handle(Mourned).add()
    async with open_house(Mourned, instruments=recorder, store=store) as house:
        await outcome(house.handle(Mourned).destroy())
        assert recorder.of("woke", "slept") == []
        assert ("room", "one", "on_destroyed") in recorder.of("turn_began")


# The store


@each_case("method", ["claim", "find"])
async def test_a_thread_that_cannot_be_woken_or_found_is_a_store_error(method: str) -> None:
    recorder, store = Recorder(), Failing()
    async with open_house(Room, instruments=recorder, store=store) as house:
        key = ThreadKey(KIND, "one")
        store.fails = method
        for use in (house.node.stored_actor, house.node.destroy):
            with pytest.raises(StoreError):
                await outcome(use(key)) if method == "find" else await outcome(house.node.actor(key))
        assert recorder.of("store_failed") == [("store_error",)] * 2


async def test_a_thread_that_cannot_be_deleted_while_it_sleeps_is_a_store_error() -> None:
    recorder, store = Recorder(), Failing()
    async with open_house(Room, instruments=recorder, store=store) as house:
        actor = await house.actor(Room)
        await actor.state.store_thread()
        house.node._lifecycle.stop(actor)
        await until(lambda: recorder.of("slept"))
        store.fails = "submit"
        with pytest.raises(StoreError):
            await outcome(house.handle(Room).destroy())
        assert recorder.of("store_failed") == [("store_error",)]


async def test_a_thread_of_which_it_cannot_be_stored_that_it_is_idle_is_a_store_error() -> None:
    class Brief(Room):
        kind = KIND
        idle_timeout = 0.01
        expires_after = 1000.0

    recorder, store = Recorder(), Failing()
    async with open_house(Brief, instruments=recorder, store=store) as house:
        await house.handle(Brief).add()
        store.fails = "submit"
        await until(lambda: recorder.of("slept"))
        assert recorder.of("store_failed") == [("store_error",)]


# Causes


async def test_the_end_of_a_thread_is_caused_by_the_turn_that_asked_for_it() -> None:
    recorder = Recorder()
    async with open_house(Mourned, instruments=recorder) as house:
        await outcome(house.handle(Mourned).end())
        causes = list(recorder.causes(recorder.find("turn_began", KIND, "one", "on_error")))
        assert [each.arguments[2] for each in causes] == ["on_destroyed", "destroy", "rpc end"]


class Known(Recorder):
    """Says what the calling code does."""

    def __init__(self, trace: int | None) -> None:
        super().__init__()
        self._trace = trace

    def find_parent(self) -> int | None:
        return self._trace


async def test_what_code_outside_of_turns_calls_is_caused_by_what_the_instruments_find() -> None:
    recorder = Known(99)
    async with open_house(Mourned, instruments=recorder) as house:
        await house.handle(Mourned).add()
        await house.handle(Mourned).set_state({"n": 3})
        await outcome(house.handle(Mourned).destroy())
    found = {str(each.arguments[2]): each.parent for each in recorder.events if each.parent is not None}
    assert found.pop("rpc add") == 99
    assert found.pop("destroy") == 99
    assert [each.parent for each in recorder.events if each.name == "change_made"][1] == 99


# Two apps


class Odd(NoInstruments):
    """Has traces that only it can read, and raises for others."""

    def __init__(self) -> None:
        self.changes = 0

    def turn_began(self, kind: str, name: str, turn: str, waited: float, parent: Any) -> Any:
        assert parent is None or parent == ("odd", id(self))
        return "odd", id(self)

    def change_made(self, kind: str, name: str, size: int, parent: Any) -> Any:
        assert parent is None or parent == ("odd", id(self))
        self.changes += 1
        return "odd", id(self)


@pytest.mark.parametrize("method", ["add_elsewhere", "set_elsewhere"])
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_turn_of_one_app_that_uses_a_thread_of_another_causes_nothing_there(
    method: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Recorder(), Recorder()
    odd = [Odd() for _ in range(count - 1)]
    async with (
        Plait(Room, store=MemoryStore(), instruments=[one, Odd()]) as app,
        Plait(Room, store=MemoryStore(), instruments=[other, *odd]) as Room.other,
    ):
        await outcome(app.thread(Room, "one").call(method))
        assert await outcome(Room.other.thread(Room, "other").call(Room.add)) > 0
    assert {each.parent for each in other.events if each.name == "turn_began"} == {None}
    assert [each.changes for each in odd] == [2] * len(odd)
    assert caplog.records == []


async def test_a_turn_of_one_app_is_no_cause_in_another_with_one_instrument_each() -> None:
    one, other = Recorder(), Recorder()
    async with (
        Plait(Room, store=MemoryStore(), instruments=one) as app,
        Plait(Room, store=MemoryStore(), instruments=other) as Room.other,
    ):
        await outcome(app.thread(Room, "one").call(Room.add_elsewhere))
    assert other.find("turn_began", KIND, "other", "rpc add").parent is None


class Unguarded(NoInstruments):
    """Raises where a change is made, without the guard that an app has for its instruments."""

    def change_made(self, kind: str, name: str, size: int, parent: Any) -> Any:
        raise ZeroDivisionError


async def test_instruments_that_raise_leave_the_state_and_the_store_together() -> None:
    async with open_house(Room, instruments=Unguarded()) as house:
        actor = await house.actor(Room)
        with suppress(ZeroDivisionError):
            actor.thread.set_state({"n": 1})
        await actor.state.wait_until_durable()
        assert actor.state.durable.version == actor.state.current.version == 1


def test_several_instruments_take_no_trace_of_others() -> None:
    one, other = (combine_instruments([Recorder(), Recorder()]) for _ in range(2))
    trace = one.turn_began(KIND, "one", "on_start", 0.0, None)
    other.turn_began(KIND, "one", "on_start", 0.0, trace)
    other.turn_began(KIND, "one", "on_start", 0.0, object())
    assert one.turn_began(KIND, "one", "on_start", 0.0, trace) is not None
