"""The rows of threads, which are stored some time after their changes."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.clocks import stopped_clock
from tests.server.owning import owned, submit
from tests.server.store.contract import OTHER, PATIENCE, ROOM, beginning, change, put

from plait.errors import CorruptThread
from plait.store.memory import MemoryRows
from plait.store.outcomes import Outcome
from plait.store.protocol import ThreadQuery
from plait.store.rows.engine import Change
from plait.store.rows.parts import CHANGE
from plait.store.rows.store import RowStore
from plait.store.thread_rows import ThreadKey
from plait.store.urls import open_store


class LateRows(MemoryRows):
    """Rows whose writes are done in the next iteration of the loop. The written changes are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Sequence[Change]] = []

    def write(self, changes: Sequence[Change], /) -> asyncio.Future[Sequence[Outcome]]:
        loop, write = asyncio.get_running_loop(), super().write
        self.written.append(changes)
        later: asyncio.Future[Sequence[Outcome]] = loop.create_future()
        loop.call_soon(lambda: later.set_result(write(changes).result()))
        return later


class HeldRows(MemoryRows):
    """Rows whose writes are done when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.is_waiting = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def write(self, changes: Sequence[Change], /) -> asyncio.Future[Sequence[Outcome]]:
        write = super().write

        async def wait() -> Sequence[Outcome]:
            if not self.gate.is_set():
                self.is_waiting.set()
            await self.gate.wait()
            return await write(changes)

        return asyncio.ensure_future(wait())


async def test_a_thread_that_is_released_while_others_are_saved_is_forgotten_soon() -> None:
    engine = HeldRows()
    async with RowStore(engine) as store, asyncio.timeout(PATIENCE):
        fences = {key: await store.claim(key) for key in (ROOM, OTHER)}
        for write in (beginning(), beginning(key=OTHER), change(1, key=OTHER)):
            await store.submit(msgspec.structs.replace(write, fence=fences[write.key]))
        await store.threads()
        await store.submit(msgspec.structs.replace(change(1), fence=fences[ROOM]))
        timer = store._saving
        engine.gate.clear()
        listing = asyncio.create_task(store.threads())
        await engine.is_waiting.wait()
        store.release(OTHER, fences[OTHER])
        while store._saving is timer:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        engine.gate.set()
        await listing
        while OTHER in store._known:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_rows_of_threads_are_saved_some_at_a_time_and_writes_go_in_between() -> None:
    engine = LateRows()
    keys = [ThreadKey("room", f"{n:04}") for n in range(1000)]
    async with owned(RowStore(engine), ROOM, *keys) as store:
        await put(store, beginning(), *[beginning(key=key) for key in keys])
        await put(store, *[change(1, key=key) for key in keys])
        engine.written.clear()
        listing = asyncio.create_task(store.threads(ThreadQuery(kind="room", limit=1)))
        await asyncio.sleep(0)
        await put(store, change(1))
        await listing
        assert max(len(changes) for changes in engine.written) <= 200
        places = [n for n, (first, *_) in enumerate(engine.written) if any(row[1] == CHANGE for row in first.rows)]
        assert places == [1]
        assert len(engine.written) >= 6


async def test_a_thread_is_listed_by_its_last_durable_change_while_the_next_one_is_written() -> None:
    with stopped_clock() as clock:
        async with owned(RowStore(LateRows()), ROOM, OTHER) as store:
            await put(store, beginning(), beginning(key=OTHER))
            clock.move(0.5)
            await put(store, change(1))
            write = submit(store, change(2))
            await asyncio.sleep(0)
            rows = await store.threads(ThreadQuery(order="changed"))
            assert [row.key for row in rows] == [ROOM, OTHER]
            await write


async def test_the_loss_of_a_change_that_came_with_an_old_time_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    store = open_store(f"sqlite:///{path}")
    async with owned(store, ROOM):
        writes = (beginning(), change(1), change(2))
        await put(store, *[msgspec.structs.replace(write, changed_at=7) for write in writes[:1]])
        await put(store, *[msgspec.structs.replace(write, changed_at=7) for write in writes[1:]])
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM rows WHERE part = '~c' AND key = 2")
        db.commit()
    async with store:
        with pytest.raises(CorruptThread, match="missing after version 1, up to 2"):
            await store.load(ROOM)
