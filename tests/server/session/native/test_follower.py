"""One reader kept up to date: each change, or one frame for many, and frames that readers share."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.fakes import FakeTransport
from tests.server.rooms import House, open_house
from tests.server.session.guests import LARGE, Room, change, put

from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.session.native.follower import PLAIT, Follower
from plait.state.view import EVERYTHING


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        # As the sockets of readers do; an unused thread keeps no recent changes in memory.
        with actor.usage.keep_awake():
            yield house


async def follow(house: House, *, text: str = "") -> tuple[Actor, FakeTransport, Follower]:
    """Return a follower of a thread that has a text in its state, from version 1 on."""
    actor = await house.actor(Room)
    await actor.thread.set_state({"n": 0, "text": text})
    transport = FakeTransport()
    connection = actor.sockets.make_connection("a", transport, rights=Rights())
    follower = Follower(actor, connection, transport)
    follower.skip(1)
    return actor, transport, follower


async def deliver(actor: Actor, follower: Follower, *values: Any, in_step: bool = False) -> None:
    for n in values:
        await change(actor, n)
        durable = actor.state.history.durable
        follower.deliver(PLAIT.encode_change(durable, EVERYTHING), durable, in_step=in_step)


async def test_a_reader_that_keeps_up_is_sent_each_change(house: House) -> None:
    actor, transport, follower = await follow(house)
    await deliver(actor, follower, 1, 2)
    follower.catch_up()
    assert [frame["version"] for frame in transport.sent] == [2, 3]
    assert follower.version == 3


async def test_a_reader_that_fell_behind_what_is_streamed_is_sent_it_as_one_splice(house: House) -> None:
    actor, transport, follower = await follow(house, text="x" * 16_000)
    transport.is_backed_up = True
    for _ in range(250):
        await actor.thread.append("/text", "y" * 40)
        durable = actor.state.history.durable
        follower.deliver(PLAIT.encode_change(durable, EVERYTHING), durable)
    transport.is_backed_up = False
    follower.catch_up()
    splice = {"op": "splice", "path": "/text", "at": 16_000, "insert": "y" * 10_000}
    assert transport.sent == [{"type": "changes", "from": 1, "to": 251, "ops": [splice]}]


async def test_a_reader_that_fell_behind_is_sent_nothing_more_until_it_catches_up(house: House) -> None:
    actor, transport, follower = await follow(house, text="x" * 500)
    transport.is_backed_up = True
    await deliver(actor, follower, 1)
    transport.is_backed_up = False
    await deliver(actor, follower, 2)
    assert (transport.sent, follower.version, follower.is_behind) == ([], 1, True)
    follower.catch_up()
    assert transport.sent == [{"type": "changes", "from": 1, "to": 3, "ops": [put("/n", 1), put("/n", 2)]}]
    assert (follower.version, follower.is_behind) == (3, False)
    follower.catch_up()
    await deliver(actor, follower, 3)
    assert [frame["type"] for frame in transport.sent] == ["changes", "change"]


async def test_a_reader_that_is_kept_in_step_does_not_fall_behind(house: House) -> None:
    actor, transport, follower = await follow(house)
    transport.is_backed_up = True
    await deliver(actor, follower, 1, 2, in_step=True)
    assert [frame["version"] for frame in transport.sent] == [2, 3]


async def test_a_reader_that_knows_of_all_by_its_own_answers_is_sent_nothing(house: House) -> None:
    actor, transport, follower = await follow(house)
    transport.is_backed_up = True
    await deliver(actor, follower, 1)
    follower.skip(2)
    follower.skip(1)
    follower.catch_up()
    assert (transport.sent, follower.version) == ([], 2)


@pytest.mark.parametrize(
    ("size", "values", "kind"),
    [(10, [1, 2, 3], "changes"), (10, LARGE, "snapshot"), (20_000, LARGE, "changes")],
)
async def test_operations_are_sent_unless_they_are_large_and_larger_than_the_state(
    house: House, size: int, values: list[Any], kind: str
) -> None:
    actor, transport, follower = await follow(house, text="x" * size)
    transport.is_backed_up = True
    await deliver(actor, follower, *values)
    follower.catch_up()
    assert [frame["type"] for frame in transport.sent] == [kind]


async def test_where_the_changes_are_not_in_memory_the_state_is_sent(house: House) -> None:
    actor, transport, follower = await follow(house, text="x" * 100_000)
    transport.is_backed_up = True
    await deliver(actor, follower, *range(1, 402))
    follower.catch_up()
    (frame,) = transport.sent
    assert (frame["type"], frame["version"], frame["state"]["n"]) == ("snapshot", 402, 401)
    assert frame["epoch"] == actor.state.history.epoch
