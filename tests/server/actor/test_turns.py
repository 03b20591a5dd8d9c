"""Whose turn it is in a thread that many clients use."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from starlette.requests import Request
from tests.cases import each_case
from tests.server.rooms import open_house
from tests.server.session.guests import Guest, put

from plait import Connection, Principal, Reject, Stream, Thread, rpc
from plait.actor.actor import Actor
from plait.actor.connection import Party, Source

PATIENCE = 20.0


def name_of(connection: Connection) -> str:
    assert connection.principal is not None
    return connection.principal.id


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012
    begun: ClassVar[list[str]]
    versions: ClassVar[list[int]]

    def on_connect(self, connection: Connection, request: Request) -> None:
        self.begun.append(f"{name_of(connection)} connects")

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        self.begun.append(f"{name_of(connection)} {data!s}")
        await asyncio.sleep(0)

    @rpc
    async def work(self, name: str) -> None:
        self.begun.append(name)
        await asyncio.sleep(0)

    @rpc
    async def count(self) -> None:
        self.begun.append(str(self.state["n"] + 1))
        await self.set_state({"n": self.state["n"] + 1})

    def on_state_changed(self, state: dict[str, Any], source: Source) -> None:
        self.versions.append(state["n"])

    def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self.begun.append(f"{name_of(connection)} closes")


async def join(actor: Actor, user: str, number: int = 0) -> Guest:
    """Return a client that has joined."""
    guest = Guest(actor, f"{user} {number}", principal=Principal(user))
    guest.connection.party = Party(user)  # As its socket has it.
    await guest.open()
    await actor.wait_until_idle()
    return guest


async def test_a_client_does_not_wait_for_all_calls_of_another_one() -> None:
    Room.begun, Room.versions = [], []
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        eves, ada = [await join(actor, "eve", number) for number in range(20)], await join(actor, "ada")
        Room.begun.clear()
        for ref in range(1, 13):
            for eve in eves:
                eve.send("call", ref=ref, method="work", args=[f"eve {ref}"])
        ada.send("call", ref=1, method="work", args=["ada 1"])
        await actor.wait_until_idle()
        assert len(Room.begun) == 241
        assert Room.begun.index("ada 1") <= 2
        assert [each for each in Room.begun if each != "ada 1"] == [f"eve {n}" for n in range(1, 13) for _ in eves]


async def test_turns_of_a_client_run_in_order_and_hooks_of_changes_in_that_of_the_versions() -> None:
    Room.begun, Room.versions = [], []
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guests = [await join(actor, user) for user in ("ada", "bob")]
        for number in range(1, 7):
            guest = guests[number > 3]
            for place in range(3):
                guest.send("message", data=f"{number}.{place}")
            guest.push(put("/n", number), base=number - 1)
        for guest in guests:
            guest.leave()
        await actor.wait_until_idle()
        assert Room.versions == list(range(1, 7))
        for first, user in ((1, "ada"), (4, "bob")):
            own = [each.split()[1] for each in Room.begun if each.startswith(user)]
            sent = [f"{number}.{place}" for number in range(first, first + 3) for place in range(3)]
            assert own == ["connects", *sent, "closes"]


async def test_hooks_of_changes_keep_up_with_the_calls_of_many_clients() -> None:
    Room.begun, Room.versions = [], []
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        guests = [await join(actor, f"user {number}") for number in range(10)]
        Room.begun.clear()
        for ref in range(1, 11):
            for guest in guests:
                guest.send("call", ref=ref, method="count", args=[])
        behind = 0
        while not actor.is_idle:
            await asyncio.sleep(0)
            behind = max(behind, len(Room.begun) - len(Room.versions))
        assert Room.versions == [*range(1, 101)]
        assert behind <= 3 * len(guests)


class Failing(Thread[dict[str, Any]]):
    made: ClassVar[list[Any]] = []

    def fail(self) -> None:
        found = {1, 2}
        self.made.append(weakref.ref(found))
        raise Reject("no")

    @rpc
    def now(self) -> None:
        self.fail()

    @rpc
    async def later(self) -> None:
        await asyncio.sleep(0)
        self.fail()

    @rpc(concurrent=True)
    async def beside(self) -> None:
        self.fail()

    @rpc
    async def generate(self) -> AsyncIterator[int]:
        yield 1
        self.fail()

    @rpc
    async def stream(self, stream: Stream) -> None:
        self.fail()


@each_case("name", ["now", "later", "beside", "generate", "stream"])
async def test_what_a_failed_call_has_used_is_freed_at_once(name: str) -> None:
    Failing.made.clear()
    async with open_house(Failing) as house:
        actor = await house.actor(Failing)
        ada = await join(actor, "ada")
        gc.disable()  # Reference counting frees it.
        try:
            ada.send("call", ref=1, method=name, args=[])
            await actor.wait_until_idle()
            assert [each() for each in Failing.made] == [None]
        finally:
            gc.enable()


async def test_a_thread_is_destroyed_after_the_turns_that_wait() -> None:
    Room.begun, Room.versions = [], []
    async with open_house(Room) as house:
        actor = await house.actor(Room)
        eve = await join(actor, "eve")
        Room.begun.clear()
        for ref in range(1, 6):
            eve.send("call", ref=ref, method="work", args=[f"eve {ref}"])
        async with asyncio.timeout(PATIENCE):
            await house.handle(Room).destroy()
        assert Room.begun[:5] == [f"eve {ref}" for ref in range(1, 6)]
