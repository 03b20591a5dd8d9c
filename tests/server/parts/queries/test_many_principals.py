"""No reader is sent what was made for another principal, whatever happens to the thread, its store and its readers."""

import asyncio
import random
import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import pytest
from tests.schedules import play_seeds, schedules
from tests.server.parts.queries.readers import ABSENT, Following
from tests.server.rooms import House, open_house
from tests.server.session.guests import PATIENCE, Guest, until

from plait import Principal, Sql, Thread, current, query
from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.actor.transport import Frame
from plait.errors import Reject, StoreError, Unauthenticated
from plait.session.native.plait_session import PlaitSession

# A secret belongs to one principal as a whole: its id alone is that of others, too.
_SECRET = re.compile(r"secret \d+ of \w+")


def make_safe() -> type[Thread[Any]]:
    """Return a class of its own: a query that has asked once for whom it runs is never shared again."""

    class Safe(Thread[Any]):
        """Its queries return what only their reader may see: always, or in some states."""

        initial_state = {"private": False, "n": 0}  # noqa: RUF012
        sql = Sql(migrations=["CREATE TABLE notes (whom TEXT PRIMARY KEY, n INT)"])

        @query
        def mine(self) -> Any:
            return [self.state["n"], find_secret(current().principal)]

        @query
        def sometimes(self, salt: int) -> Any:
            if not self.state["private"]:
                return [self.state["n"]]
            try:
                return [self.state["n"], find_secret(current().principal)]
            except Unauthenticated:
                return "no user"

        @query
        def notes(self) -> Any:
            """Ask after it has read the notes of all."""
            (count,) = self.sql("SELECT count(*) AS notes FROM notes").value
            if not self.state["private"]:
                return count
            secret = find_secret(current().principal)
            return [count, *self.sql("SELECT whom, n FROM notes WHERE whom = ?", secret).value]

        @query
        def fails(self) -> Any:
            if self.state["private"]:
                raise Reject(find_secret(current().principal))
            return self.state["n"]

    return Safe


NAMES = ("mine", "sometimes", "notes", "fails")
# What happens, and how often.
WEIGHTS = {
    "writes": 40,
    "holds": 8,
    "fails": 5,
    "resumes": 12,
    "slow": 8,
    "drains": 10,
    "renews": 8,
    "leaves": 4,
    "joins": 8,
}


def find_secret(principal: Principal) -> str:
    """Return what a principal alone may see: it is in its claims or in a group."""
    return str(principal.claims.get("secret") or next(iter(principal.groups)))


async def read_tables(thread: Any) -> Any:
    """Wait until the tables can be read: after a lost write they are read again, which may fail as well."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(StoreError):
                return await thread.sql.read("SELECT 1 AS one")
            await asyncio.sleep(0)


class Watched(Guest):
    """A guest whose frames are compared with its principal at the time when they are sent."""

    def __init__(
        self, actor: Actor, client: str, principal: Principal | None, leaks: list[str], **options: Any
    ) -> None:
        super().__init__(actor, client, principal=principal, renew=self._check_token, **options)
        # The principals of its later tokens.
        self.renewed: dict[str, Principal] = {}
        send = self.transport.send

        def watch(frame: Frame) -> None:
            own = self.secret
            leaks.extend(f"{each} to {own}" for each in _SECRET.findall(frame.data.decode()) if each != own)
            send(frame)

        self.transport.send = watch  # type: ignore[method-assign]

    @property
    def secret(self) -> str | None:
        principal = self.connection.principal
        return None if principal is None else find_secret(principal)

    async def _check_token(self, token: str) -> Rights:
        for _ in range(int(token) % 3):
            await asyncio.sleep(0)
        return Rights(self.renewed[token])


class Reader:
    """A client that follows queries, leaves, and comes back with the results that it has."""

    def __init__(self, client: str, names: tuple[str, ...]) -> None:
        self.client = client
        self.names = names
        self.guest: Watched | None = None
        self.queries: dict[str, Following] = {}

    def follow(self, guest: Watched) -> None:
        before, self.queries, self.guest = self.queries, {}, guest
        for name in self.names:
            had = before.get(name)
            args = (1,) if name == "sometimes" else ()
            made = self.queries[name] = Following(guest, name, *args, have="" if had is None else had.tag)
            made.rows = ABSENT if had is None else had.rows

    def take(self) -> None:
        """Take what has come so far."""
        if self.guest is not None:
            for frame in self.guest.frames:
                for each in self.queries.values():
                    each.take(frame)

    def leave(self) -> None:
        if self.guest is not None:
            self.take()
            self.guest.leave()
            self.guest = None

    def check(self, thread: Any) -> None:
        """Compare the results with what the queries must return for the principal."""
        assert self.guest is not None
        n, private, secret = thread.state["n"], thread.state["private"], self.guest.secret
        notes = thread.sql("SELECT whom, n FROM notes").value
        count = {"notes": len(notes)}
        expected = {
            "mine": [n, secret] if secret else "unauthenticated",
            "sometimes": [n] if not private else [n, secret] if secret else "no user",
            "notes": count
            if not private
            else [count, *(each for each in notes if each["whom"] == secret)]
            if secret
            else "unauthenticated",
            "fails": n if not private else secret or "unauthenticated",
        }
        for name, each in self.queries.items():
            assert each.ended is None
            error = each.error and (each.error["code"] if secret is None else each.error["message"])
            assert (error or each.rows) == expected[name], name


class Schedule:
    """Random writes, failures, joins, renewed tokens, and readers that are slow, leave and come back."""

    def __init__(self, house: House, actor: Actor, seed: int) -> None:
        self.house, self.actor = house, actor
        self.random = random.Random(seed)
        self.readers: list[Reader] = []
        self.leaks: list[str] = []
        self.joining: set[asyncio.Task[None]] = set()
        self.secrets = 0
        # Each query and principal counts for the limit of a thread.
        self.names: tuple[tuple[str, ...], ...] = (NAMES,)

    def make_principal(self, id: str | None = None) -> Principal:
        """Return a principal that may have the id of another one, but never its secret."""
        self.secrets += 1
        id = id or self.random.choice(["ann", "bob", f"user{self.secrets}"])
        secret = f"secret {self.secrets} of {id}"
        return Principal(id, groups={secret}) if self.secrets % 3 == 0 else Principal(id, {"secret": secret})

    async def join(self, reader: Reader) -> None:
        principal = None if self.random.random() < 0.15 else self.make_principal()
        guest = Watched(self.actor, reader.client, principal, self.leaks)
        await guest.open()
        await until(lambda: isinstance(guest.transport.session, PlaitSession))
        reader.follow(guest)

    def begin(self, joining: Awaitable[None]) -> None:
        """Join as soon as the store permits it."""
        task = asyncio.ensure_future(joining)
        self.joining.add(task)
        task.add_done_callback(self.joining.discard)

    def renew(self, guest: Watched) -> None:
        """Renew the token of a guest; its claims or groups are other ones."""
        if (old := guest.connection.principal) is not None:
            principal = self.make_principal(old.id)
            guest.renewed[str(self.secrets)] = principal
            guest.send("auth", token=str(self.secrets))

    def write(self) -> None:
        thread: Any = self.actor.thread
        with suppress(StoreError):  # The tables are read again after a failed write.
            if self.random.random() < 0.5:
                thread.set_state({"private": self.random.random() < 0.5, "n": self.random.randrange(4)})
            else:
                guests = [each.guest for each in self.readers if each.guest is not None and each.guest.secret]
                whom = self.random.choice(guests).secret if guests else "nobody"
                n = self.random.randrange(9)
                thread.sql("INSERT INTO notes VALUES (?, ?) ON CONFLICT (whom) DO UPDATE SET n = ?", whom, n, n)

    async def step(self) -> None:
        store, chance = self.house.store, self.random.random()
        here = [each for each in self.readers if each.guest is not None]
        reader = self.random.choice(here) if here else None
        guest = None if reader is None else reader.guest
        match self.random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]:
            case "writes":
                self.write()
            case "holds":
                store.is_held = True
            case "fails":
                store.fail_next()
                store.resume()
            case "resumes":
                store.resume(None if chance < 0.5 else min(1, len(store.waiting)))
            case "slow" if guest is not None:
                guest.transport.is_backed_up = True
            case "drains" if guest is not None:
                guest.transport.catch_up()
            case "renews" if guest is not None:
                self.renew(guest)
            case "leaves" if reader is not None:
                reader.leave()
                self.begin(self.join(reader))
            case "joins" if len(self.readers) < 12:
                reader = Reader(f"client {len(self.readers)}", self.random.choice(self.names))
                self.readers.append(reader)
                self.begin(self.join(reader))
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Go on until everything has been told, and compare the results."""
        self.house.store._failure = None
        self.house.store.resume()
        await asyncio.gather(*self.joining)
        tokens = [each.guest.session._tokens for each in self.readers if each.guest is not None]
        await until(lambda: self.actor.is_idle and all(each is None or each._task is None for each in tokens))
        thread: Any = self.actor.thread
        passes: Any = next(each for each in self.actor.host.services.values() if hasattr(each, "_waiting"))
        for private in (None, True, False, self.random.random() < 0.5):
            if private is not None:
                await thread.set_state({"private": private, "n": self.secrets})
            for reader in self.readers:
                if reader.guest is not None:
                    reader.guest.transport.catch_up()
            await read_tables(thread)
            await until(lambda: self.actor.is_idle and not passes._waiting)
            for reader in self.readers:
                reader.take()
                reader.check(thread)


@play_seeds(15)
async def test_random_principals_see_their_own_results_alone(seed: int) -> None:
    safe = make_safe()
    async with open_house(safe) as house:
        schedule = Schedule(house, await house.actor(safe), seed)
        await schedule.actor.state.store_thread()
        for _ in range(150):
            await schedule.step()
            assert schedule.leaks == []
        await schedule.end()
        assert schedule.leaks == []


@pytest.mark.parametrize("seed", range(schedules(1)))
async def test_a_thousand_principals_see_their_own_results_alone(seed: int) -> None:
    """Each follows one of the queries, so that their threads are near the limit of queries."""
    safe = make_safe()
    async with open_house(safe) as house:
        crowds = [Schedule(house, await house.actor(safe, f"thread {n}"), seed * 4 + n) for n in range(4)]
        for n, crowd in enumerate(crowds):
            crowd.readers = [Reader(f"client {k}", (NAMES[(n + k) % len(NAMES)],)) for k in range(250)]
            for reader in crowd.readers:
                await crowd.join(reader)
        for _ in range(100):
            for crowd in crowds:
                await crowd.step()
                assert crowd.leaks == []
        for crowd in crowds:
            await crowd.end()
            assert crowd.leaks == []
