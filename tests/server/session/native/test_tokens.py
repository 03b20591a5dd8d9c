"""Tokens on a live socket: they expire, and fresh ones come in their place."""

import asyncio
import time
from typing import Any

import pytest
from starlette.requests import Request
from tests.server.rooms import open_house
from tests.server.session.guests import Guest, Room, joined, until

from plait.actor.connection import Connection, Rights
from plait.errors import Forbidden, Unauthenticated, Unavailable
from plait.state.principal import Principal


def known(id: str = "ada", *, left: float | None = None, **claims: Any) -> Principal:
    """Return a principal whose token expires in `left` seconds."""
    return Principal(id, claims, None if left is None else time.time() + left)


async def renew(token: str) -> Rights:
    """Check a token: `name seconds`, with `reader` if it may not write, and `mute` if it may not call."""
    match token.split():
        case ["unknown"]:
            raise Unauthenticated("who is that?")
        case ["banned"]:
            raise Forbidden("not you")
        case ["later"]:
            raise Unavailable("the users cannot be asked")
        case ["broken"]:
            raise ZeroDivisionError("secret")
        case [name, left, *may]:
            return Rights(known(name, left=float(left), token=token), "reader" not in may, "mute" not in may)
    raise AssertionError(token)


async def settled(guest: Guest) -> None:
    """Wait until the guest's token has been looked at."""
    tokens = guest.session._tokens
    assert tokens is not None
    await until(lambda: tokens._task is None)


async def test_a_client_is_asked_for_a_fresh_token_before_its_own_expires() -> None:
    async with open_house(Room) as house:
        guest = Guest(await house.actor(Room), "a", principal=known(left=29.5), renew=renew)
        await guest.open()
        frames = [await guest.transport.next() for _ in range(2)]
        assert [frame["type"] for frame in frames] == ["joined", "auth_expiring"]
        assert 28 < frames[1]["in"] <= 29.5
        assert guest.closed is None


async def test_a_token_that_has_expired_closes_with_4401() -> None:
    async with open_house(Room) as house:
        guest = Guest(await house.actor(Room), "a", principal=known(left=0.05), renew=renew)
        await guest.open()
        frames = [await guest.transport.next() for _ in range(3)]
        assert [frame and frame["type"] for frame in frames] == ["joined", "auth_expiring", None]
        assert guest.closed == 4401


async def test_a_fresh_token_comes_in_the_place_of_the_old_one() -> None:
    async with open_house(Room) as house:
        guest = Guest(await house.actor(Room), "a", principal=known(left=0.9), renew=renew)
        await guest.open()
        guest.send("auth", token="ada 4")
        await settled(guest)
        assert guest.connection.principal is not None
        assert guest.connection.principal.claims == {"token": "ada 4"}
        while (frame := await guest.transport.next())["type"] != "auth_expiring" or frame["in"] < 1:
            pass
        loop = asyncio.get_running_loop()
        passed = loop.create_future()
        loop.call_later(0.95, passed.set_result, None)
        await passed
        assert guest.closed is None


async def test_a_fresh_token_brings_its_own_rights() -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a", principal=known(left=99), renew=renew)
        connection = guest.connection
        guest.send("auth", token="ada 99 reader mute")
        await settled(guest)
        assert connection.readonly
        assert not connection.rights.may_call
        guest.send("auth", token="ada 99")
        await settled(guest)
        assert not connection.readonly
        assert connection.rights.may_call


async def test_a_fresh_token_leaves_readonly_what_the_author_has_made_so() -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a", principal=known(left=99), renew=renew)
        guest.connection.readonly = True
        guest.send("auth", token="ada 99")
        await settled(guest)
        assert guest.connection.readonly


@pytest.mark.parametrize(
    ("token", "code"), [("unknown", 4401), ("banned", 4403), ("later", 1013), ("bob 99", 4403), ("broken", 1011)]
)
async def test_a_fresh_token_that_is_not_good_closes_the_socket(
    token: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a", principal=known(left=99), renew=renew)
        guest.send("auth", token=token)
        await until(lambda: guest.closed)
        assert guest.closed == code
        assert "secret" not in str(guest.transport.closed)
        assert ("secret" in caplog.text) == (token == "broken")
        await guest.actor.wait_until_idle()
        assert len(guest.actor.sockets) == 0


async def test_a_token_is_looked_at_in_the_background_and_not_for_a_socket_that_is_gone() -> None:
    looking, gate = asyncio.Event(), asyncio.Event()

    async def slowly(token: str) -> Rights:
        looking.set()
        await gate.wait()
        return Rights(known("bob"))

    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a", principal=known(left=99), renew=slowly)
        guest.send("auth", token="fresh")
        guest.send("auth", token="fresh")
        await looking.wait()
        guest.send("ping")
        assert guest.frames == [{"type": "pong"}]
        guest.leave()
        await settled(guest)
        gate.set()
        assert guest.closed == 1000
        assert guest.connection.principal is not None
        assert guest.connection.principal.id == "ada"


async def test_nothing_is_said_of_a_token_before_the_client_has_joined() -> None:
    class Slow(Room):
        kind = "room"

        def on_start(self) -> None:
            super().on_start()
            self.asked, self.gate = asyncio.Event(), asyncio.Event()

        async def connection_tags(self, connection: Connection, request: Request) -> list[str]:
            self.asked.set()
            await self.gate.wait()
            return []

    async with open_house(Slow) as house:
        actor = await house.actor(Slow)
        guest = Guest(actor, "a", principal=known(left=5), renew=renew)
        await guest.open()
        await actor.thread.asked.wait()  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        passed = loop.create_future()
        loop.call_later(0.02, passed.set_result, None)
        await passed
        actor.thread.gate.set()  # type: ignore[attr-defined]
        frames = [await guest.transport.next() for _ in range(2)]
        assert [frame["type"] for frame in frames] == ["joined", "auth_expiring"]


async def test_a_socket_stays_that_of_whoever_it_was_opened_for() -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a", renew=renew)
        guest.send("auth", token="ada 99")
        await until(lambda: guest.closed)
        assert guest.closed == 4403
        assert guest.connection.principal is None


async def test_a_client_that_sends_tokens_that_expire_soon_is_asked_again_later() -> None:
    async with open_house(Room) as house:
        guest = Guest(await house.actor(Room), "a", principal=known(left=25), renew=renew)
        await guest.open()
        assert [(await guest.transport.next())["type"] for _ in range(2)] == ["joined", "auth_expiring"]
        guest.send("auth", token="ada 25")
        await settled(guest)
        ask = guest.session._tokens._lease._ask
        assert ask is not None
        assert 12 < ask[0] < 13


async def test_of_tokens_that_come_while_one_is_looked_at_the_last_counts() -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a", principal=known(left=99), renew=renew)
        for left in (1, 50, 1000):
            guest.send("auth", token=f"ada {left}")
        await settled(guest)
        assert guest.connection.principal is not None
        assert guest.connection.principal.claims == {"token": "ada 1000"}


async def test_what_the_author_has_made_readonly_stays_so_through_any_rights() -> None:
    async with open_house(Room) as house:
        guest = await joined(await house.actor(Room), "a", principal=known(left=99), renew=renew)
        guest.connection.readonly = True
        for token in ("ada 99 reader", "ada 99"):
            guest.send("auth", token=token)
            await settled(guest)
        assert guest.connection.readonly
