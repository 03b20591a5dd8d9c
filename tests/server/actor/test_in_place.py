"""A state that an author has changed in place is not stored by accident: the change is discarded, and told."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar

import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.server.rooms import Client, House, make_request, open_house

from plait.actor.connection import Connection, Source
from plait.actor.handle import Handle
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.app import Plait
from plait.errors import InvalidState, StoreError

PATIENCE = 10.0


class Room(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"n": 0, "items": [1]})

    @rpc
    def leak(self) -> None:
        self.state["leak"] = 1
        self.state["items"].append(2)

    @rpc
    def count(self) -> None:
        self.set_state(lambda state: {**state, "n": state["n"] + 1})

    @rpc
    def leak_and_count(self) -> None:
        self.state["leak"] = 1
        self.set_state(lambda state: {**state, "n": state["n"] + 1})

    @rpc
    def leak_and_update(self) -> None:
        self.state["leak"] = 1
        self.update("/n", 5)

    @rpc
    def leak_and_edit(self) -> None:
        self.state["leak"] = 1
        with self.edit() as draft:
            draft.n = 5

    @rpc
    def leak_in_an_edit(self) -> None:
        with self.edit() as draft:
            self.state["leak"] = 1
            draft.n = 5

    @rpc
    def leak_in_a_transaction(self) -> None:
        with self.transaction():
            self.update("/n", 4)
            self.state["leak"] = 1
            self.update("/n", 5)

    @rpc
    def leak_what_is_no_json(self) -> None:
        self.state["leak"] = object()

    @rpc
    def reorder(self) -> None:
        self.state["n"] = self.state.pop("n")

    @rpc
    def set_own(self) -> None:
        state = self.state
        state["leak"] = 1
        self.set_state(state)

    @rpc
    def set_part(self) -> None:
        items = self.state["items"]
        items.append(2)
        self.set_state({**self.state, "items": items})

    @rpc
    def set_by_function(self) -> None:
        def change(state: dict[str, Any]) -> dict[str, Any]:
            state["leak"] = 1
            return state

        self.set_state(change)

    @rpc
    def read(self) -> int:
        return len(self.state)

    @rpc(concurrent=True)
    async def leak_beside(self) -> None:
        self.state["leak"] = 1

    @rpc
    async def leak_and_stream(self) -> AsyncGenerator[int]:
        yield 1
        self.state["leak"] = 1


@dataclass
class Board:
    cards: list[str] = field(default_factory=list)


class BoardRoom(Thread[Board]):
    initial_state = Board

    @rpc
    def leak(self) -> None:
        self.state.cards.append("x")

    @rpc
    def add(self, card: str) -> None:
        self.set_state(lambda board: Board([*board.cards, card]))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of changes in place, without the advice."""
    return [
        record.getMessage().partition(", which")[0]
        for record in caplog.records
        if "in place" in record.getMessage() and record.levelno == logging.ERROR
    ]


async def settle(house: House, cls: type[Thread[Any]] = Room) -> None:
    """Wait until all turns have ended, and every change is durable."""
    async with asyncio.timeout(PATIENCE):
        await (await house.actor(cls)).wait_until_idle()


@pytest.mark.parametrize("leak", ["leak", "leak_beside", "leak_and_stream"])
async def test_a_change_in_place_is_told_after_the_turn_and_not_stored_with_the_next_change(
    leak: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Room) as house:
        room = house.handle(Room)
        await room.call(leak)
        await settle(house)
        path = "/items/1" if leak == "leak" else "/leak"
        assert told(caplog) == [f"rpc {leak}: the state was changed in place at {path}"]
        assert [vars(record)["plait_thread"] for record in caplog.records] == ["room/one"]
        await room.count()
        assert await room.state() == {"n": 1, "items": [1]}


async def test_a_change_in_place_that_is_no_json_is_told_and_not_seen_later(caplog: pytest.LogCaptureFixture) -> None:
    async with open_house(Room) as house:
        room = house.handle(Room)
        await room.leak_what_is_no_json()
        assert told(caplog) == ["rpc leak_what_is_no_json: the state was changed in place at /"]
        assert await room.read() == 2


async def test_the_state_of_a_class_that_is_changed_in_place_is_told_too(caplog: pytest.LogCaptureFixture) -> None:
    async with open_house(BoardRoom) as house:
        room = house.handle(BoardRoom)
        await room.leak()
        assert told(caplog) == ["rpc leak: the state was changed in place at /cards/0"]
        await room.add("a")
        assert await room.state() == Board(["a"])


async def test_a_function_is_not_called_for_a_state_that_was_changed_in_place() -> None:
    async with open_house(Room) as house:
        room = house.handle(Room)
        with pytest.raises(InvalidState, match=r"with self\.edit\(\) as draft") as refused:
            await room.leak_and_count()
        assert refused.value.path == "/leak"
        assert await room.state() == {"n": 0, "items": [1]}
        await room.count()
        assert await room.state() == {"n": 1, "items": [1]}


@pytest.mark.parametrize("change", ["leak_and_update", "leak_and_edit", "leak_in_an_edit", "leak_in_a_transaction"])
async def test_a_change_in_place_is_told_if_operations_replace_the_state(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Room) as house:
        room = house.handle(Room)
        await room.call(change)
        assert told(caplog) == [f"rpc {change}: the state was changed in place at /leak"]
        assert await room.state() == {"n": 5, "items": [1]}


async def test_a_change_in_place_is_told_if_a_push_replaces_the_state(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Room):
        kind = "slow"

        @rpc
        async def leak_and_wait(self) -> None:
            self.state["leak"] = 1
            begun.set()
            await pushed.wait()

    begun, pushed = asyncio.Event(), asyncio.Event()
    async with open_house(Slow) as house:
        client = await house.join(Slow, "ada")
        waiting = asyncio.ensure_future(house.handle(Slow).leak_and_wait())
        await begun.wait()
        client.push({"n": 7, "items": [1]})
        pushed.set()
        await waiting
        assert told(caplog) == ["rpc leak_and_wait: the state was changed in place at /leak"]
        assert await house.handle(Slow).state() == {"n": 7, "items": [1]}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("set_own", {"n": 0, "items": [1], "leak": 1}),
        ("set_part", {"n": 0, "items": [1, 2]}),
        ("set_by_function", {"n": 0, "items": [1], "leak": 1}),
        ("reorder", {"n": 0, "items": [1]}),
        ("read", {"n": 0, "items": [1]}),
    ],
)
async def test_a_state_that_is_changed_in_place_and_set_is_stored_without_a_word(
    change: str, state: object, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Room) as house:
        room = house.handle(Room)
        await room.call(change)
        await room.call("read")
        await settle(house)
        assert (await room.state(), told(caplog)) == (state, [])


async def test_what_a_hook_changes_in_place_in_the_state_that_it_got_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Careless(Room):
        kind = "careless"

        def on_state_changed(self, state: dict[str, Any], source: Source) -> None:
            state["leak"] = 1

    async with open_house(Careless) as house:
        await house.handle(Careless).count()
        await settle(house, Careless)
        assert told(caplog) == ["on_state_changed: the state was changed in place at /leak"]
        await house.handle(Careless).count()
        assert await house.handle(Careless).state() == {"n": 2, "items": [1]}


async def test_the_log_names_the_connection_of_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    class Careless(Room):
        kind = "careless"

        def on_message(self, connection: Connection, data: str | bytes) -> None:
            self.state["leak"] = 1

    async with open_house(Careless) as house:
        client = await house.join(Careless, "ada")
        client.send("hello")
        await settle(house, Careless)
        (record,) = [each for each in caplog.records if "in place" in each.getMessage()]
        assert (vars(record)["plait_thread"], vars(record)["plait_connection"]) == ("careless/one", "ada")


# Large states


def fill(size: int) -> Callable[[], dict[str, Any]]:
    return lambda: {"n": 0, "items": [1], "text": "x" * size}


async def test_a_state_above_16_kb_is_compared_in_development_only(caplog: pytest.LogCaptureFixture) -> None:
    class Long(Room):
        kind = "long"
        initial_state = staticmethod(fill(16 * 1024))

    class Huge(Room):
        kind = "huge"
        initial_state = staticmethod(fill(300_000))

    class Fits(Room):
        kind = "fits"
        initial_state = staticmethod(fill(16 * 1024 - 100))

    app = Plait(Long, Huge, Fits, store="memory://")
    async with app:
        for cls in (Long, Huge, Fits):
            await app.thread(cls, "served").call(Room.leak)
        assert told(caplog) == ["rpc leak: the state was changed in place at /items/1"]
    caplog.clear()
    app.prepare_serving("localhost", in_development=True)
    async with app:
        for cls in (Long, Huge):
            room = app.thread(cls, "developed")
            await room.call(Room.leak)
            await room.call(Room.leak_and_edit)
            await room.call(Room.count)
            assert {**await room.state(), "text": ""} == {"n": 6, "items": [1], "text": ""}
    assert told(caplog) == 2 * [
        "rpc leak: the state was changed in place at /items/1",
        "rpc leak_and_edit: the state was changed in place at /leak",
    ]


@each_case("size", [20_000, 300_000])
async def test_a_change_in_place_of_a_state_that_is_not_compared_is_not_stored_by_a_function(size: int) -> None:
    class Long(Room):
        kind = "long"
        initial_state = staticmethod(fill(size))

    async with open_house(Long) as house:
        room = house.handle(Long)
        await room.leak_and_count()
        assert {**await room.state(), "text": ""} == {"n": 1, "items": [1], "text": ""}


# What fails when it is encoded


class Nowhere(tzinfo):
    """A time zone that raises when a time in it is encoded."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def utcoffset(self, when: datetime | None) -> timedelta:
        raise self.error


def make_nest() -> list[Any]:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


class Odd(Room):
    values: ClassVar[dict[str, Callable[[], Any]]] = {
        "deep": make_nest,
        "error": lambda: datetime(2026, 1, 1, tzinfo=Nowhere(ZeroDivisionError())),
        "exit": lambda: datetime(2026, 1, 1, tzinfo=Nowhere(asyncio.CancelledError())),
    }

    @rpc
    def leak_value(self, name: str) -> str:
        self.state["leak"] = self.values[name]()
        return name

    @rpc
    def leak_value_and_update(self, name: str) -> None:
        self.leak_value(name)
        self.update("/n", 5)


@pytest.mark.parametrize("name", ["deep", "error"])
@pytest.mark.parametrize("change", ["leak_value", "leak_value_and_update"])
async def test_a_change_in_place_that_cannot_be_encoded_is_told_and_not_stored(
    change: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Odd) as house:
        room = house.handle(Odd)
        async with asyncio.timeout(PATIENCE):
            await room.call(change, name)
        await settle(house, Odd)
        assert told(caplog) == [f"rpc {change}: the state was changed in place at /"]
        assert await room.read() == 2


async def test_a_turn_ends_whatever_comes_out_of_the_state_that_it_has_changed_in_place() -> None:
    async with open_house(Odd) as house:
        room = house.handle(Odd)
        async with asyncio.timeout(PATIENCE):
            assert await room.leak_value("exit") == "exit"


# Hooks that decide about rights


def promote(thread: Thread[Any]) -> None:
    state = thread.state
    state["admins"].append("eve")
    thread.set_state(state)


def promote_in_a_transaction(thread: Thread[Any]) -> None:
    with thread.transaction():
        state = thread.state
        state["admins"].append("eve")
        thread.set_state(state)


def edit_in_place_and_update(thread: Thread[Any]) -> None:
    thread.state["admins"].append("eve")
    thread.update("/n", 1)


@each_case("size", [0, 20_000, 300_000])
@each_case("change", [promote, promote_in_a_transaction, edit_in_place_and_update])
async def test_a_hook_that_decides_about_rights_does_not_see_what_was_edited_before_it_is_durable(
    change: Callable[[Thread[Any]], None], size: int
) -> None:
    seen: list[Any] = []

    class Guarded(Thread[dict[str, Any]]):
        kind = "guarded"
        initial_state = staticmethod(lambda: {"admins": [], "n": 0, "text": "x" * size})

        def should_be_readonly(self, connection: Connection, request: Request) -> bool:
            seen.append((list(self.state["admins"]), self.state["n"]))
            return "eve" not in self.state["admins"]

        @rpc
        def change(self) -> None:
            change(self)

    async with open_house(Guarded) as house:
        actor = await house.actor(Guarded)
        await actor.state.store_thread()
        house.store.is_held = True
        changing = asyncio.ensure_future(house.handle(Guarded).change())
        async with asyncio.timeout(PATIENCE):
            while not house.store.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert await actor.sockets.is_readonly(Client(actor, "eve").connection, make_request())
        assert seen == [([], 0)]
        house.store.fail_next()
        house.store.resume()
        with pytest.raises(StoreError):
            await changing


async def test_a_hook_that_validates_a_change_sees_the_state_without_what_was_edited() -> None:
    seen: list[Any] = []

    class Validated(Room):
        kind = "validated"

        def validate_state_change(self, next_state: dict[str, Any], source: Source) -> None:
            seen.append((self.state, next_state))

    async with open_house(Validated) as house:
        await house.handle(Validated).set_own()
    assert seen == [({"n": 0, "items": [1]}, {"n": 0, "items": [1], "leak": 1})]


class Waiting(Thread[dict[str, Any]]):
    initial_state: Any = staticmethod(lambda: {"n": 0, "m": 0})
    begun: asyncio.Event
    resume: asyncio.Event

    @rpc(concurrent=True)
    async def slow(self) -> None:
        state = self.state
        state["n"] = 5
        self.begun.set()
        await self.resume.wait()
        self.set_state(state)

    @rpc
    def read(self) -> int:
        return int(self.state["m"])

    @rpc
    def leak(self) -> None:
        self.state["leak"] = 1

    @rpc(concurrent=True)
    async def read_slowly(self) -> int:
        state = self.state
        self.begun.set()
        await self.resume.wait()
        return len(state)

    @rpc
    def count(self) -> None:
        self.set_state(lambda state: {**state, "m": state["m"] + 1})

    @rpc
    def leak_and_count(self) -> None:
        self.leak()
        self.count()


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[Handle[Waiting], asyncio.Future[None]]]:
    """Yield a thread whose `slow` has changed the state in place and waits for `resume`, and that call."""
    Waiting.begun, Waiting.resume = asyncio.Event(), asyncio.Event()
    async with Plait(Waiting, store="memory://") as app:
        room = app.thread(Waiting, "one")
        slow = asyncio.ensure_future(room.call(Waiting.slow))
        await Waiting.begun.wait()
        yield room, slow


async def test_a_state_that_is_set_later_is_not_told_by_the_end_of_another_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with waiting() as (room, slow):
        assert await room.call(Waiting.read) == 0
        Waiting.resume.set()
        await slow
        assert await room.state() == {"n": 5, "m": 0}
    assert caplog.text == ""


async def test_a_function_is_called_if_another_turn_has_changed_the_state_in_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with waiting() as (room, slow):
        await room.call(Waiting.count)
        assert await room.state() == {"n": 0, "m": 1}
        assert told(caplog) == ["rpc slow: the state was changed in place at /n"]
        Waiting.resume.set()
        await slow


async def test_a_change_in_place_is_told_when_the_last_turn_that_has_read_ends_and_names_those_that_ended_earlier(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Waiting.begun, Waiting.resume = asyncio.Event(), asyncio.Event()
    async with Plait(Waiting, store="memory://") as app:
        room = app.thread(Waiting, "ended")
        slow = asyncio.ensure_future(room.call(Waiting.read_slowly))
        await Waiting.begun.wait()
        await room.call(Waiting.leak)
        assert told(caplog) == []
        Waiting.resume.set()
        await slow
        assert told(caplog) == ["rpc leak or rpc read_slowly: the state was changed in place at /leak"]
        await room.call(Waiting.leak)
        assert told(caplog)[1:] == ["rpc leak: the state was changed in place at /leak"]


async def test_a_function_is_called_if_either_of_two_turns_may_have_changed_the_state_in_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Waiting.begun, Waiting.resume = asyncio.Event(), asyncio.Event()
    async with Plait(Waiting, store="memory://") as app:
        room = app.thread(Waiting, "either")
        slow = asyncio.ensure_future(room.call(Waiting.read_slowly))
        await Waiting.begun.wait()
        await room.call(Waiting.leak_and_count)
        assert told(caplog) == ["rpc read_slowly or rpc leak_and_count: the state was changed in place at /leak"]
        Waiting.resume.set()
        await slow
        assert await room.state() == {"n": 0, "m": 1}


async def test_a_turn_is_not_blamed_for_what_a_task_of_an_earlier_turn_has_changed_in_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Leaving(Waiting):
        kind = "leaving"

        @rpc
        async def leave(self) -> None:
            async def leak_later() -> None:
                await self.resume.wait()
                self.leak()

            Leaving.task = asyncio.ensure_future(leak_later())

        task: ClassVar[asyncio.Future[None]]

    Leaving.begun, Leaving.resume = asyncio.Event(), asyncio.Event()
    async with open_house(Leaving) as house:
        room = house.handle(Leaving)
        await room.leave()
        Leaving.resume.set()
        await Leaving.task
        await room.count()
        await settle(house, Leaving)
        assert told(caplog) == ["a task: the state was changed in place at /leak"]
        assert await room.state() == {"n": 0, "m": 1}
