"""Reading while threads are deleted and others are begun: SQLite uses the row id of a deleted thread again."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.server.store.contract import OTHER, ROOM, beginning, change, put
from tests.server.store.contract_records import delete, put_records

from plait.store.protocol import ThreadKey, ThreadQuery
from plait.store.sqlite import listing, reads
from plait.store.sqlite.inspection import Inspection
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import Record, RecordRange

Read = Callable[[sqlite3.Connection], Any]


async def read_during(path: Path, read: Read, statement: str, replace: Callable[[SqliteStore], Any]) -> Any:
    """Return what is read while `replace` writes, immediately before the reader's `statement`."""
    loop = asyncio.get_running_loop()
    replaced: list[str] = []

    async with SqliteStore(path) as store:

        def trace(line: str) -> None:
            if statement in line and not replaced:
                replaced.append(line)
                asyncio.run_coroutine_threadsafe(replace(store), loop).result(10)

        def run() -> Any:
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                db.set_trace_callback(trace)
                return read(db)

        await put(store, beginning(), change(1), put_records(("mine", b"1"), after=1))
        found = await asyncio.to_thread(run)
    assert replaced
    return found


async def replace_thread(store: SqliteStore) -> None:
    """Delete the thread, and give its row id to another one."""
    await put(store, delete(1))
    await put(store, beginning(key=OTHER), change(1, key=OTHER), put_records(("hers", b"2"), after=1, key=OTHER))


@pytest.mark.parametrize(
    ("read", "statement", "expected"),
    [
        (lambda db: reads.load_record(db, ROOM, "values", "mine"), "FROM records", b"1"),
        (lambda db: reads.load_record(db, ROOM, "values", "hers"), "FROM records", None),
        (
            lambda db: reads.load_records(db, ROOM, RecordRange("values")),
            "FROM records",
            [Record("values", "mine", b"1")],
        ),
        (
            lambda db: reads.load(db, ROOM, None, [RecordRange("values")]).records,  # type: ignore[union-attr]
            "FROM records",
            ([Record("values", "mine", b"1")],),
        ),
        (lambda db: reads.load_changes(db, ROOM, 0, 9, None), "FROM changes", list(change(1).changes)),
        (lambda db: reads.load_changes(db, ROOM, 9, 9, None, is_reverse=True), "FROM changes", list(change(1).changes)),
        (
            lambda db: [(row.key, row.version) for row in listing.load_threads(db, ThreadQuery())],
            "WHERE t.id",
            [(ROOM, 1)],
        ),
    ],
)
async def test_a_read_has_the_rows_of_its_own_thread_when_that_is_deleted_meanwhile(
    tmp_path: Path, read: Read, statement: str, expected: Any
) -> None:
    assert await read_during(tmp_path / "threads.db", read, statement, replace_thread) == expected


async def test_a_check_of_a_served_file_does_not_take_a_deleted_thread_for_damage(tmp_path: Path) -> None:
    path, loop, checked = tmp_path / "threads.db", asyncio.get_running_loop(), list[ThreadKey]()

    async with SqliteStore(path) as store:

        def decode(key: ThreadKey, ops: bytes) -> None:
            checked.append(key)
            asyncio.run_coroutine_threadsafe(replace_thread(store), loop).result(10)

        await put(store, beginning(), change(1))
        inspection = Inspection(path, replay=lambda *_: None, decode=decode)
        assert await asyncio.to_thread(lambda: list(inspection.run())) == []
    assert checked == [ROOM]
