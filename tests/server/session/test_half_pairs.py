"""Half a surrogate pair, as of an emoji cut in two: JavaScript sends it, no decoder of UTF-8 takes it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.cases import each_case
from tests.server.rooms import Client, open_house
from tests.server.session.guests import PATIENCE, Guest, add, joined, put

from plait.actor.connection import Connection
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.errors import Reject
from plait.limits import Limits

HALF = "\ud83d"
WHOLE = "\U0001f600"
REJECTED = {"type": "cf_agent_state_error", "error": "State update rejected"}
SAID = "half a surrogate pair"


class Room(Thread[Any]):
    initial_state = {"text": "", "n": 0}  # noqa: RUF012

    def on_start(self) -> None:
        self.heard: list[Any] = []

    def validate_state_change(self, next_state: Any, source: object) -> None:
        if next_state.get("n") == "forbidden":
            raise Reject(f"no {HALF}", path=f"/{HALF}")
        if next_state.get("n") == "broken":
            raise ValueError(f"broken {HALF}")

    def on_message(self, connection: Connection, data: str | bytes) -> None:
        self.heard.append(data)

    @rpc
    def echo(self, value: Any) -> Any:
        return value

    @rpc
    def half(self) -> str:
        return f"half {HALF}"

    @rpc
    def key(self) -> dict[str, int]:
        return {HALF: 1}

    @rpc
    def fail(self) -> None:
        raise ValueError(f"failed {HALF}")

    @rpc
    def reject(self) -> None:
        raise Reject(f"rejected {HALF}")

    @rpc
    async def chunks(self) -> AsyncIterator[str]:
        yield "a"
        yield HALF

    @rpc
    async def by_hand(self, stream: Stream) -> None:
        stream.error(f"by hand {HALF}")

    @rpc
    def leave(self) -> None:
        for connection in self.connections():
            connection.close(4000, f"out {HALF}")


# The Cloudflare protocol


@each_case(
    "state",
    [{"text": HALF}, {"text": f"{WHOLE}{HALF}"}, {HALF: 1}, {"text": "\ude00"}, HALF, [[f"{HALF}a"]]],
)
async def test_a_state_with_half_a_pair_is_rejected_and_its_sender_sent_the_state(state: Any) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.push(state)
        assert [await client.next(), await client.next()] == [
            REJECTED,
            {"type": "cf_agent_state", "state": {"text": "", "n": 0}},
        ]
        client.push({"text": WHOLE, "n": 1})
        assert await house.handle(Room).state() == {"text": WHOLE, "n": 1}
        assert (await house.actor(Room)).thread.heard == []  # type: ignore[attr-defined]


@each_case(("method", "args"), [("echo", [HALF]), ("echo", [{"a": [HALF]}]), (HALF, []), ("echo", [{HALF: 1}])])
async def test_a_call_with_half_a_pair_fails(method: str, args: list[Any]) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", method, *args)
        found = await client.next()
        assert (found["type"], found["id"], found["success"]) == ("rpc", "1", False)
        assert SAID in found["error"]
        client.call("2", "echo", WHOLE)
        assert (await client.next())["result"] == WHOLE


@each_case(
    "text",
    [r"\ud83d", r'{"type":"chat","text":"\ud83d"}', r'{"type":"rpc","text":"\ud83d"}', r'{"a":"\\ud83d"}', r'"\ud83d'],
)
async def test_an_ordinary_message_with_half_a_pair_is_handed_over_as_it_is(text: str) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        client = await house.join(Room, "a")
        client.send(text)
        await actor.wait_until_idle()
        assert actor.thread.heard == [text]  # type: ignore[attr-defined]
        assert client.transport.take() == []


async def test_a_state_whose_backslashes_only_look_like_half_a_pair_is_taken() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.push({"text": r"\ud83d", "n": 1})
        assert await house.handle(Room).state() == {"text": r"\ud83d", "n": 1}


async def test_states_with_half_a_pair_count_to_the_limit_of_messages() -> None:
    async with open_house(Room, limits=Limits(messages_per_second=0.001, message_burst=2)) as house:
        client = await house.join(Room, "a")
        for _ in range(20):
            client.push({"text": HALF})
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 1013


@each_case(
    ("method", "part"),
    [("half", "surrogate"), ("key", "surrogate"), ("fail", "internal error"), ("by_hand", r"by hand \ud83d")],
)
async def test_a_call_whose_outcome_has_half_a_pair_fails(method: str, part: str) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", method)
        found = await client.next()
        assert (found["id"], found["success"]) == ("1", False)
        assert part in found["error"]
        client.call("2", "echo", 1)
        assert (await client.next())["result"] == 1


async def test_a_stream_fails_at_the_chunk_that_has_half_a_pair() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "chunks")
        assert (await client.next())["result"] == "a"
        found = await client.next()
        assert (found["id"], found["success"]) == ("1", False)


@pytest.mark.parametrize("n", ["forbidden", "broken"])
async def test_a_refusal_whose_reason_has_half_a_pair_is_told_and_logged(
    n: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.push({"text": "", "n": n})
        assert await client.next() == REJECTED
        (record,) = caplog.records
        if n == "forbidden":
            assert record.levelno == logging.WARNING
            assert record.getMessage().encode() == rb"rejected: no \ud83d, at /\ud83d"
        else:
            line = logging.Formatter().format(record).encode()
            assert b": unexpected ValueError\nTraceback" in line
            assert line.endswith(rb"ValueError: broken \ud83d")


async def test_a_close_whose_reason_has_half_a_pair_closes() -> None:
    async with open_house(Room) as house:
        client = await house.join(Room, "a")
        client.call("1", "leave")
        while await client.next() is not None:
            pass
        assert client.transport.closed is not None
        assert client.transport.closed[0] == 4000


# The native protocol


async def answer(guest: Guest) -> Any:
    """Return the one frame that comes next."""
    await guest.actor.wait_until_idle()
    (frame,) = guest.frames
    return frame


@each_case(
    "change",
    [
        {"ops": [put("/text", HALF)]},
        {"ops": [add(f"/{HALF}", 1)]},
        {"ops": [put("", {"text": HALF})]},
        {"ops": [put("/text", "a")], "unknown": HALF},
    ],
)
async def test_a_push_with_half_a_pair_is_refused_and_those_after_it_are_taken(change: dict[str, Any]) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.push(base=0, **change)
        found = await answer(guest)
        assert (found["type"], found["ref"], found["code"]) == ("nack", 1, "invalid_state")
        assert SAID in found["message"]
        guest.push(put("/n", 1), base=0)
        found = await answer(guest)
        assert (found["type"], found["ref"]) == ("ack", 2)
        assert guest.closed is None
        assert actor.thread.state == {"text": "", "n": 1}


async def test_a_push_with_half_a_pair_has_its_turn_among_the_others() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.push(put("/n", 1), base=0)
        guest.push(put("/text", HALF), base=0)
        guest.push(put("/n", 3), base=0, answered=2)
        guest.push(put("/text", HALF), base=0, ref=2)
        guest.push(put("/text", HALF), base=0, ref=9)
        await actor.wait_until_idle()
        found = [(frame["type"], frame["ref"], frame.get("code")) for frame in guest.frames]
        assert found == [
            ("ack", 1, None),
            ("nack", 2, "invalid_state"),
            ("ack", 3, None),
            ("nack", 2, "invalid_state"),
            ("nack", 9, "gap"),
        ]


@each_case(
    "call",
    [
        {"method": "echo", "args": [HALF]},
        {"method": "echo", "kwargs": {"value": HALF}},
        {"method": "echo", "kwargs": {HALF: 1}},
        {"method": HALF},
    ],
)
async def test_a_native_call_with_half_a_pair_fails(call: dict[str, Any]) -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a")
        guest.send("call", ref=7, **call)
        found = await answer(guest)
        assert (found["type"], found["ref"], found["code"]) == ("error", 7, "invalid_arguments")
        assert SAID in found["message"]
        assert guest.closed is None


@each_case("frame", [("message", {"data": HALF}), ("presence", {"data": {"name": HALF}})])
async def test_another_frame_with_half_a_pair_is_refused_and_closes_nothing(frame: tuple[str, dict[str, Any]]) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send(frame[0], **frame[1])
        found = await answer(guest)
        assert (found["type"], found["code"], "ref" in found) == ("error", "invalid_arguments", False)
        assert SAID in found["message"]
        assert guest.closed is None
        assert actor.thread.heard == []  # type: ignore[attr-defined]
        assert actor.thread.presence() == {}


async def test_a_message_with_half_a_pair_counts_as_taken_where_the_client_counts_its_messages() -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest = await joined(actor, "a")
        guest.send("ping", messages=0)
        assert await answer(guest) == {"type": "pong", "messages": 0}
        guest.send("message", data=HALF)
        assert (await answer(guest))["code"] == "invalid_arguments"
        guest.send("message", data="whole")
        guest.send("ping", messages=2)
        assert await answer(guest) == {"type": "pong", "messages": 2}
        assert actor.thread.heard == ["whole"]  # type: ignore[attr-defined]


async def test_a_ping_with_half_a_pair_in_what_is_unknown_is_answered() -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a")
        guest.send("ping", unknown=HALF)
        assert await answer(guest) == {"type": "pong"}


@each_case("text", [r'{"type":"pushy","a":"\ud83d"}', r'{"type":"push","a":"\ud83d"}', r'"\ud83d"'])
async def test_what_is_no_frame_whatever_its_texts_closes_the_socket(text: str) -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a")
        guest.send_text(text)
        assert guest.closed == 4400


@each_case(
    ("method", "code", "part"),
    [
        ("half", "call_failed", "surrogate"),
        ("key", "call_failed", "surrogate"),
        ("fail", "call_failed", "internal error"),
        ("reject", "rejected", r"rejected \ud83d"),
        ("by_hand", "call_failed", r"by hand \ud83d"),
    ],
)
async def test_a_native_call_whose_outcome_has_half_a_pair_fails(method: str, code: str, part: str) -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a")
        guest.send("call", ref=1, method=method)
        found = await answer(guest)
        assert (found["type"], found["ref"], found["code"]) == ("error", 1, code)
        assert part in found["message"]


async def test_a_nack_whose_reason_has_half_a_pair_is_sent() -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a")
        guest.push(put("/n", "forbidden"), base=0)
        found = await answer(guest)
        assert (found["type"], found["code"], found["message"]) == ("nack", "rejected", r"no \ud83d")


@each_case(
    "act",
    [
        lambda thread: thread.set_state({"text": HALF}),
        lambda thread: thread.update("/text", HALF),
        lambda thread: thread.broadcast(HALF),
        lambda thread: thread.emit(HALF),
        lambda thread: thread.emit("a", HALF),
        lambda thread: thread.set_presence(HALF, 1),
        lambda thread: thread.set_presence("a", HALF),
    ],
)
async def test_what_the_server_sends_with_half_a_pair_raises_where_it_is_made(act: Callable[[Any], object]) -> None:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guest, client = await joined(actor, "a"), Client(actor, "b")
        client.open()
        await client.joined()
        with pytest.raises(Exception, match="surrogate"):
            act(actor.thread)
        async with asyncio.timeout(PATIENCE):
            assert await house.handle(Room).state() == {"text": "", "n": 0}
        assert guest.frames == []
        assert guest.closed is client.transport.closed is None


async def test_large_frames_with_half_a_pair_count_as_much_as_others() -> None:
    few = Limits(messages_per_second=0.001, message_burst=5)
    large = f'"{"x" * 200_000}\\ud83d"'
    async with open_house(Room, limits=few) as house:
        actor = await house.actor(Room)
        guest, client = await joined(actor, "a"), Client(actor, "b")
        client.open()
        await client.joined()
        guest.send_text(f'{{"type":"call","ref":1,"method":"echo","args":[{large}]}}')
        guest.send_text('{"type":"call","ref":2,"method":"echo","args":[1]}')
        await actor.wait_until_idle()
        assert [frame["code"] for frame in guest.frames] == ["invalid_arguments", "rate_limited"]
        client.session.receive(f'{{"type":"rpc","id":"1","method":"echo","args":[{large}]}}'.encode(), is_text=True)
        client.call("2", "echo", 1)
        assert SAID in (await client.next())["error"]
        assert "messages a second" in (await client.next())["error"]
