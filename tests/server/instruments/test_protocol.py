"""What instruments are told, seen from a node: messages, turns, changes, joins, wakes, limits."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import Request
from tests.cases import each_case
from tests.server.recorder import Event, Raising, Recorder
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, SlowReads, add, change, joined, put, until

from plait import Connection, Limits, MemoryStore, NoInstruments, Plait, Reject, Source, StoreError, Thread, rpc
from plait.actor.actor import Actor
from plait.errors import CorruptThread, Fenced, TooMany
from plait.instruments.combining import combine_instruments
from plait.instruments.protocol import NO_INSTRUMENTS

KIND = "room"
ONE = (KIND, "one")


class Room(Thread[Any]):
    """Has a method for each way to end."""

    initial_state = {"n": 0}  # noqa: RUF012
    turn_timeout = 0.05

    def on_start(self) -> None:
        self.gate = asyncio.Event()

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if next_state["n"] == "forbidden":
            raise Reject("that one is forbidden", path="/n")
        if next_state["n"] == "broken":
            raise ZeroDivisionError

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        if data == "wrong":
            raise ZeroDivisionError

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        pass

    @rpc
    def set(self, n: Any) -> None:
        self.set_state(lambda state: {**state, "n": n})

    @rpc
    def set_twice(self) -> None:
        with self.transaction():
            self.set(1)
            self.set(2)

    @rpc(concurrent=True)
    async def wait(self) -> None:
        await self.gate.wait()

    @rpc
    def answer_no_json(self) -> Any:
        return object()

    @rpc
    async def hang(self) -> None:
        await asyncio.Event().wait()

    @rpc
    def fail(self) -> None:
        raise ZeroDivisionError

    @rpc
    async def set_other(self, n: int) -> None:
        await self.thread(Room, "other").call(Room.set, n)

    @rpc
    async def generate(self) -> AsyncIterator[int]:
        yield 1


class Follower(Room):
    """Is told of its changes."""

    kind = KIND

    def on_state_changed(self, state: Any, source: Source) -> None:
        if state["n"] == 1:
            self.set(2)


class Ending(Room):
    """Is not destroyed before the gate is open."""

    kind = KIND
    turn_timeout = None  # type: ignore[assignment]

    async def on_destroyed(self) -> None:
        await self.gate.wait()


class Slow(Room):
    """Delays every join until the gate is open."""

    kind = KIND

    async def connection_tags(self, connection: Connection, request: Request) -> list[str]:
        await self.gate.wait()
        return []


class Busy(Thread[Any]):
    """Handles no message before the gate is open."""

    kind = KIND
    turn_timeout = None

    def on_start(self) -> None:
        self.gate = asyncio.Event()

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        await self.gate.wait()


class Sleepy(Room):
    kind = KIND
    idle_timeout = 0.1


@asynccontextmanager
async def told(*classes: type[Thread[Any]], **options: Any) -> AsyncIterator[tuple[House, Recorder]]:
    """Run a node whose instruments keep what they are told."""
    recorder = Recorder()
    async with open_house(*(classes or (Room,)), instruments=recorder, **options) as house:
        yield house, recorder


async def idle(actor: Actor) -> None:
    await actor.wait_until_idle()


def names(events: Any) -> list[str]:
    return [each.name for each in events]


# Messages, turns and changes


async def test_a_push_is_a_message_with_a_change_that_is_committed_and_sent_to_the_others() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        one, _ = await joined(actor, "one"), await joined(actor, "other")
        recorder.events.clear()
        one.push(put("/n", 1), base=0)
        await idle(actor)
        message, made = recorder.find("message_began"), recorder.find("change_made")
        assert recorder.events == [
            Event("message_began", (*ONE, "push", None), message.trace),
            Event("change_made", (*ONE, len('[{"op":"replace","path":"/n","value":1}]')), made.trace, message.trace),
            Event("change_committed", (), made.trace),
            Event("change_sent", (1,), made.trace),
            Event("push_answered", (KIND, "accepted")),
            Event("message_ended", ("ok",), message.trace),
        ]


async def test_a_call_is_a_message_whose_turn_makes_the_change() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        guest.connection.traceparent = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
        recorder.events.clear()
        guest.send("call", ref=1, method="set", args=[1])
        await idle(actor)
        made = recorder.find("change_made")
        turn, call = recorder.causes(made)
        assert turn.arguments == (*ONE, "rpc set")
        assert call.arguments == (*ONE, "call", guest.connection.traceparent)
        assert recorder.ended("turn_ended", turn.trace) == ("ok",)
        assert recorder.ended("message_ended", call.trace) == ("ok",)
        # The answer waits for the change.
        assert names(recorder.events).index("message_ended") > names(recorder.events).index("change_committed")


async def test_the_turns_of_other_threads_that_a_turn_calls_are_caused_by_it() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        guest.send("call", ref=1, method="set_other", args=[7])
        await until(lambda: recorder.of("change_sent"))
        causes = list(recorder.causes(recorder.find("change_made")))
        assert [each.arguments[:3] for each in causes] == [
            (KIND, "other", "rpc set"),
            (*ONE, "rpc set_other"),
            (*ONE, "call"),
        ]


async def test_on_state_changed_is_caused_by_the_change_and_causes_the_next() -> None:
    async with told(Follower) as (house, recorder):
        actor = await house.actor(Follower)
        guest = await joined(actor, "one")
        guest.push(put("/n", 1), base=0)
        await idle(actor)
        second = [each for each in recorder.events if each.name == "change_made"][1]
        assert names(recorder.causes(second)) == ["turn_began", "change_made", "message_began"]


async def test_a_transaction_is_one_change_of_its_turn() -> None:
    async with told() as (house, recorder):
        await house.handle(Room).set_twice()
        assert names(recorder.causes(recorder.find("change_made"))) == ["turn_began"]


async def test_a_change_of_server_code_outside_of_turns_has_no_cause() -> None:
    async with told() as (house, recorder):
        await house.handle(Room).set_state({"n": 3})
        assert recorder.find("change_made").parent is None


@each_case(("method", "outcome"), [("fail", "error"), ("hang", "timeout"), ("set", "rejected"), ("generate", "ok")])
async def test_a_turn_and_its_call_have_the_same_outcome(method: str, outcome: str) -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        guest.send("call", ref=1, method=method, args=["forbidden"] if method == "set" else [])
        await until(lambda: len(recorder.of("message_ended")) == 2)
        turn = recorder.find("turn_began", *ONE, f"rpc {method}")
        assert recorder.ended("turn_ended", turn.trace) == (outcome,)
        assert recorder.ended("message_ended", turn.parent) == (outcome,)


async def test_a_call_that_is_cancelled_ends_as_cancelled() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        guest.send("call", ref=1, method="wait")
        await until(lambda: recorder.of("turn_began") == [(*ONE, "on_start"), (*ONE, "rpc wait")])
        guest.send("cancel", ref=1)
        await idle(actor)
        assert recorder.of("turn_ended", "message_ended")[-2:] == [("cancelled",), ("cancelled",)]


@each_case(("method", "outcome"), [("nothing", "method_not_found"), ("set", "invalid_arguments")])
async def test_a_call_that_makes_no_turn_ends_with_its_error(method: str, outcome: str) -> None:
    async with told() as (house, recorder):
        guest = await joined(await house.actor(Room), "one")
        client = await house.join(Room, "other")
        recorder.events.clear()
        guest.send("call", ref=1, method=method)
        client.call("1", method)
        assert recorder.of("message_ended") == [(outcome,)] * 2
        assert recorder.of("turn_began") == []


async def test_a_call_whose_result_is_not_json_has_failed() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest, client = await joined(actor, "one"), await house.join(Room, "other")
        recorder.events.clear()
        guest.send("call", ref=1, method="answer_no_json")
        client.call("1", "answer_no_json")
        await idle(actor)
        assert recorder.of("message_ended") == [("call_failed",)] * 2


async def test_a_call_of_a_stream_ends_with_it() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        client = await house.join(Room, "other")
        recorder.events.clear()
        client.call("1", "generate")
        await idle(actor)
        assert recorder.of("message_ended") == [("ok",)]


async def test_a_message_ends_with_its_turn() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest, client = await joined(actor, "one"), await house.join(Room, "other")
        recorder.events.clear()
        for data in ("right", "wrong"):
            guest.send("message", data=data)
            client.send(data)
        await idle(actor)
        assert recorder.of("message_began") == [(*ONE, "message", None)] * 4
        assert sorted(recorder.of("message_ended")) == [("error",)] * 2 + [("ok",)] * 2


async def test_hooks_that_a_class_does_not_have_are_no_turns() -> None:
    class Silent(Thread[Any]):
        kind = KIND

    async with told(Silent) as (house, recorder):
        actor = await house.actor(Silent)
        guest = await joined(actor, "one")
        guest.send("message", data="hello")
        guest.leave()
        await idle(actor)
        assert recorder.of("turn_began") == []
        assert recorder.of("message_ended") == [("ok",), ("ok",)]


# Pushes


async def test_a_push_is_told_as_what_it_was_answered() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        await change(actor, 1)
        guest.push(put("/n", 2), base=1)
        guest.push(add("/m", 2), base=0)
        guest.push(put("/n", "forbidden"), base=2)
        guest.push(put("/n", "broken"), base=2, ref=4)
        guest.push(put("/n", 1), base=2, ref=1)
        guest.push(put("/n", 1), base=2, ref=99)
        await idle(actor)
        answers = [outcome for _, outcome in recorder.of("push_answered")]
        assert answers == ["accepted", "conflict", "rejected", "rejected", "repeated", "gap"]
        assert len(recorder.of("message_ended")) == 1 + 6


async def test_a_push_over_the_change_of_another_is_told_as_rebased() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        await change(actor, 1)
        guest.push(add("/m", 2), base=0)
        await idle(actor)
        assert recorder.of("push_answered") == [(KIND, "rebased")]


async def test_a_push_whose_past_is_read_keeps_its_place_among_the_answers() -> None:
    store = SlowReads()
    async with told(store=store) as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        await change(actor, 1, 2)
        actor.state.history.forget()
        store.may_read.clear()
        guest.push(add("/m", 1), base=0)
        guest.push(put("/n", "forbidden"), base=2)
        await until(lambda: store.reads)
        store.may_read.set()
        await until(lambda: len(recorder.of("push_answered")) == 2)
        first = next(each for each in recorder.events if each.name == "message_began" and each.arguments[2] == "push")
        made = [each for each in recorder.events if each.name == "change_made"][-1]
        assert made.parent == first.trace
        assert recorder.ended("message_ended", first.trace) == ("ok",)


async def test_a_push_that_is_dropped_with_its_socket_is_cancelled() -> None:
    store = SlowReads()
    async with told(store=store) as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        await change(actor, 1, 2)
        actor.state.history.forget()
        store.may_read.clear()
        guest.push(add("/m", 1), base=0)
        await until(lambda: store.reads)
        guest.leave()
        assert recorder.of("message_ended")[-1] == ("cancelled",)
        store.may_read.set()


async def test_a_push_while_the_thread_is_destroyed_is_not_told() -> None:
    async with told(Ending) as (house, recorder):
        actor = await house.actor(Ending)
        guest, client = await joined(actor, "one"), await house.join(Ending, "other")
        guest.push(put("/n", 1), base=0)
        await idle(actor)
        recorder.events.clear()
        destroying = asyncio.create_task(house.handle(Ending).destroy())
        await until(lambda: recorder.of("turn_began")[-1:] == [(*ONE, "on_destroyed")])
        guest.push(put("/n", 2), base=1)
        client.push({"n": 2})
        assert isinstance(actor.thread, Ending)
        actor.thread.gate.set()
        await destroying
        assert recorder.of("message_began", "message_ended", "push_answered") == []


async def test_a_push_whose_past_is_read_ends_with_a_thread_that_is_destroyed_meanwhile() -> None:
    store = SlowReads()
    async with told(Ending, store=store) as (house, recorder):
        actor = await house.actor(Ending)
        guest = await joined(actor, "one")
        await change(actor, 1, 2)
        actor.state.history.forget()
        store.may_read.clear()
        guest.push(add("/m", 1), base=0)
        await until(lambda: store.reads)
        destroying = asyncio.create_task(house.handle(Ending).destroy())
        await until(lambda: actor.is_ending)
        store.may_read.set()
        await until(lambda: len(recorder.of("message_ended")) == 2)
        assert recorder.of("message_ended")[-1] == ("cancelled",)
        assert isinstance(actor.thread, Ending)
        actor.thread.gate.set()
        await destroying
        assert len(recorder.of("message_ended")) == 2


async def test_whole_states_are_told_as_pushes() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        client = await house.join(Room, "one")
        client.push({"n": 1})
        await idle(actor)
        client.push({"n": "forbidden"})
        client.push({"n": "broken"})
        client.connection.readonly = True
        client.push({"n": 2})
        answers = [outcome for _, outcome in recorder.of("push_answered")]
        assert answers == ["accepted", "rejected", "rejected", "readonly"]
        pushes = [each for each in recorder.events if each.name == "message_began" and each.arguments[2] == "push"]
        outcomes = [recorder.ended("message_ended", each.trace) for each in pushes]
        assert outcomes == [("ok",), ("rejected",), ("rejected",), ("readonly",)]


# The store


async def test_changes_that_could_not_be_stored_fail_with_their_code() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        house.store.is_held = True
        house.store.fail_next()
        guest.push(put("/n", 1), base=0)
        guest.push(put("/n", 2), base=0)
        house.store.resume()
        await idle(actor)
        assert recorder.of("change_failed") == [("store_error",)] * 2
        assert recorder.of("store_failed") == [("store_error",)]
        assert recorder.of("push_answered")[0] == (KIND, "store_error")


async def test_a_thread_that_cannot_be_loaded_is_a_store_error() -> None:
    async with told() as (house, recorder):
        house.store.fail_load()
        with pytest.raises(StoreError):
            await house.actor(Room)
        assert recorder.events == [Event("store_failed", ("store_error",))]


async def test_a_log_that_cannot_be_read_is_a_store_error() -> None:
    store = SlowReads()
    async with told(store=store) as (house, recorder):
        actor = await house.actor(Room)
        await change(actor, 1, 2)
        actor.state.history.forget()
        store.is_damaged = True
        with pytest.raises(CorruptThread):
            await actor.log.page(0)
        assert recorder.of("store_failed") == [("corrupt_thread",)]


# Joins, readers, wakes


async def test_a_join_is_told_by_what_was_sent() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        await house.join(Room, "cloudflare")
        await joined(actor, "new")
        epoch = actor.state.history.epoch
        await change(actor, 1)
        await joined(actor, "behind", have=(epoch, 0))
        await joined(actor, "same", have=(epoch, 1))
        assert recorder.of("joined") == [
            (KIND, "cloudflare", "snapshot"),
            (KIND, "plait.v1", "snapshot"),
            (KIND, "plait.v1", "changes"),
            (KIND, "plait.v1", "nothing"),
        ]
        assert recorder.of("message_began") == [(*ONE, "join", None)] * 4
        assert recorder.of("message_ended") == [("ok",)] * 4


async def test_a_join_whose_peer_has_disconnected_meanwhile_is_cancelled() -> None:
    async with told(Slow) as (house, recorder):
        actor = await house.actor(Slow)
        guest = Guest(actor, "one")
        await guest.open()
        await until(lambda: ((*ONE, "on_connect")) in recorder.of("turn_began"))
        guest.leave()
        assert isinstance(actor.thread, Slow)
        actor.thread.gate.set()
        await idle(actor)
        assert recorder.of("message_ended") == [("cancelled",)]
        assert recorder.of("joined") == []


async def test_a_reader_that_falls_behind_is_told_once_until_it_has_caught_up() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest, client = await joined(actor, "one"), await house.join(Room, "other")
        for transport in (guest.transport, client.transport):
            transport.is_backed_up = True
        await change(actor, 1, 2)
        assert recorder.of("reader_lagged") == [(KIND,)] * 2
        guest.transport.catch_up()
        guest.transport.is_backed_up = True
        await change(actor, 3)
        assert recorder.of("reader_lagged") == [(KIND,)] * 3


async def test_a_thread_wakes_and_sleeps() -> None:
    async with told(Sleepy) as (house, recorder):
        await house.actor(Sleepy)
        assert recorder.of("woke", "slept") == [(KIND,)]
        await until(lambda: recorder.of("slept"))
        assert names(recorder.events) == ["turn_began", "turn_ended", "woke", "slept"]


async def test_a_thread_that_another_process_has_taken_sleeps_once() -> None:
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        await house.store.claim(actor.key)
        with pytest.raises(Fenced):
            await actor.thread.set_state({"n": 1})
        await until(lambda: recorder.of("slept"))
    assert recorder.of("slept") == [(KIND,)]


# Limits


async def test_limits_of_messages_are_told_when_they_are_hit() -> None:
    limits = Limits(presence=10, depth=3, state=64, messages_per_second=0.001, message_burst=7)
    async with told(limits=limits) as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        guest.send("presence", data="x" * 20)
        guest.send("presence", data=[[[[]]]])
        guest.push(put("/n", "x" * 100), base=0)
        guest.push(put("/n", [[[[1]]]]), base=0)
        await idle(actor)
        assert recorder.of("limit_hit") == [("presence",), ("depth",), ("state",), ("depth",)]
        recorder.events.clear()
        for _ in range(3):
            guest.send("ping")
        for ref in (3, 4):
            guest.push(put("/n", 1), base=0, ref=ref)
        guest.send("message", data=1)
        guest.send("call", ref=1, method="set")
        await idle(actor)
        assert recorder.of("limit_hit") == [("messages_per_second",)] * 4
        assert recorder.of("push_answered") == [(KIND, "rate_limited")] * 2
        assert [each[2] for each in recorder.of("message_began")] == ["push", "push", "message", "call"]
        assert recorder.of("message_ended") == [("rate_limited",)] * 4


async def test_messages_that_are_no_json_end_with_their_error() -> None:
    half = '"\\ud800"'
    async with told() as (house, recorder):
        actor = await house.actor(Room)
        guest, client = await joined(actor, "one"), await house.join(Room, "other")
        recorder.events.clear()
        guest.send_text('{"type":"call","ref":1,"method":"set","args":[' + half + "]}")
        guest.send_text('{"type":"message","data":' + half + "}")
        client.send('{"type":"rpc","id":"1","method":"set","args":[' + half + "]}")
        await idle(actor)
        assert [each[2] for each in recorder.of("message_began")] == ["call", "message", "call"]
        assert recorder.of("message_ended") == [("invalid_arguments",)] * 3


async def test_limits_of_whole_states_are_told_when_they_are_hit() -> None:
    limits = Limits(state=64, messages_per_second=0.001, message_burst=1)
    async with told(limits=limits) as (house, recorder):
        client = await house.join(Room, "one")
        client.push({"n": "x" * 100})
        client.push({"n": 1})
        assert recorder.of("limit_hit") == [("state",), ("messages_per_second",)]
        assert recorder.of("push_answered") == [(KIND, "too_large"), (KIND, "rate_limited")]


async def test_calls_and_messages_of_the_cloudflare_protocol_that_come_too_fast_are_told() -> None:
    async with told(limits=Limits(messages_per_second=0.001, message_burst=3)) as (house, recorder):
        client = await house.join(Room, "one")
        for _ in range(3):
            client.call("1", "nothing")
        recorder.events.clear()
        client.call("2", "set", 1)
        client.send("hello")
        assert [each[2] for each in recorder.of("message_began")] == ["call", "message"]
        assert recorder.of("message_ended") == [("rate_limited",)] * 2


async def test_a_backlog_is_told_when_it_is_full() -> None:
    async with told(Busy, limits=Limits(backlog=1024)) as (house, recorder):
        actor = await house.actor(Busy)
        guest = await joined(actor, "one")
        for _ in range(2):
            guest.send("message", data="wait")
        assert recorder.of("limit_hit") == [("backlog",)]
        assert isinstance(actor.thread, Busy)
        actor.thread.gate.set()


async def test_a_full_write_buffer_is_told() -> None:
    async with told(limits=Limits(write_buffer=1000)) as (house, recorder):
        actor = await house.actor(Room)
        guest = await joined(actor, "one")
        guest.transport.is_backed_up = True
        await change(actor, 1)
        actor.thread.broadcast("x" * 2000)
        assert guest.closed == 1013
        assert recorder.of("limit_hit") == [("write_buffer",)]


async def test_connections_and_threads_over_their_limits_are_told() -> None:
    async with told(limits=Limits(connections_per_thread=1, awake_threads=1)) as (house, recorder):
        actor = await house.actor(Room)
        await joined(actor, "one")
        await Guest(actor, "two").open()
        assert recorder.of("limit_hit") == [("connections_per_thread",)]
        with pytest.raises(TooMany) as caught:
            await house.actor(Room, "other")
        assert caught.value.limit == "awake_threads"


# Several, and those that raise


async def test_several_instruments_have_traces_of_their_own() -> None:
    one, other = Recorder(), Recorder()
    other.change_made(*ONE, 0, None)
    before = list(other.events)
    async with open_house(Follower, instruments=combine_instruments([one, other])) as house:
        actor = await house.actor(Follower)
        guest = await joined(actor, "one")
        guest.push(put("/n", 1), base=0)
        await idle(actor)
    shifted = [each._replace(trace=_add(each.trace), parent=_add(each.parent)) for each in one.events]
    assert other.events == before + shifted
    assert len(one.events) > 10


def _add(trace: int | None) -> int | None:
    return None if trace is None else trace + 1


async def test_clients_do_not_feel_instruments_that_raise(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    async with open_house(Follower, instruments=combine_instruments([Raising(), recorder])) as house:
        actor = await house.actor(Follower)
        guest, client = await joined(actor, "one"), await house.join(Follower, "other")
        for n in range(3, 6):
            guest.push(put("/n", n), base=n - 3)
            await idle(actor)
            assert (await client.next())["state"] == {"n": n}
        guest.send("call", ref=1, method="set", args=[7])
        await idle(actor)
        assert (await client.next())["state"] == {"n": 7}
        assert [each["type"] for each in guest.frames] == ["ack", "ack", "ack", "change", "result"]
    logged = [each.getMessage().split()[0] for each in caplog.records if each.name == "plait.instruments"]
    assert sorted(logged) == sorted({each.name for each in recorder.events})
    assert all(each.exc_info for each in caplog.records if each.name == "plait.instruments")
    assert [each for each in caplog.records if each.name != "plait.instruments" and each.levelno > logging.INFO] == []


# What an app takes


def test_an_app_refuses_what_are_no_instruments() -> None:
    class Half:
        def socket_opened(self, protocol: str) -> None:
            pass

    class Late(NoInstruments):
        async def slept(self, kind: str) -> None:  # type: ignore[override]
            pass

    for given, why in (
        (Recorder, "instruments must be an object, not the class Recorder: write Recorder()"),
        (Half(), "has no method request_began: subclass plait.NoInstruments"),
        ([Late()], "instruments: Late.slept must be a plain function, not async"),
        (None, "has no method request_began"),
    ):
        with pytest.raises(TypeError, match=re.escape(why)):
            Plait(Room, store=MemoryStore(), instruments=given)  # type: ignore[arg-type]


def test_no_instruments_are_not_wrapped() -> None:
    assert combine_instruments(()) is NO_INSTRUMENTS
    assert combine_instruments(NoInstruments()) is NO_INSTRUMENTS
    assert combine_instruments([NoInstruments(), NoInstruments()]) is NO_INSTRUMENTS
