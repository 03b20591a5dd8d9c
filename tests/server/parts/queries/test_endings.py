"""What ends the readers of queries: tokens that expire, sockets that leave, threads that are destroyed."""

import time
from typing import Any

from tests.server.parts.queries.readers import Desk, Following
from tests.server.rooms import open_house
from tests.server.session.guests import joined, until

from plait import Principal


class Sleepy(Desk):
    """Falls asleep as soon as it is not used."""

    idle_timeout = 0.0


async def test_readers_end_when_their_token_expires() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        guest = await joined(actor, "a", principal=Principal("ann", expires_at=time.time() + 0.2))
        orders = Following(guest, "orders")
        await orders.next()
        await until(lambda: guest.closed == 4401)
        assert actor.state.on_touch is None


async def test_a_thread_falls_asleep_when_its_readers_have_left() -> None:
    async with open_house(Sleepy) as house:
        actor = await house.actor(Sleepy)
        desk: Any = actor.thread
        guests = [await joined(actor, client) for client in "ab"]
        following = [Following(guest, "orders") for guest in guests]
        for each in following:
            await each.next()
        guests[0].leave()
        desk.add("tea")
        assert await following[1].next() == [{"id": 1, "item": "tea"}]
        assert [each.key.name for each in house.node.actors] == ["one"]
        guests[1].leave()
        await until(lambda: not house.node.actors)
        assert actor.state.on_touch is None
        again = Following(await joined(await house.actor(Sleepy), "b"), "orders", have=following[1].tag)
        await again.next()
        assert again.chunks == [{"at": 1, "tag": following[1].tag}]


async def test_a_thread_that_is_destroyed_ends_its_readers() -> None:
    async with open_house(Desk) as house:
        actor = await house.actor(Desk)
        guest = await joined(actor, "a")
        orders = Following(guest, "orders")
        await orders.next()
        before = Desk.runs
        await house.handle(Desk).destroy()
        await until(lambda: guest.closed == 4410)
        assert actor.state.on_touch is None
        assert Desk.runs == before


async def test_a_cloudflare_client_is_told_how_queries_are_read() -> None:
    async with open_house(Desk) as house:
        client = await house.join(Desk, "c")
        client.call("1", "orders")
        answer = await client.next()
        assert (answer["id"], answer["success"]) == ("1", False)
        assert answer["error"] == "orders is a query: follow it with `query`, or GET …/query/orders"
