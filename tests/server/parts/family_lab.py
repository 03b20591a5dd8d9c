"""Threads of a family, on stores of several kinds, and what is left of their records."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.postgres import new_schema
from tests.server.parts.workshop import Flaky

from plait import (
    Connection,
    Context,
    Family,
    Files,
    Limits,
    MemoryStore,
    Messages,
    Plait,
    Store,
    Thread,
    ThreadKey,
    Values,
    rpc,
)
from plait.actor.actor import Actor
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import RecordRange
from plait.store.urls import open_store

__all__ = ["Boss", "FamilyLab", "FlakyMemory", "Kid", "Plain", "make_store", "open_lab", "until"]

PATIENCE = 20.0

S = TypeVar("S")
T = TypeVar("T", bound=Thread[Any])
Work = Callable[[Context["Boss"]], Awaitable[Any]]


class FlakyMemory(Flaky, MemoryStore):
    """A MemoryStore that keeps the writes, and refuses some when a test says so."""


class Reporting(Thread[S]):
    """A thread that keeps the errors that are reported to it."""

    errors: list[BaseException]

    def on_start(self) -> None:
        self.errors = []

    def on_error(self, error: BaseException, connection: Connection | None) -> None:
        self.errors.append(error)


class Kid(Reporting[dict[str, Any]]):
    """A child, which may have children itself."""

    initial_state = {"n": 0}  # noqa: RUF012
    family = Family()
    messages = Messages()
    files = Files()

    @rpc
    def step(self) -> int:
        """Change the state, and tell the parent of it in the same write."""
        with self.transaction():
            self.set_state({"n": self.state["n"] + 1})
            self.family.notify_parent(str(self.state["n"]))
        return int(self.state["n"])


class Boss(Reporting[dict[str, Any]]):
    """A parent with a family part of another name."""

    initial_state = {"made": []}  # noqa: RUF012
    kin = Family()
    messages = Messages()
    files = Files()
    values = Values()
    # Whether it destroys its children when it is destroyed.
    is_careful = False

    async def on_destroyed(self) -> None:
        for child in self.kin.children if self.is_careful else ():
            await self.thread(Kid, child.name).destroy()


class Plain(Thread[None]):
    """A thread with a family and nothing else."""

    family = Family()


class FamilyLab:
    """An app with families, whose agent does what a test says."""

    def __init__(self, app: Plait, store: Store) -> None:
        self.app = app
        self.store = store
        self.work: Work | None = None
        app.agent("work", thread=Boss)(self._run)

    async def _run(self, ctx: Context[Boss]) -> Any:
        assert self.work is not None
        return await self.work(ctx)

    async def run(self, work: Work, name: str = "b") -> Any:
        """Do some work in a run of a parent."""
        self.work = work
        return await self.app.thread(Boss, name).call("run:work")

    async def actor(self, cls: type[Thread[Any]], name: str) -> Actor:
        return await self.app._node.actor(ThreadKey(cls._kind.name, name))

    async def thread(self, cls: type[T], name: str) -> T:
        """Return a thread itself, awake."""
        thread = (await self.actor(cls, name)).thread
        assert isinstance(thread, cls)
        return thread

    async def boss(self, name: str = "b") -> Boss:
        return await self.thread(Boss, name)

    async def kid(self, name: str = "k", parent: str = "b") -> Kid:
        """Return a child of a parent, born."""
        await (await self.boss(parent)).kin.spawn(Kid, name)
        return await self.thread(Kid, name)

    async def sleep(self, cls: type[Thread[Any]], name: str) -> None:
        """Put a thread to sleep."""
        actor, node = await self.actor(cls, name), self.app._node
        await actor.wait_until_idle()
        node._lifecycle.stop(actor)

        async def is_asleep() -> bool:
            return node._threads.find_awake(actor.key) is None

        await until(is_asleep)

    async def is_stored(self, cls: type[Thread[Any]], name: str) -> bool:
        return await self.store.find(ThreadKey(cls._kind.name, name)) is not None

    async def do_nothing(self) -> None:
        """Stand for a message that a crash has lost."""

    async def notices(self, name: str = "b") -> list[str | None]:
        """Return the texts of the silent messages of a parent, in order."""
        page = await (await self.boss(name)).messages.list(limit=1000, include_silent=True)
        return [message.content for message in page.messages if message.silent]

    async def keys(self, cls: type[Thread[Any]], name: str, part: str = "family") -> list[str]:
        """Return the stored keys of a family."""
        found = await self.store.records(ThreadKey(cls._kind.name, name), RecordRange(part, limit=10_000))
        return [record.key for record in found]

    async def has_sent(self, cls: type[Thread[Any]], name: str, part: str = "family") -> bool:
        """Whether no item of a thread waits."""
        return not any(key.startswith("o/") for key in await self.keys(cls, name, part))

    async def wait_for_sent(self, cls: type[Thread[Any]], name: str, part: str = "family") -> None:
        await until(lambda: self.has_sent(cls, name, part))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def make_store(request: pytest.FixtureRequest, kind: str, folder: Path) -> Store:
    """Return a new store of a kind."""
    if kind == "memory":
        return FlakyMemory()
    if kind == "sqlite":
        return SqliteStore(folder / "plait.db")
    return open_store(new_schema(request.getfixturevalue("postgres").url))


@asynccontextmanager
async def open_lab(store: Store, *classes: type[Thread[Any]], limits: Limits | None = None) -> AsyncIterator[FamilyLab]:
    """Run an app on a store."""
    lab = FamilyLab(Plait(Boss, Kid, Plain, *classes, store=store, limits=limits), store)
    async with lab.app:
        yield lab
