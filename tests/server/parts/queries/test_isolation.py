"""No reader is sent a result that was made for another principal."""

import asyncio
import random
import re
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, field_serializer
from tests.schedules import play_seeds
from tests.server.parts.queries.readers import ABSENT, Following
from tests.server.rooms import House, open_house
from tests.server.session.guests import Guest, joined, until

from plait import Principal, Thread, current, query
from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.actor.transport import Frame
from plait.errors import Reject, Unauthenticated
from plait.parts.queries.passes import QueryPasses

_SECRET = re.compile(r"secret \d+")


class Safe(Thread[Any]):
    """Its queries return what only their reader may see: always, or in some states."""

    initial_state = {"private": False, "n": 0}  # noqa: RUF012

    @query
    def mine(self) -> Any:
        return [self.state["n"], current().principal.claims["secret"]]

    @query
    def sometimes(self, salt: int) -> Any:
        if not self.state["private"]:
            return [self.state["n"]]
        try:
            return [self.state["n"], current().principal.claims["secret"]]
        except Unauthenticated:
            return "no user"

    @query
    def fails(self) -> Any:
        if self.state["private"]:
            raise Reject(current().principal.claims["secret"])
        return self.state["n"]


class Password(BaseModel):
    """Looks the same in JSON whatever it is."""

    text: str

    @field_serializer("text")
    def mask(self, text: str) -> str:
        return "***"


class Admin(msgspec.Struct):
    """Differs from Visitor by its type alone."""

    name: str


class Visitor(msgspec.Struct):
    name: str


class Staff(Principal, frozen=True):
    """Differs from Principal by its type alone."""


class Doors(Thread[Any]):
    """Its queries look at their readers in odd ways."""

    initial_state = {"private": False}  # noqa: RUF012
    go_on: asyncio.Event
    tasks: "list[asyncio.Task[str]]"

    @query
    def by_connection(self) -> Any:
        return "secret of the server" if current().connection is None else "no"

    @query
    def protected(self, password: Password) -> Any:
        return "secret" if password.text == "open" else "no"

    @query
    def admin(self) -> Any:
        return "secret" if isinstance(current().principal.claims["account"], Admin) else "no"

    @query
    def staff(self) -> Any:
        return "secret" if isinstance(current().principal, Staff) else "no"

    @query
    def board(self) -> Any:
        return "withdrawn" if self.state["private"] else "public"

    @query
    def later(self) -> str:
        self.tasks.append(asyncio.create_task(self.ask_later()))
        return current().principal.id

    async def ask_later(self) -> str:
        await self.go_on.wait()
        return current().principal.id


class Reader:
    """A guest that follows all queries; every frame that it is sent is compared with its principal at that time."""

    def __init__(self, guest: Guest, renewed: list[Principal], leaks: list[str]) -> None:
        self.guest = guest
        # The principals of its later tokens.
        self.renewed = renewed
        send = guest.transport.send

        def watch(frame: Frame) -> None:
            own = self.secret
            leaks.extend(each for each in _SECRET.findall(frame.data.decode()) if each != own)
            send(frame)

        guest.transport.send = watch  # type: ignore[method-assign]
        self.queries = [Following(guest, "mine"), Following(guest, "sometimes", 1), Following(guest, "fails")]

    @property
    def secret(self) -> str | None:
        """What its principal alone may see."""
        found = self.guest.connection.principal
        return None if found is None else found.claims["secret"]

    def take(self) -> None:
        """Take what has come so far."""
        for frame in self.guest.frames:
            for each in self.queries:
                each.take(frame)

    def check(self, state: Any) -> None:
        """Compare the results with those of its principal."""
        mine, sometimes, fails = self.queries
        if self.secret is None:
            assert mine.error["code"] == "unauthenticated"
            assert sometimes.rows == ("no user" if state["private"] else [state["n"]])
            return
        assert mine.rows == [state["n"], self.secret]
        assert sometimes.rows == ([state["n"], self.secret] if state["private"] else [state["n"]])
        if state["private"]:
            assert fails.error["message"] == self.secret
        else:
            assert (fails.rows, fails.error) == (state["n"], None)


class Schedule:
    """Random writes, failures, joins, renewed tokens, and readers that are slow or leave."""

    def __init__(self, house: House, actor: Actor, seed: int) -> None:
        self.house, self.actor = house, actor
        self.random = random.Random(seed)
        self.readers: list[Reader] = []
        self.leaks: list[str] = []
        self.secrets = 0

    def make_principal(self) -> Principal | None:
        """Return a principal that may have the id of another one, but never its secret."""
        self.secrets += 1
        if self.random.random() < 0.15:
            return None
        return Principal(self.random.choice(["ann", "bob"]), {"secret": f"secret {self.secrets}"})

    async def join(self) -> None:
        principal = self.make_principal()
        renewed: list[Principal] = []

        async def renew(token: str) -> Rights:
            return Rights(renewed[-1])

        guest = Guest(self.actor, f"client {self.secrets}", principal=principal, renew=renew)
        guest.join(await guest.prepare())
        await until(lambda: guest.connection.session is not None)
        self.readers.append(Reader(guest, renewed, self.leaks))

    async def renew(self, reader: Reader) -> None:
        """Renew the token of a reader; its claims are other ones."""
        old = reader.guest.connection.principal
        if old is not None:
            self.secrets += 1
            principal = Principal(old.id, {"secret": f"secret {self.secrets}"})
            reader.take()
            reader.renewed.append(principal)
            reader.guest.send("auth", token="new")
            await until(lambda: reader.guest.connection.principal is principal)

    async def step(self) -> None:
        chance = self.random.random()
        reader = self.random.choice(self.readers) if self.readers else None
        if reader is None or (chance < 0.08 and len(self.readers) < 12):
            if not self.house.store.is_held:
                await self.join()
        elif chance < 0.45:
            state = {"private": self.random.random() < 0.5, "n": self.random.randrange(4)}
            self.actor.thread.set_state(state)
        elif chance < 0.55:
            self.house.store.is_held = True
        elif chance < 0.6:
            self.house.store.fail_next()
            self.house.store.resume()
        elif chance < 0.7:
            self.house.store.resume()
        elif chance < 0.78:
            reader.guest.transport.is_backed_up = True
        elif chance < 0.88:
            reader.guest.transport.catch_up()
        elif chance < 0.95:
            await self.renew(reader)
        else:
            self.readers.remove(reader)
            reader.guest.leave()
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Go on until everything has been told, and compare."""
        self.house.store._failure = None
        self.house.store.resume()
        await self.actor.thread.set_state({"private": True, "n": 99})
        for reader in self.readers:
            reader.guest.transport.catch_up()
        async with asyncio.timeout(10):
            while True:
                for reader in self.readers:
                    reader.take()
                try:
                    for reader in self.readers:
                        reader.check(self.actor.thread.state)
                    return
                except (AssertionError, TypeError):
                    await asyncio.sleep(0.001)


async def test_a_query_that_looks_at_the_connection_fails() -> None:
    async with open_house(Doors) as house:
        reader = Following(await joined(await house.actor(Doors), "a", principal=Principal("ann")), "by_connection")
        assert await reader.next() is ABSENT
        assert reader.error["code"] == "call_failed"


async def test_arguments_that_look_the_same_as_json_share_nothing() -> None:
    async with open_house(Doors) as house:
        actor = await house.actor(Doors)
        knows = Following(await joined(actor, "a"), "protected", {"text": "open"})
        guesses = Following(await joined(actor, "b"), "protected", {"text": "a guess"})
        assert [await knows.next(), await guesses.next()] == ["secret", "no"]


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("admin", Principal("x", {"account": Admin("x")}), Principal("x", {"account": Visitor("x")})),
        ("staff", Staff("x"), Principal("x")),
    ],
)
async def test_principals_of_other_types_share_nothing(name: str, one: Principal, other: Principal) -> None:
    async with open_house(Doors) as house:
        actor = await house.actor(Doors)
        first = Following(await joined(actor, "a", principal=one), name)
        second = Following(await joined(actor, "b", principal=other), name)
        assert [await first.next(), await second.next()] == ["secret", "no"]


async def test_a_slow_reader_is_not_sent_what_was_withdrawn() -> None:
    async with open_house(Doors) as house:
        actor = await house.actor(Doors)
        slow, fast = await joined(actor, "a"), Following(await joined(actor, "b"), "board")
        slow.transport.is_backed_up = True
        board = Following(slow, "board")
        assert await fast.next() == "public"
        actor.use_service(QueryPasses).interval = 3_600.0
        await actor.thread.set_state({"private": True})
        slow.transport.catch_up()
        for frame in slow.frames:
            assert not board.take(frame)
        later = Following(await joined(actor, "c"), "board")  # The run does not wait for more changes.
        assert [await later.next(), await board.next()] == ["withdrawn", "withdrawn"]


async def test_a_task_of_a_query_has_no_principal() -> None:
    async with open_house(Doors) as house:
        actor = await house.actor(Doors)
        Doors.go_on, Doors.tasks = asyncio.Event(), []
        reader = Following(await joined(actor, "a", principal=Principal("ann")), "later")
        assert await reader.next() == "ann"
        Doors.go_on.set()
        assert [type(each) for each in await asyncio.gather(*Doors.tasks, return_exceptions=True)] == [LookupError] * 2


@play_seeds(20)
async def test_random_principals_see_their_own_results_alone(seed: int) -> None:
    async with open_house(Safe) as house:
        schedule = Schedule(house, await house.actor(Safe), seed)
        for _ in range(150):
            await schedule.step()
        await schedule.end()
        assert schedule.leaks == []


async def test_a_thousand_principals_see_their_own_results_alone() -> None:
    async with open_house(Safe) as house:
        leaks: list[str] = []
        followed: list[tuple[Guest, Following]] = []
        for number in range(1_000):
            actor = await house.actor(Safe, f"thread {number % 4}")
            guest = await joined(actor, f"client {number}", principal=Principal("ann", {"secret": f"secret {number}"}))
            followed.append((guest, Following(guest, "mine")))
        for n in range(3):
            for name in range(4):
                (await house.actor(Safe, f"thread {name}")).thread.set_state({"private": True, "n": n})
            for number, (_, mine) in enumerate(followed):
                await mine.until([n, f"secret {number}"])
        for number, (_, mine) in enumerate(followed):
            leaks += [each for each in _SECRET.findall(str(mine.chunks)) if each != f"secret {number}"]
        assert leaks == []
