"""Threads with files, on stores of several kinds, and what is left of their records."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.postgres import new_schema

from plait import Context, Files, Limits, MemoryStore, Messages, Plait, Store, Thread, ThreadKey, Values, rpc
from plait.actor.actor import Actor
from plait.parts.files.file import CHUNK
from plait.store.thread_rows import RecordRange
from plait.store.urls import open_store

__all__ = ["CHUNK", "FilesLab", "Room", "count_calls", "make_store", "open_lab", "until"]

PATIENCE = 20.0

Work = Callable[[Context["Room"]], Awaitable[Any]]


class Room(Thread[dict[str, Any]]):
    """A thread with files beside other parts."""

    initial_state = {"n": 0}  # noqa: RUF012
    files = Files()
    values = Values()
    messages = Messages()

    @rpc
    async def save(self, path: str, text: str) -> int:
        """Write a file."""
        return (await self.files.write(path, text)).size


class FilesLab:
    """An app whose agent does what a test says."""

    def __init__(self, app: Plait, store: Store) -> None:
        self.app = app
        self.store = store
        self.work: Work | None = None
        app.agent("work", thread=Room)(self._run)

    async def _run(self, ctx: Context[Room]) -> Any:
        assert self.work is not None
        return await self.work(ctx)

    async def run(self, work: Work, name: str = "one") -> Any:
        """Do some work in a run."""
        self.work = work
        return await self.app.thread(Room, name).call("run:work")

    async def actor(self, name: str = "one") -> Actor:
        return await self.app._node.actor(ThreadKey("room", name))

    async def thread(self, name: str = "one") -> Room:
        thread = (await self.actor(name)).thread
        assert isinstance(thread, Room)
        return thread

    async def keys(self, name: str = "one") -> set[str]:
        """Return the stored keys of the files, without what follows a content's name."""
        found, after = set[str](), ""
        while page := await self.store.records(ThreadKey("room", name), RecordRange("files", after=after, limit=20)):
            found.update(record.key for record in page)
            after = page[-1].key
        return found

    async def contents(self, name: str = "one") -> dict[str, int]:
        """Return how many chunks each stored content has."""
        found: dict[str, int] = {}
        for key in await self.keys(name):
            if key.startswith("c/"):
                content = key.split("/")[1]
                found[content] = found.get(content, 0) + 1
        return found

    async def is_clean(self, name: str = "one") -> bool:
        """Whether all stored contents have a path, and nothing is marked."""
        files = (await self.thread(name)).files
        wanted = {file.etag: file.chunks for file in await files.find("**") if file.size}
        marks = [key for key in await self.keys(name) if key.startswith("u/")]
        return not marks and await self.contents(name) == wanted


def count_calls(work: Callable[[], object]) -> int:
    """Return how many Python functions some work calls, and functions in C."""
    calls = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def make_store(request: pytest.FixtureRequest, kind: str, folder: Path) -> Store:
    """Return a new store of a kind."""
    if kind == "memory":
        return MemoryStore()
    if kind == "sqlite":
        return open_store(f"sqlite:///{folder / 'plait.db'}")
    return open_store(new_schema(request.getfixturevalue("postgres").url))


@asynccontextmanager
async def open_lab(store: Store, *, limits: Limits | None = Limits()) -> AsyncIterator[FilesLab]:  # noqa: B008
    """Run an app on a store."""
    lab = FilesLab(Plait(Room, store=store, limits=limits), store)
    async with lab.app:
        yield lab
