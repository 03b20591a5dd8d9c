"""Reading while threads are deleted and others are begun."""

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.server.store.contract import OTHER, ROOM, beginning, change, put
from tests.server.store.contract_records import delete, put_records

from plait.store.protocol import StoredThread, ThreadQuery
from plait.store.rows import reads
from plait.store.rows.engine import ReadPlan, Reads
from plait.store.rows.listing import list_threads
from plait.store.rows.running import run_reads
from plait.store.sqlite.inspection import Inspection
from plait.store.sqlite.store import SqliteStore
from plait.store.sqlite.table import open_reader, read
from plait.store.thread_rows import Record, RecordRange, ThreadKey


async def read_during(path: Path, plan: ReadPlan[Any]) -> Any:
    """Return what is read while the thread is replaced, immediately before its rows are read."""
    loop = asyncio.get_running_loop()
    replaced: list[str] = []

    async with SqliteStore(path) as store:

        def trace(line: str) -> None:
            if "thread = 1 " in line and not replaced:
                replaced.append(line)
                asyncio.run_coroutine_threadsafe(replace_thread(store), loop).result(10)

        def run() -> Any:
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                open_reader(db)
                db.set_trace_callback(trace)
                return read(db, partial(run_reads, plan))

        await put(store, beginning(), change(1), put_records(("mine", b"1"), after=1))
        found = await asyncio.to_thread(run)
    assert replaced
    return found


def load_ranges(wanted: RecordRange) -> Reads[Any]:
    """Return the records that are loaded with the thread."""
    found = yield from reads.load(ROOM, None, [wanted])
    return found and found[0].records


def list_versions() -> Reads[Any]:
    """Return the keys and versions of all threads."""
    return [(row.key, row.version) for row in (yield from list_threads(ThreadQuery()))]


async def replace_thread(store: SqliteStore) -> None:
    """Delete the thread, and begin another one."""
    await put(store, delete(1))
    await put(store, beginning(key=OTHER), change(1, key=OTHER), put_records(("hers", b"2"), after=1, key=OTHER))


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (ReadPlan(reads.load_record, ROOM, "values", "mine"), b"1"),
        (ReadPlan(reads.load_record, ROOM, "values", "hers"), None),
        (ReadPlan(reads.load_records, ROOM, RecordRange("values")), [Record("values", "mine", b"1")]),
        (ReadPlan(load_ranges, RecordRange("values")), ([Record("values", "mine", b"1")],)),
        (ReadPlan(reads.load_changes, ROOM, 0, 9, None, is_reverse=False), list(change(1).changes)),
        (ReadPlan(reads.load_changes, ROOM, 9, 9, None, is_reverse=True), list(change(1).changes)),
        (ReadPlan(list_versions), [(ROOM, 1)]),
    ],
)
async def test_a_read_has_the_rows_of_its_own_thread_when_that_is_deleted_meanwhile(
    tmp_path: Path, plan: ReadPlan[Any], expected: Any
) -> None:
    assert await read_during(tmp_path / "threads.db", plan) == expected


async def test_a_check_of_a_served_file_does_not_take_a_deleted_thread_for_damage(tmp_path: Path) -> None:
    path, loop, checked = tmp_path / "threads.db", asyncio.get_running_loop(), list[ThreadKey]()

    async with SqliteStore(path) as store:

        class Replacing(Inspection):
            def decode(self, key: ThreadKey, ops: bytes) -> None:
                checked.append(key)
                asyncio.run_coroutine_threadsafe(replace_thread(store), loop).result(10)

            def replay(self, key: ThreadKey, stored: StoredThread) -> None: ...

        await put(store, beginning(), change(1))
        assert await asyncio.to_thread(lambda: list(Replacing(path).run())) == []
    assert checked == [ROOM]
