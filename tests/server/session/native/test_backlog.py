"""What waits for a slow turn is bounded for each connection, of both protocols."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.rooms import Client, House, open_house
from tests.server.session.guests import Guest, joined, put

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Source
from plait.actor.rpc import rpc
from plait.actor.thread import Thread
from plait.limits import Limits

# Five turns of so many bytes are more than may wait, four are not.
TEXT = "x" * 1_000
LIMITS = Limits(backlog=9_000)


class Busy(Thread[Any]):
    """Hears of messages and changes when its gate is open."""

    initial_state = {"n": 0}  # noqa: RUF012

    def on_start(self) -> None:
        self.heard: list[Any] = []
        self.gate = asyncio.Event()

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        await self.gate.wait()
        self.heard.append(data)

    async def on_state_changed(self, state: Any, source: Source) -> None:
        await self.gate.wait()

    @rpc
    async def wait(self, text: str = "") -> str:
        await self.gate.wait()
        return "waited"

    @rpc(concurrent=True)
    async def wait_beside(self, text: str = "") -> str:
        return await self.wait()

    @rpc(concurrent=True)
    async def open_gate(self) -> None:
        self.gate.set()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Busy, limits=LIMITS) as house:
        yield house


def busy(actor: Actor) -> Busy:
    assert isinstance(actor.thread, Busy)
    return actor.thread


def codes(guest: Guest) -> list[tuple[Any, Any]]:
    return [(frame.get("code"), frame.get("ref")) for frame in guest.frames]


async def test_messages_after_a_slow_turn_are_refused_when_too_many_wait_and_taken_again_when_they_have_ended(
    house: House,
) -> None:
    actor = await house.actor(Busy)
    guest, other = await joined(actor, "a"), await joined(actor, "b")
    for n in range(7):
        guest.send("message", data=f"{n}{TEXT}")
    guest.send_bytes(TEXT.encode())
    assert codes(guest) == [("rate_limited", None)] * 3
    assert guest.closed is None
    other.send("message", data="other")
    busy(actor).gate.set()
    await actor.wait_until_idle()
    guest.send("message", data="again")
    await actor.wait_until_idle()
    assert busy(actor).heard == [f"0{TEXT}", "other", *(f"{n}{TEXT}" for n in range(1, 5)), "again"]
    assert codes(guest) == codes(other) == []


async def test_one_message_that_is_larger_than_what_may_wait_is_taken_when_nothing_waits(house: House) -> None:
    actor = await house.actor(Busy)
    guest = await joined(actor, "a")
    busy(actor).gate.set()
    guest.send("message", data="x" * 20_000)
    await actor.wait_until_idle()
    assert busy(actor).heard == ["x" * 20_000]


@pytest.mark.parametrize("method", ["wait", "wait_beside"])
async def test_calls_are_refused_when_too_many_wait_or_run_and_taken_again_when_they_have_ended(
    house: House, method: str
) -> None:
    actor = await house.actor(Busy)
    guest = await joined(actor, "a")
    for ref in range(7):
        guest.send("call", ref=ref, method=method, args=[TEXT])
    assert codes(guest) == [("rate_limited", 5), ("rate_limited", 6)]
    busy(actor).gate.set()
    await actor.wait_until_idle()
    guest.send("call", ref=5, method=method)
    await actor.wait_until_idle()
    assert [(frame["ref"], frame["value"]) for frame in guest.frames] == [(n, "waited") for n in range(6)]


async def test_calls_that_were_cancelled_wait_until_they_are_skipped(house: House) -> None:
    actor = await house.actor(Busy)
    guest = await joined(actor, "a")
    for ref in range(5):
        guest.send("call", ref=ref, method="wait", args=[TEXT])
        guest.send("cancel", ref=ref)
    guest.send("call", ref=9, method="wait")
    assert codes(guest) == [("rate_limited", 9)]
    busy(actor).gate.set()
    await actor.wait_until_idle()
    guest.send("call", ref=9, method="wait")
    await actor.wait_until_idle()
    assert codes(guest) == [(None, 9)]


async def test_what_makes_no_turn_is_taken_whatever_waits(house: House) -> None:
    actor = await house.actor(Busy)
    guest = await joined(actor, "a")
    for ref in range(6):
        guest.send("call", ref=ref, method="wait_beside", args=[TEXT])
    assert codes(guest) == [("rate_limited", 5)]
    guest.send("ping")
    guest.send("presence", data="here")
    guest.send("cancel", ref=0)
    await asyncio.sleep(0)
    actor.sockets.presence.flush()
    assert [frame["type"] for frame in guest.frames] == ["pong", "presence"]
    await asyncio.sleep(0)
    guest.send("call", ref=7, method="open_gate")
    await actor.wait_until_idle()
    assert {"type": "result", "ref": 7, "done": True} in guest.frames


async def test_pushes_are_told_to_come_again_while_too_many_of_their_changes_wait_to_be_heard_of(house: House) -> None:
    actor = await house.actor(Busy)
    guest = await joined(actor, "a")
    for n in range(6):
        guest.push(put("/n", f"{n}{TEXT}"), base=n)
        await asyncio.sleep(0)
        await actor.state.wait_until_durable()
    *acks, nack = guest.frames
    assert [frame["type"] for frame in acks] == ["ack"] * 5
    assert (nack["type"], nack["ref"], nack["code"], nack["retry_after"]) == ("nack", 6, "rate_limited", 1)
    busy(actor).gate.set()
    await actor.wait_until_idle()
    guest.push(put("/n", "last"), base=5, ref=6)
    await actor.wait_until_idle()
    assert guest.frames == [{"type": "ack", "ref": 6, "version": 6}]


async def test_of_a_cloudflare_client_calls_and_pushes_are_refused_and_after_a_message_it_is_closed(
    house: House,
) -> None:
    actor = await house.actor(Busy)
    client = await house.join(Busy, "a")
    for _ in range(5):
        client.send(TEXT)
    client.call("1", "wait")
    assert (await client.next())["success"] is False
    client.push({"n": 1})
    assert (await client.next())["type"] == "cf_agent_state_error"
    assert (await client.next())["state"] == {"n": 0}
    client.send(TEXT)
    assert await client.next() is None
    assert client.transport.closed is not None
    assert client.transport.closed[0] == 1013
    busy(actor).gate.set()
    await actor.wait_until_idle()
    assert busy(actor).heard == [TEXT] * 5


async def test_a_connection_is_settled_when_the_last_turn_that_it_caused_has_ended(house: House) -> None:
    actor = await house.actor(Busy)
    client = Client(actor, "a")
    client.open()
    client.send("hello")
    client.leave()
    told: list[int] = []
    client.connection.call_when_turns_end(lambda: told.append(len(busy(actor).heard)))
    await asyncio.sleep(0)
    assert told == []
    busy(actor).gate.set()
    await actor.wait_until_idle()
    assert told == [1]
    client.connection.call_when_turns_end(lambda: told.append(2))
    assert told == [1, 2]
