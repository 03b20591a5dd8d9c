"""Threads with schedules, on stores that refuse writes when a test says so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from plait.actor.actor import Actor
from plait.actor.thread import Thread
from plait.agents.runs import Runs
from plait.errors import StoreError
from plait.limits import DEFAULT_LIMITS
from plait.node.node import Node
from plait.store.memory import MemoryStore
from plait.store.protocol import Write
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ThreadKey

__all__ = [
    "PATIENCE",
    "SECOND",
    "SOON",
    "Flaky",
    "FlakyMemory",
    "FlakyStore",
    "Workshop",
    "make_store",
    "open_workshop",
    "until",
]

PATIENCE = 10.0
# Seconds after which timers read the clock.
SOON = 0.005
STOP_TIMEOUT = 1.0
SECOND = 1_000_000

T = TypeVar("T", bound=Thread[Any])


class Flaky:
    """Refuses writes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Whether a write is refused.
        self.refuses: Callable[[Write], bool] = lambda _: False
        self.writes: list[Write] = []

    def submit(self, write: Write) -> asyncio.Future[int]:
        self.writes.append(write)
        if self.refuses(write):
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            future.set_exception(StoreError("the disk is full"))
            return future
        future = super().submit(write)  # type: ignore[misc]
        return future


class FlakyMemory(Flaky, MemoryStore):
    """A MemoryStore that refuses writes when a test says so."""


class FlakySqlite(Flaky, SqliteStore):
    """A SqliteStore that refuses writes when a test says so."""


class Workshop:
    """A node whose threads read their clock often."""

    def __init__(self, node: Node, store: "FlakyStore") -> None:
        self.node = node
        self.store = store

    async def actor(self, cls: type[Thread[Any]], name: str = "one") -> Actor:
        return await self.node.actor(ThreadKey(cls._kind.name, name))

    async def thread(self, cls: type[T], name: str = "one") -> T:
        """Return a thread itself, awake."""
        thread = (await self.actor(cls, name)).thread
        assert isinstance(thread, cls)
        return thread

    def handle(self, cls: type[Thread[Any]], name: str = "one") -> Any:
        return self.node.handle(cls, name)

    def is_asleep(self, cls: type[Thread[Any]], name: str = "one") -> bool:
        return self.node._threads.find_awake(ThreadKey(cls._kind.name, name)) is None

    def are_asleep(self) -> bool:
        """Whether all threads are asleep, and none is about to wake or to sleep."""
        return not self.node._threads._slots

    async def due(self) -> dict[ThreadKey, int]:
        """Return when each thread is due, as the store knows it."""
        return {each.key: each.due for each in await self.store.due_threads(until=2**62, limit=1000)}

    async def crash(self) -> None:
        """End the threads as a kill does: they write nothing more."""
        await self.node._alarms.stop()
        for actor in self.node.actors:
            actor.timer.stop()
            actor.state.close()
            actor.turns.cancel()
        self.store.refuses = lambda _: True


FlakyStore = FlakyMemory | FlakySqlite


def make_store(kind: str, folder: Path) -> FlakyStore:
    """Return a new store of a kind."""
    return FlakyMemory() if kind == "memory" else FlakySqlite(folder / "plait.db")


@asynccontextmanager
async def open_workshop(
    store: FlakyStore,
    *classes: type[Thread[Any]],
    runs: Runs | None = None,
    timer_interval: float = SOON,
) -> AsyncIterator[Workshop]:
    """Run a node on an open store."""
    node = Node(
        [cls._kind for cls in classes],
        store,
        DEFAULT_LIMITS,
        runs=runs,
        sweep_interval=SOON,
        timer_interval=timer_interval,
    )
    store.refuses = lambda _: False
    node.start()
    try:
        yield Workshop(node, store)
    finally:
        await node.stop(STOP_TIMEOUT)


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.001)
