"""Optimistic calls: the caller is told of the first change before any frame that contains it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, joined, put, until

from plait.actor.actor import Actor
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.state.principal import Principal


class Log(Thread[Any]):
    initial_state = {"lines": 7}  # noqa: RUF012

    @rpc
    def note(self) -> None:
        self.update("/lines", self.state["lines"] + 1)

    @rpc
    async def pass_on(self, name: str, value: Any) -> None:
        self.update("/lines", self.state["lines"] + 1)
        await cast(Any, self.thread(Desk, name)).set(value)


class Desk(Thread[Any]):
    initial_state = {"n": 0, "m": 0}  # noqa: RUF012

    def on_start(self) -> None:
        self.gate = asyncio.Event()

    @rpc
    def set(self, value: Any = None, then: Any = None) -> Any:
        for each in (value, then):
            if each is not None:
                self.update("/n", each)
        return self.state["n"]

    @rpc
    def set_what_is_set(self) -> None:
        self.set_state({**self.state})

    @rpc
    def set_and_fail(self, value: Any) -> None:
        self.update("/n", value)
        raise LookupError("no such thing")

    @rpc(concurrent=True)
    async def wait_and_set(self, value: Any) -> None:
        await self.gate.wait()
        self.update("/m", value)

    @rpc
    async def wait_in_turn(self, value: Any) -> None:
        await self.gate.wait()
        self.update("/m", value)

    @rpc
    async def set_in_task(self, value: Any) -> None:
        async def change() -> None:
            self.update("/n", value)

        await asyncio.create_task(change())

    @rpc
    async def set_by_itself(self, value: Any) -> None:
        await cast(Any, self.thread(Desk, self.name)).set(value)

    @rpc
    async def note_and_set(self, value: Any) -> None:
        await cast(Any, self.thread(Log, "one")).note()
        self.update("/n", value)

    @rpc
    async def note_alone(self) -> None:
        await cast(Any, self.thread(Log, "one")).note()

    @rpc
    async def set_through_another(self, value: Any) -> None:
        await cast(Any, self.thread(Log, "one")).pass_on(self.name, value)


class Hidden(Desk):
    can_read = ("/m",)


class Turned(Desk):
    def can_read(self, state: Any, viewer: Principal | None) -> Any:
        return ("/**",) if state["n"] == "open" else ("/m",)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Desk, Log, Hidden, Turned) as house:
        yield house


@pytest.fixture
async def desk(house: House) -> AsyncIterator[Actor]:
    actor = await house.actor(Desk)
    # As readers with sockets do; an unused thread keeps no recent changes in memory.
    with actor.usage.keep_awake():
        yield actor


def call(guest: Guest, ref: int, method: str, *args: Any, optimistic: bool = True) -> None:
    guest.send("call", ref=ref, method=method, args=args, **({"optimistic": True} if optimistic else {}))


async def settled(guest: Guest) -> list[Any]:
    """Return what a guest was sent, briefly, once nothing is under way."""
    await guest.actor.wait_until_idle()
    return brief(guest)


def brief(guest: Guest) -> list[Any]:
    return [_shorten(frame) for frame in guest.frames]


def _shorten(frame: dict[str, Any]) -> Any:
    match frame["type"]:
        case "made":
            return ("made", frame["ref"], frame["version"])
        case "change" | "snapshot" as name:
            return (name, frame["version"])
        case "changes":
            return ("changes", frame["from"], frame["to"])
        case name:
            return (name, frame["ref"])


async def test_the_caller_alone_is_told_of_the_first_change_before_it_comes(desk: Actor) -> None:
    guest, other = await joined(desk, "a"), await joined(desk, "b")
    call(guest, 5, "set", 1, 2)
    assert await settled(guest) == [("made", 5, 1), ("change", 1), ("change", 2), ("result", 5)]
    assert brief(other) == [("change", 1), ("change", 2)]


async def test_a_call_that_shows_nothing_is_told_of_no_change(desk: Actor) -> None:
    guest = await joined(desk, "a")
    call(guest, 1, "set", 1, optimistic=False)
    assert await settled(guest) == [("change", 1), ("result", 1)]


@pytest.mark.parametrize("method", ["set", "set_what_is_set", "note_alone"])
async def test_a_call_that_changes_nothing_here_ends_with_its_result(desk: Actor, method: str) -> None:
    guest = await joined(desk, "a")
    call(guest, 1, method)
    assert await settled(guest) == [("result", 1)]


async def test_a_call_that_fails_after_a_change_is_told_of_it(desk: Actor) -> None:
    guest = await joined(desk, "a")
    call(guest, 1, "set_and_fail", 1)
    assert await settled(guest) == [("made", 1, 1), ("change", 1), ("error", 1)]


@pytest.mark.parametrize("method", ["set_in_task", "set_by_itself", "note_and_set", "set_through_another"])
async def test_changes_count_of_tasks_and_called_turns_but_not_of_other_threads(desk: Actor, method: str) -> None:
    guest = await joined(desk, "a")
    await desk.thread.set_state({"n": 0, "m": 1})
    guest.frames.clear()
    call(guest, 1, method, 3)
    assert (await settled(guest))[-3:] == [("made", 1, 2), ("change", 2), ("result", 1)]


async def test_calls_under_way_at_once_are_told_each_of_its_own_change(desk: Actor) -> None:
    guest, other = await joined(desk, "a"), await joined(desk, "b")
    call(guest, 1, "wait_and_set", 1)
    call(guest, 2, "set", 1)
    call(other, 1, "set", 2)
    await until(lambda: desk.state.durable.version == 2)
    cast(Desk, desk.thread).gate.set()
    assert await settled(guest) == [
        *(("made", 2, 1), ("change", 1), ("result", 2), ("change", 2)),
        *(("made", 1, 3), ("change", 3), ("result", 1)),
    ]
    assert brief(other) == [("change", 1), ("made", 1, 2), ("change", 2), ("result", 1), ("change", 3)]


async def test_a_call_that_was_cancelled_is_told_nothing(desk: Actor) -> None:
    guest = await joined(desk, "a")
    call(guest, 1, "wait_in_turn", 1)
    await until(lambda: desk.turns.mailbox.running is not None)
    guest.send("cancel", ref=1)
    call(guest, 1, "set", 2)
    cast(Desk, desk.thread).gate.set()
    assert await settled(guest) == [("change", 1), ("made", 1, 2), ("change", 2), ("result", 1)]


async def test_a_slow_reader_is_told_before_the_changes_that_it_has_missed(desk: Actor) -> None:
    guest = await joined(desk, "a")
    await desk.thread.set_state({"n": 0, "m": 1})
    guest.transport.is_backed_up = True
    await desk.thread.set_state({"n": 0, "m": 2})
    call(guest, 1, "set", 1)
    call(guest, 2, "set", 2, 3)
    await desk.wait_until_idle()
    guest.transport.catch_up()
    assert brief(guest) == [
        *(("change", 1), ("made", 1, 3), ("made", 2, 4), ("changes", 1, 5)),
        *(("result", 1), ("result", 2)),
    ]


async def test_a_slow_reader_whose_push_is_answered_in_between_is_told_before(house: House, desk: Actor) -> None:
    guest = await joined(desk, "a")
    guest.transport.is_backed_up = True
    await desk.thread.set_state({"n": 0, "m": 1})
    call(guest, 1, "set", 1)
    await desk.wait_until_idle()
    house.store.is_held = True
    guest.push(put("/m", 2), base=0)
    call(guest, 2, "set", 3)
    await until(lambda: desk.state.current.version == 4)
    house.store.resume()
    await desk.wait_until_idle()
    guest.transport.catch_up()
    assert brief(guest) == [
        *(("made", 1, 2), ("changes", 0, 2), ("result", 1), ("ack", 1)),
        *(("made", 2, 4), ("changes", 3, 4), ("result", 2)),
    ]


async def test_a_change_that_is_lost_is_told_to_nobody(house: House, desk: Actor) -> None:
    guest = await joined(desk, "a")
    house.store.is_held = True
    call(guest, 1, "set", 1)
    await until(lambda: desk.state.current.version == 1)
    house.store.fail_next()
    house.store.resume()
    assert await settled(guest) == [("error", 1)]
    call(guest, 2, "set", 2)
    assert await settled(guest) == [("made", 2, 1), ("change", 1), ("result", 2)]


async def test_a_change_that_the_caller_does_not_see_ends_what_it_shows(house: House) -> None:
    actor = await house.actor(Hidden)
    guest = await joined(actor, "a")
    call(guest, 1, "set", 1)
    await actor.wait_until_idle()
    made, change, result = guest.frames
    assert made == {"type": "made", "ref": 1, "version": 1}
    assert (change["version"], change["ops"], result["ref"]) == (1, [], 1)


async def test_a_change_that_brings_the_whole_state_is_told_before(house: House) -> None:
    actor = await house.actor(Turned)
    guest = await joined(actor, "a")
    call(guest, 1, "set", "open")
    await actor.wait_until_idle()
    await until(lambda: not guest.session._follower.is_behind)
    frames = guest.frames
    assert [frame["type"] for frame in frames] == ["made", "snapshot", "result"]
    assert frames[1]["state"] == {"n": "open", "m": 0}
