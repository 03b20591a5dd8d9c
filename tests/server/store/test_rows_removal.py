"""The removal of the rows of deleted threads."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.owning import owned
from tests.server.store.contract import OTHER, ROOM, beginning, change, put
from tests.server.store.contract_records import delete, put_records

from plait.store.memory import MemoryRows
from plait.store.outcomes import Outcome
from plait.store.rows.engine import Change, ReadPlan, Reads, Row, Span
from plait.store.rows.parts import REMOVED
from plait.store.rows.store import RowStore
from plait.store.thread_rows import ThreadKey
from plait.store.urls import open_store

PATIENCE = 10.0


class WatchedRows(MemoryRows):
    """Rows whose next deletion or removal takes some seconds or fails, and that count the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.seconds = 0.0
        self.error: Exception | None = None

    def write(self, changes: Sequence[Change], /) -> asyncio.Future[Sequence[Outcome]]:
        self.writes += 1
        loop = asyncio.get_running_loop()
        is_removal = any(change.spaces for change in changes)
        if is_removal and (error := self.error) is not None:
            self.error = None
            failed: asyncio.Future[Sequence[Outcome]] = loop.create_future()
            failed.set_exception(error)
            return failed
        write = super().write
        if not self.seconds or not any(row[1] == REMOVED for change in changes for row in change.rows):
            return write(changes)
        later: asyncio.Future[Sequence[Outcome]] = loop.create_future()
        loop.call_later(self.seconds, lambda: later.set_result(write(changes).result()))
        return later


async def wait_until(is_done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def read_space(number: int) -> Reads[list[Row]]:
    (rows,) = yield [Span(number, ("",), ("\U0010ffff",))]
    return rows


async def wait_until_empty(engine: MemoryRows, space: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await engine.read(ReadPlan(read_space, space)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_deletion_that_takes_longer_than_the_pause_before_a_removal_is_followed_by_one() -> None:
    engine = WatchedRows()
    async with owned(RowStore(engine), ROOM) as store:
        await put(store, beginning(), put_records(("a", b"1")))
        engine.seconds = 1.2
        await put(store, delete(0))
        await wait_until_empty(engine, 1)


async def test_after_a_removal_with_an_unexpected_error_the_next_one_is_made() -> None:
    engine = WatchedRows()
    async with owned(RowStore(engine), ROOM, OTHER) as store:
        await put(store, beginning(), beginning(key=OTHER))
        engine.error = MemoryError()
        await put(store, delete(0))
        await wait_until(lambda: engine.error is None)
        await put(store, delete(0, key=OTHER))
        await wait_until_empty(engine, 1)
        await wait_until_empty(engine, 2)


async def test_small_threads_are_removed_many_at_once() -> None:
    engine = WatchedRows()
    keys = [ThreadKey("room", f"{n:03}") for n in range(300)]
    async with owned(RowStore(engine), *keys) as store:
        await put(store, *[beginning(key=key) for key in keys])
        await put(store, *[delete(0, key=key) for key in keys])
        before = engine.writes
        await wait_until_empty(engine, 300)
        assert engine.writes - before <= 3
        for space in range(1, 301):
            assert await engine.read(ReadPlan(read_space, space)) == []


@pytest.mark.parametrize("count", [1, 3000])
async def test_rows_with_damaged_keys_are_removed_with_their_thread(tmp_path: Path, count: int) -> None:
    path = tmp_path / "rows.db"
    store = open_store(f"sqlite:///{path}")
    async with owned(store, ROOM, OTHER):
        records = [(f"{n:04}", b"1") for n in range(count)]
        await put(store, beginning(), put_records(*records), change(1), beginning(key=OTHER))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE rows SET key = CAST(x'61ff' || key AS TEXT) WHERE part = 'values'")
        # The mark of another thread's removal, whose number is damaged.
        db.execute("INSERT INTO rows VALUES (0, '~removed', 2, '', 7)")
        db.commit()
        async with owned(store, ROOM, OTHER):
            await put(store, delete(1))
            count_rows = "SELECT count(*) FROM rows WHERE thread = 1"
            await wait_until(lambda: db.execute(count_rows).fetchone() == (0,))
            assert db.execute("SELECT count(*) FROM rows WHERE thread = 2").fetchone() == (1,)
            await put(store, change(1, key=OTHER))
