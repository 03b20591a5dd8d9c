"""Calls of the native protocol: answered, streamed, cancelled."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, joined, until
from tests.told import check_internal

from plait.actor.connection import Rights
from plait.actor.current import current
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.errors import Conflict
from plait.limits import Limits


class Piece(msgspec.Struct):
    """Has a size, as its author sees to."""

    size: int

    def __post_init__(self) -> None:
        assert self.size > 0, "no size"


class Machine(Thread[Any]):
    initial_state = 0

    def on_start(self) -> None:
        self.gate = asyncio.Event()
        self.ran: list[Any] = []

    @rpc
    def add(self, n: int, times: int = 1, *, sign: int = 1) -> int:
        self.set_state(lambda state: state + n * times * sign)
        return int(self.state)

    @rpc
    def nothing(self) -> None:
        self.ran.append("nothing")

    @rpc
    def nothing_of_something(self) -> int | None:
        return None

    @rpc
    def fail(self) -> None:
        raise LookupError("no such thing")

    @rpc
    def refuse(self) -> None:
        raise Conflict("not now", path="/n")

    @rpc
    def take(self, piece: Piece) -> None:
        pass

    def hidden(self) -> None:
        pass

    @rpc
    def odd(self) -> Any:
        return object()

    @rpc
    async def wait(self) -> str:
        self.ran.append("begun")
        await self.gate.wait()
        self.ran.append("ended")
        return "waited"

    @rpc(concurrent=True)
    async def wait_beside(self) -> str:
        return await self.wait()

    @rpc
    async def stream(self, to: int) -> AsyncIterator[int]:
        try:
            for n in range(to):
                yield n
            await self.gate.wait()
        finally:
            self.ran.append("closed")
        if to > 2:
            raise LookupError("too many")

    @rpc
    async def stream_states(self, to: int) -> AsyncIterator[int]:
        for _ in range(to):
            self.set_state(lambda state: state + 1)
            yield self.state

    @rpc
    async def stream_odd(self) -> AsyncIterator[Any]:
        yield 1
        yield object()

    @rpc
    async def by_hand(self, stream: Stream, how: str) -> None:
        stream.send("first")
        if how == "error":
            stream.error("by hand")
        elif how == "value":
            stream.end("last")
        await self.gate.wait()
        self.ran.append("by hand")


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Machine, limits=Limits(depth=8)) as house:
        yield house


def call(guest: Guest, ref: int, method: str, *args: Any, **kwargs: Any) -> None:
    guest.send("call", ref=ref, method=method, args=args, **({"kwargs": kwargs} if kwargs else {}))


def result(ref: int, *value: Any, done: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "result", "ref": ref, "done": done}
    return {**found, "value": value[0]} if value else found


async def test_a_call_is_answered_after_what_it_changed(house: House) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    house.store.is_held = True
    call(guest, 7, "add", 2)
    call(guest, 8, "add", 2, 3, sign=-1)
    await until(lambda: actor.turns.mailbox.is_idle)
    assert guest.frames == []
    house.store.resume()
    await actor.wait_until_idle()
    assert [(f["type"], f.get("version"), f.get("ref"), f.get("value")) for f in guest.frames] == [
        ("change", 1, None, None),
        ("result", None, 7, 2),
        ("change", 2, None, None),
        ("result", None, 8, -4),
    ]


async def test_a_method_that_returns_nothing_is_answered_without_a_value_and_one_that_may_with_null(
    house: House,
) -> None:
    guest = await joined(await house.actor(Machine), "a")
    call(guest, 1, "nothing")
    call(guest, -5, "nothing_of_something")
    await guest.actor.wait_until_idle()
    assert guest.frames == [result(1), result(-5, None)]


@pytest.mark.parametrize(
    ("method", "arguments", "code", "path"),
    [
        ("add", {"args": ["two"]}, "invalid_arguments", "/n"),
        ("add", {}, "invalid_arguments", "/n"),
        ("add", {"args": [1, 2, 3]}, "invalid_arguments", None),
        ("add", {"args": [1], "kwargs": {"n": 1}}, "invalid_arguments", "/n"),
        ("add", {"args": [1], "kwargs": {"power": 1}}, "invalid_arguments", "/power"),
        ("take", {"args": [{"size": 0}]}, "invalid_arguments", "/piece"),
        ("hidden", {}, "method_not_found", None),
        ("add", {"args": [json.loads("[" * 9 + "]" * 9)]}, "invalid_arguments", "/n"),
        ("on_start", {}, "method_not_found", None),
        ("fail", {}, "call_failed", None),
        ("refuse", {}, "conflict", "/n"),
        ("odd", {}, "call_failed", None),
        ("stream_odd", {}, "call_failed", None),
    ],
)
async def test_a_call_that_fails_says_why_and_where(
    house: House, method: str, arguments: dict[str, Any], code: str, path: str | None
) -> None:
    guest = await joined(await house.actor(Machine), "a")
    guest.send("call", ref=1, method=method, **arguments)
    await guest.actor.wait_until_idle()
    error = guest.frames[-1]
    assert (error["type"], error["ref"], error["code"], error.get("path")) == ("error", 1, code, path)
    assert error["message"]
    assert guest.closed is None
    call(guest, 1, "nothing")
    await guest.actor.wait_until_idle()
    assert guest.frames == [result(1)]


async def test_who_may_not_call_is_told_so(house: House) -> None:
    guest = await joined(await house.actor(Machine), "a")
    guest.connection.rights = Rights(may_call=False)
    call(guest, 1, "nothing")
    assert [(f["code"], f["ref"]) for f in guest.frames] == [("forbidden", 1)]


async def test_a_call_whose_change_could_not_be_stored_fails(house: House) -> None:
    guest = await joined(await house.actor(Machine), "a")
    house.store.fail_next()
    call(guest, 1, "add", 1)
    await guest.actor.wait_until_idle()
    assert [(f["type"], f["code"], f["ref"]) for f in guest.frames] == [("error", "store_error", 1)]


async def test_a_ref_of_a_call_under_way_is_refused_and_the_call_goes_on(house: House) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    call(guest, 1, "wait")
    call(guest, 1, "nothing")
    assert [(f["code"], f["ref"]) for f in guest.frames] == [("invalid_arguments", 1)]
    actor.thread.gate.set()  # type: ignore[attr-defined]
    await actor.wait_until_idle()
    assert guest.frames == [result(1, "waited")]
    assert actor.thread.ran == ["begun", "ended"]  # type: ignore[attr-defined]


# Streams


async def test_a_stream_is_a_result_a_chunk_and_a_last_one(house: House, caplog: pytest.LogCaptureFixture) -> None:
    actor = await house.actor(Machine)
    actor.thread.gate.set()  # type: ignore[attr-defined]
    guest = await joined(actor, "a")
    call(guest, 1, "stream", 2)
    await actor.wait_until_idle()
    assert guest.frames == [result(1, 0, done=False), result(1, 1, done=False), result(1)]
    call(guest, 1, "stream", 3)
    await actor.wait_until_idle()
    *chunks, error = guest.frames
    assert chunks == [result(1, n, done=False) for n in range(3)]
    assert (error["type"], error["code"]) == ("error", "call_failed")
    check_internal(error["message"], caplog, "too many")


async def test_each_chunk_comes_after_the_change_before_it(house: House) -> None:
    guest = await joined(await house.actor(Machine), "a")
    call(guest, 1, "stream_states", 2)
    await guest.actor.wait_until_idle()
    assert [(f["type"], f.get("version", f.get("value"))) for f in guest.frames] == [
        ("change", 1),
        ("result", 1),
        ("change", 2),
        ("result", 2),
        ("result", None),
    ]


async def test_a_stream_whose_change_could_not_be_stored_ends_with_that(house: House) -> None:
    guest = await joined(await house.actor(Machine), "a")
    house.store.fail_next()
    call(guest, 1, "stream_states", 2)
    await guest.actor.wait_until_idle()
    ends = [f for f in guest.frames if f["type"] == "error" or f.get("done")]
    assert [(f["type"], f["code"]) for f in ends] == [("error", "store_error")]


@pytest.mark.parametrize("how", ["value", "error"])
async def test_the_ref_of_a_stream_that_has_ended_may_be_used_though_its_method_goes_on(house: House, how: str) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    call(guest, 1, "by_hand", how)
    await until(lambda: len(guest.transport.sent) == 3)
    first, last = guest.frames
    assert first == result(1, "first", done=False)
    assert last == (
        result(1, "last")
        if how == "value"
        else {"type": "error", "ref": 1, "code": "call_failed", "message": "by hand"}
    )
    call(guest, 1, "nothing")
    await until(lambda: len(guest.transport.sent) == 4)
    assert guest.frames == [result(1)]
    actor.thread.gate.set()  # type: ignore[attr-defined]
    await actor.wait_until_idle()
    assert guest.frames == []
    assert actor.thread.ran == ["nothing", "by hand"]  # type: ignore[attr-defined]


async def test_a_stream_by_hand_that_is_not_ended_ends_with_its_method(house: House) -> None:
    actor = await house.actor(Machine)
    actor.thread.gate.set()  # type: ignore[attr-defined]
    guest = await joined(actor, "a")
    call(guest, 1, "by_hand", "not at all")
    await actor.wait_until_idle()
    assert guest.frames == [result(1, "first", done=False), result(1)]


# Cancelling


async def test_a_stream_that_is_cancelled_ends_its_generator_and_is_not_answered(house: House) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    call(guest, 1, "stream", 1)
    await until(lambda: len(guest.transport.sent) == 2)
    guest.send("cancel", ref=1)
    await actor.wait_until_idle()
    assert guest.frames == [result(1, 0, done=False)]
    assert actor.thread.ran == ["closed"]  # type: ignore[attr-defined]


async def test_a_chunk_that_is_on_its_way_when_its_call_is_cancelled_is_not_taken_for_one_of_the_next(
    house: House,
) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    house.store.is_held = True
    call(guest, 1, "stream_states", 1)
    await until(lambda: actor.thread.state == 1 and not actor.turns._concurrent)
    guest.send("cancel", ref=1)
    call(guest, 1, "nothing")
    await until(lambda: actor.turns.mailbox.is_idle)
    house.store.resume()
    await actor.wait_until_idle()
    assert [frame for frame in guest.frames if frame["type"] == "result"] == [result(1)]


async def test_a_call_that_is_cancelled_before_its_turn_is_skipped(house: House) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    call(guest, 1, "wait")
    call(guest, 2, "nothing")
    call(guest, 3, "nothing_of_something")
    guest.send("cancel", ref=2)
    guest.send("cancel", ref=99)
    actor.thread.gate.set()  # type: ignore[attr-defined]
    await actor.wait_until_idle()
    assert guest.frames == [result(1, "waited"), result(3, None)]
    assert actor.thread.ran == ["begun", "ended"]  # type: ignore[attr-defined]


async def test_a_turn_that_runs_when_it_is_cancelled_ends_and_is_not_answered_but_a_concurrent_one_does_not(
    house: House,
) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    call(guest, 1, "wait")
    call(guest, 2, "wait_beside")
    await until(lambda: len(actor.thread.ran) == 2)  # type: ignore[attr-defined]
    guest.send("cancel", ref=1)
    guest.send("cancel", ref=2)
    call(guest, 1, "nothing_of_something")
    await until(lambda: not actor.turns._concurrent)
    actor.thread.gate.set()  # type: ignore[attr-defined]
    await actor.wait_until_idle()
    assert guest.frames == [result(1, None)]
    assert actor.thread.ran == ["begun", "begun", "ended"]  # type: ignore[attr-defined]


async def test_when_the_socket_closes_streams_end_and_running_turns_finish(house: House) -> None:
    actor = await house.actor(Machine)
    guest = await joined(actor, "a")
    call(guest, 1, "wait")
    call(guest, 2, "nothing")
    call(guest, 3, "stream", 1)
    await until(lambda: len(guest.transport.sent) == 2)
    guest.leave()
    await until(lambda: not actor.turns._concurrent)
    actor.thread.gate.set()  # type: ignore[attr-defined]
    await actor.wait_until_idle()
    assert actor.thread.ran == ["begun", "closed", "ended"]  # type: ignore[attr-defined]


async def test_a_call_is_made_for_its_connection(house: House) -> None:
    class Who(Thread[Any]):
        initial_state = 0

        @rpc
        def who(self) -> list[str]:
            found = current().connection
            return [found.id] if found is not None else []

    async with open_house(Who) as other:
        guest = await joined(await other.actor(Who), "a")
        call(guest, 1, "who")
        await guest.actor.wait_until_idle()
        assert guest.frames == [result(1, [guest.connection.id])]
