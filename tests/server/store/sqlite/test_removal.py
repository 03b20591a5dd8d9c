"""What a deleted thread of a SQLite store has left is removed in steps, and never shown."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.server.store.contract import OTHER, ROOM, beginning, change, listed, put, versions
from tests.server.store.contract_records import delete, everything, put_records
from tests.server.store.sqlite.test_store import run

from plait.cli.maintenance import check_store
from plait.store.protocol import Store
from plait.store.sqlite.backup import back_up, restore
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import RecordRange

FILL = """
    from tests.server.owning import submit
    from tests.server.store.contract import OTHER, beginning, put
    from tests.server.store.contract_records import delete, put_records

    async def fill(store):
        await put(store, beginning(), beginning(key=OTHER))
        for number in range(40):
            await put(store, put_records(*((f"{number}/{each}", bytes(65_536)) for each in range(16))))
"""
DELETE_AND_DIE = f"""
    import asyncio, os, sys
    from plait.store.sqlite.store import SqliteStore
    {FILL}

    async def main():
        async with SqliteStore(sys.argv[1]) as store:
            await fill(store)
            await put(store, delete(0))
            os._exit(9)

    asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
def killed(path: Path) -> Path:
    """Return the file of a server that was killed when it had deleted a thread of 40 MB."""
    assert run(DELETE_AND_DIE, path).returncode == 9
    assert count_rest(path) > 100
    return path


def count_rest(path: Path) -> int:
    """Return how many rows of threads that do not exist are in a file."""
    with closing(sqlite3.connect(path)) as db:
        of_threads = "SELECT json_extract(value, '$.space') FROM rows WHERE thread = 0 AND part = '~thread/room'"
        strays = f"SELECT count(*) FROM rows WHERE thread > 0 AND thread NOT IN ({of_threads})"
        found: int = db.execute(strays).fetchone()[0]
    return found


async def until_removed(path: Path) -> None:
    async with asyncio.timeout(30):
        while count_rest(path):  # noqa: ASYNC110  The file is another's.
            await asyncio.sleep(0.01)


async def refill(store: Store) -> None:
    """Begin the deleted thread again."""
    await put(store, beginning(epoch="e2"), change(1, epoch="e2"))


async def test_what_a_killed_server_has_not_removed_is_removed_after_a_restart(killed: Path) -> None:
    async with SqliteStore(killed) as store:
        assert (await everything(store))[:-1] == [None, [], [], None, None, []]
        await refill(store)
        await put(store, change(1, key=OTHER))
        assert await listed(store) == [(ROOM, 1), (OTHER, 1)]
        await until_removed(killed)
        assert await store.records(ROOM, RecordRange("values")) == []
        assert await versions(store) == (1, [1])
        assert await versions(store, OTHER) == (1, [1])
    with closing(sqlite3.connect(killed)) as db:
        assert db.execute("SELECT count(*) FROM rows WHERE part = '~removed'").fetchone() == (0,)


async def test_neither_a_check_nor_a_backup_shows_what_is_left(killed: Path, tmp_path: Path) -> None:
    assert list(check_store(killed)) == [(f"{killed}: 1 thread, 0 changes, nothing is damaged", False)]
    copy = tmp_path / "copy.db"
    assert back_up(killed, copy) == 1
    assert count_rest(copy) == 0
    assert count_rest(killed) > 100
    assert restore(copy, tmp_path / "restored.db")[0] == 1


async def test_a_store_that_is_closed_while_it_removes_goes_on_when_it_is_opened_again(killed: Path) -> None:
    async with SqliteStore(killed) as store:
        await refill(store)
    assert count_rest(killed)
    async with SqliteStore(killed) as store:
        await until_removed(killed)
        assert await versions(store) == (1, [1])


async def test_others_are_written_while_a_thread_is_removed(killed: Path) -> None:
    async with SqliteStore(killed) as store:
        await put(store, change(1, key=OTHER))
        assert count_rest(killed)
        await put(store, change(2, key=OTHER))
        await until_removed(killed)


async def test_a_removal_that_fails_is_logged_and_harms_no_write(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(killed, isolation_level=None)) as db:
        when = "BEFORE DELETE ON rows WHEN old.part = 'values'"
        db.execute(f"CREATE TRIGGER broken {when} BEGIN SELECT raise(ABORT, 'no'); END")
    async with SqliteStore(killed) as store:
        await put(store, change(1, key=OTHER))
        async with asyncio.timeout(10):
            while not caplog.records:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await put(store, change(2, key=OTHER), beginning(epoch="e2"), delete(0, epoch="e2"))
        assert await versions(store, OTHER) == (2, [1, 2])
    (record,) = caplog.records
    assert "could not be removed yet: the store could not be written: no" in record.getMessage()


async def test_a_thread_with_a_damaged_key_can_be_deleted(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), put_records(("a", b"1"), ("b", b"2")))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE rows SET key = CAST(x'ff' AS TEXT) WHERE key = 'a'")
    async with SqliteStore(path) as store:
        await put(store, delete(0))
        assert await store.find(ROOM) is None
    assert count_rest(path) == 0
