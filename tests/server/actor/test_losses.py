"""When a write is lost, the thread restarts in place: what its turns end with, what is kept, and what is answered."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.schedules import play_seeds
from tests.server.actor.loss_judge import judge
from tests.server.rooms import Client, House, make_request, open_house
from tests.server.session.guests import Guest

from plait.actor.connection import Connection
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.errors import Fenced, Indeterminate, StoreError, Unavailable
from plait.parts.values import Values
from plait.state.commit import Commit
from plait.store.outcomes import Unreachable

PATIENCE = 10.0
FULL = "the disk is full"
# The errors of a store that say that nothing was done.
FAILURES = [StoreError(FULL), Unreachable("the engine is away"), Fenced("another process has written the thread")]


async def outcome(awaitable: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await awaitable


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def tell(change: Commit) -> str:
    """Return the outcome of a change."""
    try:
        await change
    except StoreError:
        return "not added"
    return "added"


class Left(BaseException):
    """What an interrupt raises is no Exception, either."""


class Counter(Thread[int]):
    initial_state: Any = 0
    values = Values()

    def on_start(self) -> Any:
        self.starts = getattr(self, "starts", 0) + 1
        self.gate = asyncio.Event()
        self.waiting = 0
        self.said: list[Any] = []
        self.told: list[Any] = []

    def on_stop(self) -> None:
        self.said.append("stopped")

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.told.append(error)

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        await self.hold()
        connection.send(f"{data!r}")

    async def hold(self) -> None:
        """Wait at the gate."""
        self.waiting += 1
        await self.gate.wait()

    def add(self, n: int = 1) -> Commit:
        return self.set_state(lambda state: state + n)

    # Turns that wait while a change is lost

    @rpc
    async def add_and_wait(self) -> str:
        self.add()
        await self.hold()
        return "added"

    @rpc(concurrent=True)
    async def wait(self) -> str:
        await self.hold()
        return "waited"

    @rpc
    async def return_all_the_same(self) -> str:
        try:
            await self.hold()
        except asyncio.CancelledError:
            self.said.append("cancelled")
        return "fine"

    @rpc
    async def raise_another(self) -> None:
        try:
            await self.hold()
        except asyncio.CancelledError:
            raise ValueError("another") from None

    @rpc
    async def leave(self) -> None:
        try:
            await self.hold()
        except asyncio.CancelledError:
            raise Left from None

    @rpc
    async def change_and_send_all_the_same(self) -> str:
        try:
            await self.hold()
        except asyncio.CancelledError:
            for change in (
                self.add,
                lambda: self.update("", 5),
                lambda: self.values.set("key", 1),
                self.change_in_block,
            ):
                with pytest.raises(StoreError, match=FULL):
                    await change()
        self.broadcast("after the loss")
        self.set_presence("server", 1)
        for connection in self.connections():
            connection.send("after the loss")
        return "fine"

    async def change_in_block(self) -> None:
        with self.transaction():
            self.add()

    @rpc(concurrent=True)
    async def gather(self) -> None:
        await asyncio.gather(self.child(), self.child())

    @rpc(concurrent=True)
    async def group(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.child())
            tasks.create_task(self.child())

    async def child(self) -> None:
        try:
            await self.hold()
        finally:
            self.said.append("child ended")

    @rpc(concurrent=True)
    async def leave_a_task(self) -> None:
        self.orphan = asyncio.create_task(self.change_at_the_gate())
        await asyncio.shield(self.orphan)

    async def change_at_the_gate(self) -> str:
        await self.hold()
        return await tell(self.add(100))

    # Turns that know

    @rpc
    async def add_and_know(self) -> str:
        said = await tell(self.add())
        await self.add(10)
        return said

    @rpc
    async def add_in_block_and_know(self) -> str:
        with self.transaction():
            commit = self.add()
        said = await tell(commit)
        await self.add(10)
        return said

    @rpc(concurrent=True)
    async def change_nothing_and_know(self) -> str:
        said = await tell(self.set_state(self.state))
        await self.add(10)
        return said

    @rpc
    async def let_a_task_know(self) -> str:
        return (await asyncio.gather(tell(self.add()), asyncio.sleep(0)))[0]

    @rpc
    async def give_up_waiting(self) -> str:
        change = self.add()
        try:
            async with asyncio.timeout(0):
                await change
        except TimeoutError:
            self.said.append("gave up")
        await self.hold()
        return "added"

    # Turns that are stored in part

    @rpc
    async def add_twice(self) -> str:
        await self.add()
        self.said.append("first")
        self.add()
        await self.hold()
        return "added"

    @rpc
    async def add_twice_and_end(self) -> str:
        self.add()
        self.add()
        return "added"

    @rpc
    async def add_twice_and_raise(self) -> None:
        await self.add()
        await self.add()

    @rpc
    async def add_elsewhere(self, how: str) -> str:
        other = self.thread(Other, "other")
        if how == "by a change":
            await other.set_state(7)
        elif how == "by a value":
            await other.part(Other.values).set("key", 7)
        elif how == "by its end":
            await other.destroy()
        elif how == "deep":
            await other.call(Other.deep)
        elif how == "not at all":
            await other.call(Other.deep, is_changing=False)
        else:
            await other.call(Other.add_now)
        self.said.append("first")
        await self.hold()
        return "added"

    @rpc
    async def call_and_wait(self) -> str:
        return str(await self.thread(Other, "other").call(Other.wait_and_add))

    @rpc
    async def let_look_later(self) -> None:
        await self.thread(Other, "other").call(Other.look_later)

    @rpc
    async def call_back(self) -> str:
        return str(await self.thread(Other, "other").call(Other.call_back))

    @rpc
    async def change_elsewhere_and_wait(self) -> None:
        await self.thread(Other, "other").set_state(7)

    # Others

    @rpc
    async def count(self) -> AsyncIterator[int]:
        self.add()
        yield 1
        await self.hold()
        yield 2

    @rpc
    async def end_and_add(self, stream: Stream) -> None:
        stream.end("the end")
        self.add()
        await self.hold()

    @rpc
    async def look(self) -> int:
        return self.state


class Other(Thread[int]):
    initial_state: Any = 0
    values = Values()

    def on_start(self) -> None:
        self.gate, self.waiting, self.said = asyncio.Event(), 0, list[str]()

    @rpc
    async def add_now(self) -> None:
        await self.set_state(7)

    @rpc
    async def deep(self, *, is_changing: bool = True) -> None:
        deeper = self.thread(Other, "deeper")
        await (deeper.call(Other.add_now) if is_changing else deeper.call(Other.look))

    @rpc
    async def look(self) -> int:
        return self.state

    @rpc
    async def wait_and_add(self) -> str:
        self.waiting += 1
        await self.gate.wait()
        await self.set_state(7)
        return "added"

    @rpc
    async def look_later(self) -> None:
        self.waiting += 1
        await self.gate.wait()
        try:
            await self.thread(Counter, "one").call(Counter.look)
        except StoreError as error:
            self.said.append(f"{type(error).__name__}: {error}")

    @rpc
    async def call_back(self) -> str:
        try:
            return str(await self.thread(Counter, "one").call(Counter.add_and_wait))
        except StoreError as error:
            self.said.append(type(error).__name__)
            return "went on"


async def begin(house: House, method: str, *args: Any) -> tuple[Counter, asyncio.Task[Any]]:
    """Return the thread, stored, and the task of a call that waits at the gate, or in another thread."""
    actor = await house.actor(Counter)
    await outcome(actor.state.store_thread())
    thread = cast(Counter, actor.thread)
    house.store.is_held = method.startswith("add_and")
    before = thread.waiting
    task = asyncio.create_task(house.handle(Counter).call(method, *args))
    await until(lambda: thread.waiting > before)
    return thread, task


async def lose(house: House, change: Callable[[], Commit] | None = None, failure: StoreError | None = None) -> None:
    """Lose the waiting change, or else another one, which no running turn has made."""
    actor = await house.actor(Counter)
    if change is not None or actor.state.is_durable:
        house.store.is_held = True
        (change or cast(Counter, actor.thread).add)()
    house.store.fail_next(failure)
    house.store.resume()
    await outcome(actor.state.wait_until_durable())


# What is cut short


@each_case("method", ["add_and_wait", "wait", "return_all_the_same", "raise_another", "leave"])
async def test_a_turn_that_is_under_way_ends_with_the_error_whatever_it_has_done_and_does(method: str) -> None:
    async with open_house(Counter) as house:
        _, call = await begin(house, method)
        await lose(house)
        with pytest.raises(StoreError, match=FULL) as caught:
            await outcome(call)
        assert type(caught.value) is StoreError
        assert await outcome(house.handle(Counter).state()) == 0


async def test_a_turn_that_is_cut_short_can_change_and_send_nothing_more() -> None:
    async with open_house(Counter) as house:
        client = await house.join(Counter, "a")
        thread, call = await begin(house, "change_and_send_all_the_same")
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        assert await outcome(house.handle(Counter).state()) == 0
        assert await outcome(house.handle(Counter).values.items()) == []
        assert "after the loss" not in client.transport.sent
        assert thread.presence() == {}


@each_case("method", ["gather", "group"])
async def test_the_tasks_of_a_turn_that_is_cut_short_end_with_it(method: str) -> None:
    async with open_house(Counter) as house:
        thread, call = await begin(house, method)
        await until(lambda: thread.waiting == 2)
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        await until(lambda: thread.said == ["child ended"] * 2)


async def test_a_task_that_outlives_a_turn_that_was_cut_short_can_change_nothing() -> None:
    async with open_house(Counter) as house:
        thread, call = await begin(house, "leave_a_task")
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        thread.gate.set()
        with pytest.raises(StoreError, match=FULL):
            await outcome(thread.orphan)
        assert await outcome(house.handle(Counter).state()) == 0


async def test_all_turns_of_a_chain_that_comes_back_are_cut_short() -> None:
    async with open_house(Counter, Other) as house:
        other = cast(Other, (await house.actor(Other, "other")).thread)
        thread, call = await begin(house, "call_back")
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        await until(lambda: other.said == ["StoreError"])
        assert await outcome(house.handle(Counter).call("look")) == 0
        assert (await house.actor(Counter)).turns.is_idle
        assert thread.waiting == 1


async def test_a_chain_whose_first_turn_was_cut_short_does_not_come_back_and_wait_for_the_next_one() -> None:
    async with open_house(Counter, Other) as house:
        other, actor = cast(Other, (await house.actor(Other, "other")).thread), await house.actor(Counter)
        call = asyncio.create_task(house.handle(Counter).call("let_look_later"))
        await until(lambda: other.waiting)
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        next_one = asyncio.create_task(house.handle(Counter).call("let_look_later"))
        await until(lambda: actor.turns.mailbox.running)
        other.gate.set()
        await outcome(next_one)
        assert other.said == [f"StoreError: {FULL}"]


class Stubborn(Counter):
    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        with suppress(asyncio.CancelledError):
            await self.hold()


@each_case("cls", [Counter, Stubborn])
async def test_on_error_is_told_of_a_hook_that_is_cut_short(cls: type[Counter]) -> None:
    async with open_house(cls) as house:
        client, actor = await house.join(cls, "a"), await house.actor(cls)
        thread = cast(Counter, actor.thread)
        client.send("hello")
        await until(lambda: thread.waiting)
        house.store.fail_next()
        with pytest.raises(StoreError, match=FULL):
            await outcome(house.handle(cls).set_state(9))
        await outcome(actor.wait_until_idle())
        assert [type(each) for each in thread.told] == [StoreError]
        assert [each for each in client.transport.sent if isinstance(each, str)] == []


async def test_on_start_is_cut_short_by_a_loss_and_runs_again_at_the_next_use() -> None:
    class Starting(Counter):
        kind = "starting"
        began: list[asyncio.Event] = []  # noqa: RUF012

        async def on_start(self) -> None:
            super().on_start()
            self.began.append(asyncio.Event())
            self.add()
            if len(self.began) == 1:
                await self.began[0].wait()

    async with open_house(Starting) as house:
        house.store.fail_next()
        with pytest.raises(StoreError, match=FULL):
            await outcome(house.handle(Starting).state())
        assert await outcome(house.handle(Starting).state()) == 1
        assert len(Starting.began) == 2


async def test_a_stream_ends_with_the_error_and_sends_nothing_more() -> None:
    async with open_house(Counter) as house:
        actor, found = await house.actor(Counter), list[Any]()
        await outcome(actor.state.store_thread())
        house.store.is_held = True

        async def read() -> None:
            async for each in house.handle(Counter).count():
                found[len(found) :] = [each]

        reading = asyncio.create_task(read())
        await until(lambda: cast(Counter, actor.thread).waiting)
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(reading)
        assert found == []


async def test_a_stream_that_has_ended_is_answered_once_and_on_error_is_told() -> None:
    async with open_house(Counter) as house:
        client, actor = await house.join(Counter, "a"), await house.actor(Counter)
        thread = cast(Counter, actor.thread)
        house.store.is_held = True
        client.call("1", "end_and_add")
        await until(lambda: thread.waiting)
        await lose(house)
        await outcome(actor.wait_until_idle())
        assert [each["result"] for each in client.transport.sent if each.get("type") == "rpc"] == ["the end"]
        assert [type(each) for each in thread.told] == [StoreError]


# What is not


async def test_a_turn_that_has_not_begun_is_not_cut_short() -> None:
    async with open_house(Counter) as house:
        _, call = await begin(house, "add_and_wait")
        waiting = asyncio.create_task(house.handle(Counter).call("look"))
        await asyncio.sleep(0)
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        assert await outcome(waiting) == 0


async def test_the_thread_its_connections_and_its_presence_stay() -> None:
    async with open_house(Counter) as house:
        client, actor = await house.join(Counter, "a"), await house.actor(Counter)
        thread = cast(Counter, actor.thread)
        actor.sockets.presence.set("a", b"1")
        thread.add(7)
        await outcome(actor.wait_until_idle())
        await lose(house)
        assert (await house.actor(Counter)).thread is thread
        assert (thread.state, thread.starts, thread.said) == (7, 1, [])
        assert thread.presence() == {"a": 1}
        assert thread.connections() == [client.connection]
        await outcome(thread.add())
        assert client.transport.sent[-1] == {"type": "cf_agent_state", "state": 8}


async def test_a_turn_that_awaits_another_thread_is_not_cut_short_by_what_is_lost_there() -> None:
    async with open_house(Counter, Other) as house:
        other = await house.actor(Other, "other")
        actor = await house.actor(Counter)
        call = asyncio.create_task(house.handle(Counter).call("call_and_wait"))
        await until(lambda: cast(Other, other.thread).waiting)
        house.store.fail_next()
        with pytest.raises(StoreError, match=FULL):
            await outcome(other.thread.set_state(1))
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        assert not actor.turns.find_loss()
        assert await outcome(house.handle(Counter).call("look")) == 0


async def test_a_change_of_a_client_that_is_lost_is_refused_and_later_ones_are_made() -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        guest = Guest(actor, "a" * 16)
        joining = await guest.prepare()
        await outcome(actor.state.store_thread())
        guest.join(joining)
        house.store.fail_next()
        guest.push({"op": "replace", "path": "", "value": 9}, base=0)
        await outcome(actor.state.wait_until_durable())
        assert [each["type"] for each in guest.frames] == ["joined", "nack"]
        assert await outcome(house.handle(Counter).set_state(5)) == 1


async def test_what_runs_while_the_other_turns_are_held_is_not_cut_short() -> None:
    async with open_house(Counter) as house:
        thread, call = await begin(house, "wait")
        turns = (await house.actor(Counter)).turns
        turns.hold()  # As `destroy` does, until the deletion begins.
        await lose(house)
        thread.gate.set()
        assert await outcome(call) == "waited"
        turns.mailbox.is_held = False


# Who is told where it waits


@each_case("method", ["add_and_know", "add_in_block_and_know"])
async def test_a_turn_that_awaits_the_lost_change_is_told_there_and_goes_on(method: str) -> None:
    async with open_house(Counter) as house:
        await outcome((await house.actor(Counter)).state.store_thread())
        house.store.fail_next()
        assert await outcome(house.handle(Counter).call(method)) == "not added"
        assert await outcome(house.handle(Counter).state()) == 10
        assert await outcome(house.handle(Counter).call(method)) == "added"


async def test_a_turn_that_awaits_a_change_that_changes_nothing_is_told_of_those_before() -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        thread = cast(Counter, actor.thread)
        await outcome(actor.state.store_thread())
        house.store.is_held = True
        thread.add()
        call = asyncio.create_task(house.handle(Counter).call("change_nothing_and_know"))
        await until(lambda: not actor.turns.is_idle)
        await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        assert await outcome(call) == "not added"
        assert await outcome(house.handle(Counter).state()) == 10


@each_case("method", ["let_a_task_know", "give_up_waiting"])
async def test_a_turn_whose_own_task_does_not_await_the_change_is_cut_short(method: str) -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        thread = cast(Counter, actor.thread)
        await outcome(actor.state.store_thread())
        house.store.is_held = True
        call = asyncio.create_task(house.handle(Counter).call(method))
        await until(lambda: house.store.waiting and (method == "let_a_task_know" or thread.said))
        await lose(house)
        with pytest.raises(StoreError, match=FULL):
            await outcome(call)
        assert await outcome(house.handle(Counter).state()) == 0


# What is answered where a part is stored


@each_case("failure", FAILURES[:2])
async def test_a_turn_of_which_a_change_is_stored_is_in_doubt(failure: StoreError) -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        call = asyncio.create_task(house.handle(Counter).call("add_twice"))
        await until(lambda: cast(Counter, actor.thread).said)
        await lose(house, cast(Counter, actor.thread).add, failure)
        with pytest.raises(Indeterminate, match=f"some changes of rpc add_twice are stored, or may be: {failure}"):
            await outcome(call)
        assert await outcome(house.handle(Counter).state()) == 1


@each_case("failure", FAILURES)
async def test_a_turn_that_has_ended_and_of_which_a_part_is_stored_is_in_doubt(failure: StoreError) -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        await outcome(actor.state.store_thread())
        house.store.is_held = True
        call = asyncio.create_task(house.handle(Counter).call("add_twice_and_end"))
        await until(lambda: len(house.store.waiting) == 2)
        house.store.resume(1)
        await until(lambda: actor.state.durable.state == 1)
        house.store.fail_next(failure)
        house.store.resume()
        with pytest.raises(Indeterminate):
            await outcome(call)
        assert await outcome(house.handle(Counter).state()) == 1


@each_case("failure", FAILURES)
async def test_a_turn_that_raises_the_error_itself_and_of_which_a_part_is_stored_is_in_doubt(
    failure: StoreError,
) -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        await outcome(actor.state.store_thread())
        house.store.is_held = True
        call = asyncio.create_task(house.handle(Counter).call("add_twice_and_raise"))
        await until(lambda: house.store.waiting)
        house.store.resume(1)
        await until(lambda: house.store.waiting)
        house.store.fail_next(failure)
        house.store.resume()
        with pytest.raises(Indeterminate):
            await outcome(call)
        assert await outcome(house.handle(Counter).state()) == 1


@each_case(("method", "error"), [("add_twice", Indeterminate), ("wait", Unavailable)])
async def test_a_turn_that_the_shutdown_cancels_is_in_doubt_if_a_part_is_stored(
    method: str, error: type[Exception]
) -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        thread = cast(Counter, actor.thread)
        call = asyncio.create_task(house.handle(Counter).call(method))
        await until(lambda: thread.waiting and actor.state.is_durable)
        actor.turns.cancel()
        with pytest.raises(error):
            await outcome(call)


@each_case("how", ["by a call", "deep", "by a change", "by a value", "by its end"])
async def test_a_turn_that_has_changed_another_thread_is_in_doubt(how: str) -> None:
    async with open_house(Counter, Other) as house:
        await outcome(house.handle(Other, "other").set_state(1))
        _, call = await begin(house, "add_elsewhere", how)
        await lose(house)
        with pytest.raises(Indeterminate):
            await outcome(call)


async def test_a_turn_whose_calls_have_changed_nothing_has_done_nothing() -> None:
    async with open_house(Counter, Other) as house:
        _, call = await begin(house, "add_elsewhere", "not at all")
        await lose(house)
        with pytest.raises(StoreError) as caught:
            await outcome(call)
        assert type(caught.value) is StoreError


async def test_a_turn_whose_deep_call_has_lost_its_only_change_has_done_nothing() -> None:
    async with open_house(Counter, Other) as house:
        for actor in (
            await house.actor(Counter),
            await house.actor(Other, "other"),
            await house.actor(Other, "deeper"),
        ):
            await outcome(actor.state.store_thread())
        house.store.is_held = True
        call = asyncio.create_task(house.handle(Counter).call("add_elsewhere", "deep"))
        await until(lambda: house.store.waiting)
        house.store.fail_next()
        house.store.resume()
        with pytest.raises(StoreError) as caught:
            await outcome(call)
        assert type(caught.value) is StoreError


async def test_a_turn_that_has_ended_another_thread_that_sleeps_is_in_doubt() -> None:
    async with open_house(Counter, Other) as house:
        await outcome(house.handle(Other, "other").set_state(1))
        other: Any = (await house.actor(Other, "other")).thread
        other.idle_timeout = 0
        await until(lambda: house.node._threads.find_awake(other._actor.key) is None)
        _, call = await begin(house, "add_elsewhere", "by its end")
        await lose(house)
        with pytest.raises(Indeterminate):
            await outcome(call)


async def test_a_turn_is_in_doubt_while_one_that_it_has_called_goes_on() -> None:
    async with open_house(Counter, Other) as house:
        other = cast(Other, (await house.actor(Other, "other")).thread)
        await house.actor(Counter)
        call = asyncio.create_task(house.handle(Counter).call("call_and_wait"))
        await until(lambda: other.waiting)
        await lose(house)
        with pytest.raises(Indeterminate):
            await outcome(call)
        other.gate.set()
        await until(lambda: other.state == 7)


async def test_a_turn_is_in_doubt_while_its_change_of_another_thread_is_being_stored() -> None:
    async with open_house(Counter, Other) as house:
        other, actor = await house.actor(Other, "other"), await house.actor(Counter)
        await outcome(actor.state.store_thread())
        house.store.is_held = True
        cast(Counter, actor.thread).add()
        call = asyncio.create_task(house.handle(Counter).call("change_elsewhere_and_wait"))
        await until(lambda: not other.state.is_durable)
        house.store.fail_next()
        house.store.resume(1)
        with pytest.raises(Indeterminate):
            await outcome(call)
        house.store.resume()
        await outcome(other.state.wait_until_durable())
        assert await outcome(house.handle(Other, "other").state()) == 7


async def test_a_turn_whose_call_had_not_begun_has_done_nothing() -> None:
    async with open_house(Counter, Other) as house:
        other, actor = cast(Other, (await house.actor(Other, "other")).thread), await house.actor(Counter)
        busy = asyncio.create_task(house.handle(Other, "other").wait_and_add())
        await until(lambda: other.waiting)
        call = asyncio.create_task(house.handle(Counter).call("call_and_wait"))
        await until(lambda: not actor.turns.is_idle)
        await asyncio.sleep(0)
        await lose(house)
        with pytest.raises(StoreError) as caught:
            await outcome(call)
        assert type(caught.value) is StoreError
        other.gate.set()
        assert await outcome(busy) == "added"
        assert other.waiting == 1


# Others


async def test_who_holds_a_change_does_not_keep_the_thread_in_memory() -> None:
    async with open_house(Counter) as house:
        actor = await house.actor(Counter)
        commit = actor.thread.set_state(1)
        assert await outcome(commit) == 1
        thread = weakref.ref(actor.thread)
        await house.node.stop(PATIENCE)
        del actor
        gc.collect()
        assert thread() is None


class Guarded(Counter):
    async def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        may = self.state == 7
        await self.gate.wait()
        return not may


class Quick(Counter):
    def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        return bool(self.state != 7)


GUARDED = pytest.mark.parametrize("guarded", [Guarded, Quick])


@GUARDED
async def test_nobody_is_let_in_by_a_state_that_was_lost(guarded: type[Counter]) -> None:
    async with open_house(guarded) as house:
        actor = await house.actor(guarded)
        await outcome(actor.state.store_thread())
        house.store.is_held = True
        change = asyncio.create_task(house.handle(guarded).set_state(7))
        await asyncio.sleep(0)
        client = Client(actor, "a")
        client.open()
        await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        with pytest.raises(StoreError):
            await outcome(change)
        cast(Counter, actor.thread).gate.set()
        await outcome(actor.wait_until_idle())
        assert client.connection.readonly or (client.transport.sent == [] and client.transport.closed is not None)


@GUARDED
async def test_nobody_may_write_by_a_state_that_was_lost(guarded: type[Counter]) -> None:
    async with open_house(guarded) as house:
        actor = await house.actor(guarded)
        house.store.is_held = True
        change = asyncio.create_task(house.handle(guarded).set_state(7))
        await asyncio.sleep(0)
        asking = asyncio.ensure_future(actor.sockets.is_readonly(Client(actor, "a").connection, make_request()))
        await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        with pytest.raises(StoreError):
            await outcome(change)
        cast(Counter, actor.thread).gate.set()
        answers = await outcome(asyncio.gather(asking, return_exceptions=True))
        assert answers == [True] or isinstance(answers[0], StoreError)


class ByValue(Counter):
    async def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        return await self.values.get("open") is None


async def test_nobody_is_let_in_by_a_value_that_was_lost() -> None:
    async with open_house(ByValue) as house:
        actor = await house.actor(ByValue)
        await outcome(actor.state.store_thread())
        thread: Any = actor.thread
        await outcome(thread.values.items())
        house.store.is_held = True
        change = asyncio.ensure_future(house.handle(ByValue).values.set("open", 1))
        await until(lambda: house.store.waiting)
        client = Client(actor, "a")
        client.open()
        await until(lambda: not actor.turns.is_idle)
        for _ in range(10):
            await asyncio.sleep(0)
        house.store.fail_next()
        house.store.resume()
        with pytest.raises(StoreError):
            await outcome(change)
        await outcome(actor.wait_until_idle())
        assert client.transport.sent == []
        assert client.transport.closed is not None


@play_seeds(3)
async def test_nothing_answered_is_lost_and_nothing_refused_is_there(seed: int) -> None:
    wrong, counts = await judge(seed)
    assert wrong == []
    assert counts["marks judged"] > 0
