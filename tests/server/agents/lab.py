"""An app whose agents do what a test says, on either store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from plait import Context, Limits, MemoryStore, Plait, SqliteStore, StoreError, Thread, ThreadKey, Values
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Conversation", "CountingMemory", "Lab", "make_store", "open_lab"]


class Conversation(Thread[dict[str, Any]]):
    """A thread with a state and values."""

    @staticmethod
    def initial_state() -> dict[str, Any]:
        return {"answer": ""}

    texts = ("/answer",)
    values = Values()


Work = Callable[[Context[Conversation]], Awaitable[Any]]


class _Counting:
    """Counts the reads of records, and fails the next ones."""

    reads = 0
    failures = 0

    async def count(self) -> None:
        self.reads += 1
        await asyncio.sleep(0)  # A read is never done at once.
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk is broken")


class CountingMemory(_Counting, MemoryStore):
    """A MemoryStore that counts."""

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        if part == "values":
            await self.count()
        return await super().record(key, part, name)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        if wanted.part == "values":
            await self.count()
        return await super().records(key, wanted)


class CountingSqlite(_Counting, SqliteStore):
    """A SqliteStore that counts."""

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        if part == "values":
            await self.count()
        return await super().record(key, part, name)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        if wanted.part == "values":
            await self.count()
        return await super().records(key, wanted)


def make_store(kind: str, folder: Path) -> CountingMemory | CountingSqlite:
    """Return a new store of a kind."""
    return CountingMemory() if kind == "memory" else CountingSqlite(folder / "plait.db")


class Lab:
    """An app with the agents `do`, which does some work and returns its result, and `yield_`, which yields it."""

    def __init__(self, store: CountingMemory | CountingSqlite, **settings: Any) -> None:
        self.store = store
        self.app = Plait(Conversation, store=store, **settings)

        @self.app.agent("do", thread=Conversation)
        async def do(ctx: Context[Conversation], work: Any) -> Any:
            return await work(ctx)

        @self.app.agent("stream", thread=Conversation)
        async def stream(ctx: Context[Conversation], work: Any) -> AsyncIterator[Any]:
            async for chunk in work(ctx):
                yield chunk

    async def do(self, work: Work, thread: str = "one", **options: Any) -> Any:
        """Run `do` in a thread."""
        return await self.app.run("do", work, thread=thread, **options)

    async def values(self, thread: str = "one") -> dict[str, Any]:
        """Return the values of a thread, by a run that only reads."""

        async def read(ctx: Context[Conversation]) -> Any:
            return dict(await ctx.thread.values.items())

        found: dict[str, Any] = await self.do(read, thread)
        return found

    async def thread(self, name: str = "one") -> Conversation:
        """Return the thread itself, awake."""
        actor = await self.app._node.actor(self.app.thread(Conversation, name)._key)
        assert isinstance(actor.thread, Conversation)
        return actor.thread

    async def sleep(self) -> None:
        """Put all threads to sleep, so that their next use reads the store."""
        await self.app.__aexit__(None, None, None)
        await self.app.__aenter__()


@asynccontextmanager
async def open_lab(store: CountingMemory | CountingSqlite, *, limits: Limits | None = None) -> AsyncIterator[Lab]:
    """Run a lab with a store."""
    lab = Lab(store, limits=limits, shutdown_timeout=2.0)
    async with lab.app:
        yield lab
