"""What a SQLite store does so that nothing that was acknowledged is lost without anybody noticing."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from tests.server.owning import submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, client_row, outcomes, put, versions
from tests.server.store.contract_due import due
from tests.server.store.contract_records import delete, put_records
from tests.server.store.sqlite.test_store import change_file, database, run

from plait.errors import CorruptThread, Fenced, StoreError
from plait.store.protocol import Write
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ThreadKey

THIRD = ThreadKey("room", "three")

WRITE_AND_DIE = """
    import asyncio, os, sys
    from plait.store.sqlite.store import SqliteStore
    from tests.server.owning import submit
    from tests.server.store.contract import OTHER, ROOM, beginning, change

    async def main():
        async with SqliteStore(sys.argv[1], synchronous=sys.argv[2]) as store:
            if await store.load(ROOM) is None:
                await submit(store, beginning())
                await submit(store, beginning(key=OTHER))
            first = (await store.load(ROOM)).version + 1
            for version in range(first, first + 20):
                await submit(store, change(version))
            os._exit(9)

    asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
def killed(path: Path) -> Path:
    """Return the file of a server that was killed after change 20; the last changes are in the log only."""
    assert run(WRITE_AND_DIE, path, "FULL").returncode == 9
    return path


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


async def epochs(path: Path) -> list[str]:
    """Open a store as a server does, and return the epochs of its threads."""
    async with SqliteStore(path) as store:
        found = [await store.load(key) for key in (ROOM, OTHER)]
    return ["none" if stored is None else stored.epoch for stored in found]


def read_heads(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the rows of threads in a file, in the order of their spaces."""
    found = db.execute("SELECT value FROM rows WHERE part = '~thread/room'")
    return sorted((json.loads(value) for (value,) in found), key=itemgetter("space"))


# The end of the log


async def test_a_killed_server_begins_no_new_epochs(killed: Path) -> None:
    for _ in range(2):
        assert await epochs(killed) == ["e1", "e1"]
    async with SqliteStore(killed) as store:
        assert (await versions(store))[0] == 20


@pytest.mark.parametrize("lost", [1, 100, 4096 + 24, 20_000])
async def test_a_log_that_is_cut_short_begins_new_epochs(
    killed: Path, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = log_of(killed).read_bytes()
    log_of(killed).write_bytes(data[:-lost])
    first = await epochs(killed)
    assert "e1" not in first
    assert [str(killed) in record.getMessage() for record in caplog.records] == [True]
    # Once.
    assert await epochs(killed) == first


async def test_a_log_with_a_damaged_page_begins_new_epochs(killed: Path) -> None:
    data = bytearray(log_of(killed).read_bytes())
    data[-100] ^= 1
    log_of(killed).write_bytes(data)
    assert "e1" not in await epochs(killed)


async def test_a_log_that_was_removed_begins_new_epochs(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER))
    assert run(WRITE_AND_DIE, path, "FULL").returncode == 9
    log_of(path).unlink()
    assert "e1" not in await epochs(path)


async def test_an_older_copy_of_the_file_begins_new_epochs(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER), change(1))
    copy = path.read_bytes()
    async with SqliteStore(path) as store:
        await put(store, change(2))
    path.write_bytes(copy)
    assert "e1" not in await epochs(path)


@pytest.mark.parametrize(
    "writes",
    [
        [delete(1, key=THIRD)],
        [put_records(("a", b"1"))],
        [due(5)],
        # In one transaction, and in two.
        [delete(1, key=THIRD), put_records(("a", b"1"))],
        [change(2, key=THIRD), put_records(("a", b"1"))],
        [put_records(("a", b"1")), None, change(2, key=THIRD)],
        [change(2, key=THIRD), None, put_records(("a", b"1"))],
        [change(2, key=THIRD), None, delete(2, key=THIRD)],
        [delete(1, key=THIRD), None, beginning(key=THIRD, epoch="e2")],
    ],
)
async def test_the_last_write_is_missed_whatever_it_was(path: Path, writes: Sequence[Write | None]) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER), beginning(key=THIRD), change(1, key=THIRD))
        await put(store, put_records(("a", b"0")))
    copy = path.read_bytes()
    async with SqliteStore(path) as store:
        for _, some in groupby(writes, lambda write: write is not None):
            await put(store, *(write for write in some if write is not None))
    assert await epochs(path) == ["e1", "e1"]
    path.write_bytes(copy)
    first = await epochs(path)
    assert "e1" not in first
    # Once.
    assert await epochs(path) == first


async def test_a_log_that_has_lost_a_write_of_records_begins_new_epochs(path: Path) -> None:
    script = WRITE_AND_DIE.replace(
        "os._exit(9)",
        """
            size = os.path.getsize(sys.argv[1] + "-wal")
            await submit(store, put_records(("a", b"1"), after=first + 19))
            os.truncate(sys.argv[1] + "-wal", size)
            os._exit(9)""",
    ).replace("    from tests", "    from tests.server.store.contract_records import put_records\n    from tests", 1)
    assert run(script, path, "FULL").returncode == 9
    assert "e1" not in await epochs(path)


async def test_a_deletion_that_is_refused_does_not_hide_a_loss(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER))
    copy = path.read_bytes()
    async with SqliteStore(path) as store:
        await put(store, change(1))
        assert await outcomes([submit(store, delete(7))]) == [Fenced]
    path.write_bytes(copy)
    assert "e1" not in await epochs(path)


async def test_a_lock_file_that_is_gone_or_damaged_is_no_reason_for_new_epochs(killed: Path) -> None:
    lock = killed.with_name(killed.name + ".lock")
    data = lock.read_bytes()
    for place in (31, -1):
        lock.write_bytes(data[:place] + b"?" + data[place:][1:])
        assert await epochs(killed) == ["e1", "e1"]
    lock.unlink()
    assert await epochs(killed) == ["e1", "e1"]


async def test_without_full_durability_a_server_that_was_killed_begins_new_epochs(path: Path) -> None:
    assert run(WRITE_AND_DIE, path, "NORMAL").returncode == 9
    async with SqliteStore(path, synchronous="NORMAL") as store:
        stored = await store.load(ROOM)
        assert stored is not None
        assert stored.epoch != "e1"
    epoch = stored.epoch
    async with SqliteStore(path, synchronous="NORMAL") as store:
        await put(store, change(21, epoch=epoch))
    async with SqliteStore(path, synchronous="NORMAL") as store:
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.epoch, stored.version) == (epoch, 21)


# Deleted threads


async def test_a_deletion_is_no_loss_of_the_last_write(path: Path) -> None:
    for _ in range(2):
        async with SqliteStore(path) as store:
            if await store.load(OTHER) is None:
                await put(store, beginning(key=OTHER))
            await put(store, beginning(), change(1))
            await put(store, delete(1))
        assert await epochs(path) == ["none", "e1"]


async def test_a_killed_server_that_had_deleted_a_thread_begins_no_new_epochs(path: Path) -> None:
    script = WRITE_AND_DIE.replace(
        "os._exit(9)",
        """
            await submit(store, Write(ROOM, "e1", first + 19, first + 19, is_deletion=True))
            os._exit(9)""",
    ).replace("    from tests", "    from plait.store.protocol import Write\n    from tests")
    assert run(script, path, "FULL").returncode == 9
    assert await epochs(path) == ["none", "e1"]


async def test_a_server_that_was_killed_before_it_had_marked_a_deletion_begins_no_new_epochs(path: Path) -> None:
    lock = path.with_name(path.name + ".lock")
    async with SqliteStore(path) as store:
        await put(store, beginning(key=OTHER))
        await put(store, beginning(), change(1))
    before = lock.read_bytes()
    async with SqliteStore(path) as store:
        await put(store, delete(1))
    assert lock.read_bytes() != before
    lock.write_bytes(before)
    assert await epochs(path) == ["none", "e1"]


async def test_a_thread_with_the_row_of_a_deleted_one_has_not_its_version(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), *(change(version) for version in range(1, 8)))
        await put(store, delete(7))
        await put(store, beginning(key=OTHER))
    with database(path) as db:
        assert [head["version"] for head in read_heads(db)] == [0]
    async with SqliteStore(path) as store:
        assert await versions(store, OTHER) == (0, [])
        await put(store, change(1, key=OTHER))


async def test_nothing_of_a_deleted_thread_is_left_in_the_file(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1, client=client_row()), put_records(("a", b"1"), after=1))
        await put(store, delete(1))
    with database(path) as db:
        assert db.execute("SELECT DISTINCT part FROM rows ORDER BY part").fetchall() == [("~format",), ("~number",)]


# The newest versions


async def test_the_newest_version_is_stored_with_the_thread_when_the_store_is_closed(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), *(change(version) for version in range(1, 6)), beginning(key=OTHER))
    with database(path) as db:
        assert [head["version"] for head in read_heads(db)] == [5, 0]


async def test_the_newest_version_is_stored_with_the_thread_while_the_store_is_open(path: Path) -> None:
    async with SqliteStore(path) as store, asyncio.timeout(10):
        await put(store, beginning(), change(1), change(2))
        with database(path) as db:
            while read_heads(db)[0]["version"] != 2:  # noqa: ASYNC110  The file is another's.
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("first", [1, 4, 5])
async def test_newest_changes_that_are_missing_are_noticed(path: Path, first: int) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), *(change(version) for version in range(1, 6)), beginning(key=OTHER))
    change_file(path, "DELETE FROM rows WHERE part = '~c' AND key >= ?", first)
    path.with_name(path.name + ".lock").unlink()
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match=f"changes are missing after version {first - 1}, up to 5"):
            await store.load(ROOM)
        assert (await versions(store, OTHER))[0] == 0


# The file itself


async def test_a_server_that_goes_to_another_folder_finds_the_file_where_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    async with SqliteStore(path.name) as store:
        await put(store, beginning())
        monkeypatch.chdir(elsewhere)
        await store.check_writes()
        await put(store, change(1))
        assert (await versions(store))[0] == 1


async def test_what_is_refused_as_the_log_was_removed_is_not_there_after_a_restart(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning())
        await asyncio.sleep(0.01)  # The files are looked for again.
        log_of(path).unlink()
        with pytest.raises(StoreError, match="deleted or replaced"):
            await submit(store, change(1))
    async with SqliteStore(path) as store:
        assert (await versions(store))[0] == 0
