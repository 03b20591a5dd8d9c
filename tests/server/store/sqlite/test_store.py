"""The store in an SQLite file."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases import each_case
from tests.server.owning import submit
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import (
    OTHER,
    ROOM,
    beginning,
    change,
    client_row,
    listed,
    log,
    outcomes,
    put,
    state_version,
    states,
    told,
    versions,
)
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_records import put_records
from tests.server.store.contract_view import *  # noqa: F403

from plait.errors import CorruptThread, Fenced, StoreError
from plait.store.protocol import Write
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import Prune, Record, ThreadKey


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
def store(path: Path) -> SqliteStore:
    return SqliteStore(path)


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file past the store."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


def change_file(path: Path, statement: str, *values: object) -> None:
    """Change the file of a closed store."""
    with database(path) as db:
        assert db.execute(statement, values).rowcount != 0


def hide_room(path: Path) -> None:
    """Damage the index in which ROOM is found by its name."""
    with database(path) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'rows'").fetchone()
    data = bytearray(path.read_bytes())
    at = data.index(b"~thread/roomone", (page - 1) * 4096, page * 4096)
    data[at + 12] ^= 1
    path.write_bytes(data)


def make_file_of_format(path: Path, number: int) -> None:
    """Make a file as earlier builds of plait did, with one thread."""
    with database(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE threads (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL) STRICT")
        db.execute("INSERT INTO threads VALUES (1, 'room', 'one')")
        db.execute("PRAGMA application_id = 0x706C6169")
        db.execute(f"PRAGMA user_version = {number}")


# The file


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
async def test_a_store_that_is_opened_again_has_everything(path: Path, synchronous: str) -> None:
    for round in range(3):
        async with SqliteStore(path, synchronous="FULL" if synchronous == "FULL" else "NORMAL") as store:
            if round == 0:
                await put(store, beginning(), change(1))
            first = 2 * round + 2
            await put(
                store,
                change(first),
                change(first + 1, snapshot=b"s%d" % round),
                beginning(key=ThreadKey("r", str(round))),
            )
    async with SqliteStore(path) as store:
        stored = await store.load(ROOM)
        assert stored is not None
        assert (stored.version, stored.snapshot, list(stored.changes)) == (7, b"s2", [])
        assert await listed(store) == [
            *((ThreadKey("r", str(round)), 0) for round in range(3)),
            (ROOM, 7),
        ]
        await put(store, change(8))


async def test_clients_earlier_versions_and_the_version_of_the_type_are_there_again(path: Path) -> None:
    rows = [client_row("a", 1), client_row("b", 7, refused=b'[[7,"x","y"]]')]
    async with SqliteStore(path) as store:
        await put(store, *log(10, every=4), change(11, client=rows[0], state_version=3), change(12, client=rows[1]))
    async with SqliteStore(path) as store:
        assert [await store.client(ROOM, row.client) for row in rows] == rows
        assert await states(store, 12) == told(range(13))
        assert await state_version(store) == 3
        await put(store, change(13, client=client_row("a", 2)), change(14, snapshot=b"14", prune=Prune(8)))
    async with SqliteStore(path, readonly=True) as store:
        row = await store.client(ROOM, "a")
        assert row is not None
        assert row.ref == 2
        assert await states(store, 14) == told(range(8, 15))
        assert [row.version for row in await store.changes(ROOM, after=0)] == list(range(9, 15))


async def test_the_fence_holds_over_a_restart(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1))
    async with SqliteStore(path) as store:
        for write in (change(1), change(2, epoch="other")):
            assert await outcomes([submit(store, write)]) == [Fenced]
        await put(store, change(2))


async def test_the_file_keeps_no_more_of_the_log_than_it_was_told(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), *(change(version, snapshot=SNAPSHOTS.get(version)) for version in range(1, 10)))
        await put(store, change(10, snapshot=b"10", prune=7))
    with database(path) as db:
        kept = "SELECT key FROM rows WHERE part = ? ORDER BY key"
        assert db.execute(kept, ("~c",)).fetchall() == [(7,), (8,), (9,), (10,)]
        assert db.execute(kept, ("~s",)).fetchall() == [(6,), (8,), (10,)]


SNAPSHOTS = {3: b"3", 6: b"6", 8: b"8"}


async def test_closing_leaves_no_thread_and_no_lock_behind(path: Path) -> None:
    before = set(threading.enumerate())
    async with SqliteStore(path) as store:
        await put(store, beginning())
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()
    async with SqliteStore(path):
        pass


async def test_a_closed_store_is_all_in_its_one_file(path: Path, tmp_path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1))
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    async with SqliteStore(copy) as store:
        assert await versions(store) == (1, [1])


async def test_a_loss_of_the_process_loses_nothing_that_was_acknowledged(path: Path) -> None:
    script = """
        import asyncio, os, sys
        from plait.store.sqlite.store import SqliteStore
        from tests.server.owning import submit
        from tests.server.store.contract import beginning, change

        async def main():
            async with SqliteStore(sys.argv[1]) as store:
                await submit(store, beginning())
                for version in range(1, 50):
                    await submit(store, change(version))
                for version in range(50, 60):
                    submit(store, change(version))
                os._exit(9)

        asyncio.run(main())
    """
    assert run(script, path).returncode == 9
    async with SqliteStore(path) as store:
        version, log = await versions(store)
        assert version >= 49
        assert log == list(range(1, version + 1))


def run(script: str, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    root = Path(__file__).parents[3]
    paths = os.pathsep.join(map(str, (root, root / "server", root / "schemas")))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path), *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_a_store_can_be_looked_at_while_a_server_has_it_open(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1))
        async with SqliteStore(path, readonly=True) as looker:
            assert await versions(looker) == (1, [1])
            await put(store, change(2))
            assert await versions(looker) == (2, [1, 2])
            assert await listed(looker) == [(ROOM, 2)]
            with pytest.raises(StoreError):
                await looker.submit(change(3))
        await put(store, change(3))


async def test_looking_at_a_store_makes_no_file(path: Path) -> None:
    assert str(path) in await refusal(path, readonly=True)
    assert not path.exists()


async def test_reading_does_not_wait_for_writing(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning())
        future = submit(store, change(1))
        assert (await versions(store))[0] in (0, 1)
        await future


# Files that are not a store


async def refusal(path: Path, *, readonly: bool = False) -> str:
    """Return what opening a file is refused with, which must leave it as it is."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as caught:
        async with SqliteStore(path, readonly=readonly):
            pass
    assert (path.read_bytes() if path.is_file() else None) == before
    return str(caught.value)


def test_a_store_that_cannot_be_opened_leaves_nothing_behind(path: Path) -> None:
    script = """
        import asyncio, sys
        from plait.errors import StoreError
        from plait.store.sqlite.store import SqliteStore

        async def main():
            await SqliteStore(sys.argv[1], readonly=True).__aenter__()

        for _ in range(20):
            try:
                asyncio.run(main())
            except StoreError as error:
                print(error)
    """
    path.mkdir()
    done = run(script, path)
    assert done.stdout.count("cannot open the store") == 20
    assert done.stderr == ""


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to have been taken for one\n" * 100)
    assert "not a database" in await refusal(path)


async def test_a_database_of_another_application_is_refused_and_left_as_it_is(path: Path) -> None:
    with database(path) as db:
        db.execute("CREATE TABLE notes (text)")
    assert "not one of plait's" in await refusal(path)
    with database(path) as db:
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("notes",)]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


async def test_a_database_that_another_application_marked_as_its_own_is_refused(path: Path) -> None:
    with database(path) as db:
        db.execute("PRAGMA application_id = 1234")
    assert "not one of plait's" in await refusal(path)


async def test_a_database_of_a_newer_format_is_refused_and_left_as_it_is(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning())
    change_file(path, "PRAGMA user_version = 999")
    assert "newer plait" in await refusal(path)


@each_case("is_readonly", [False, True])
@each_case("version", range(1, 9))
async def test_a_file_of_an_earlier_build_is_refused_and_left_as_it_is(
    path: Path, version: int, is_readonly: bool
) -> None:
    path = path.with_stem(f"{version} {is_readonly}")
    make_file_of_format(path, version)
    line = await refusal(path, readonly=is_readonly)
    assert line == (
        f"cannot open the store {path}: it was written by an earlier build of plait (in format {version}; this plait "
        "reads format 9): make a new store of it with `plait store export` of that build and `plait store import` of "
        "this one; if that build has no `store export`, copy its threads, without their histories and kv, with `plait "
        "threads export`, and `plait threads import` of this build"
    )


async def test_a_folder_is_no_store(path: Path) -> None:
    path.mkdir()
    assert str(path) in await refusal(path)


async def test_a_store_in_a_folder_that_does_not_exist_is_refused(path: Path) -> None:
    assert "missing" in await refusal(path.parent / "missing" / "threads.db")


async def test_a_second_server_on_the_same_file_is_refused_and_the_first_goes_on(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning())
        with pytest.raises(StoreError, match="in use by another server"):
            async with SqliteStore(path):
                pass
        await put(store, change(1))
    async with SqliteStore(path) as store:
        assert await versions(store) == (1, [1])


async def test_the_lock_of_a_server_in_another_process_is_seen(path: Path) -> None:
    script = """
        import asyncio, sys
        from plait.errors import StoreError
        from plait.store.sqlite.store import SqliteStore

        async def main():
            async with SqliteStore(sys.argv[1]):
                pass

        try:
            asyncio.run(main())
        except StoreError as error:
            print(error)
    """
    async with SqliteStore(path):
        found = await asyncio.to_thread(run, script, path)
    assert "in use by another server" in found.stdout, found.stderr
    assert run(script, path).stdout == ""


async def test_a_store_that_could_not_be_opened_can_be_opened_later(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to have been taken for one\n" * 100)
    store = SqliteStore(path)
    with pytest.raises(StoreError):
        await store.__aenter__()
    path.unlink()
    async with store:
        await put(store, beginning())


# Damage


async def damaged(path: Path, statement: str, *values: object) -> None:
    """Damage a thread, and find that it is an error, that it stays as it is, and that the others are well."""
    async with SqliteStore(path) as store:
        await put(store, beginning(), *(change(version) for version in range(1, 6)), beginning(key=OTHER))
    change_file(path, statement, *values)
    before = dump(path)
    for _ in range(2):
        async with SqliteStore(path) as store:
            with pytest.raises(CorruptThread, match="room/one"):
                await store.load(ROOM)
            assert await versions(store, OTHER) == (0, [])
            assert ROOM in [row.key for row in await store.threads()]
    assert dump(path) == before


def dump(path: Path) -> list[str]:
    """Return what is in a file, but for what each server that opens it writes there."""
    with database(path) as db:
        return [line for line in db.iterdump() if not line.startswith('INSERT INTO "stamp"')]


@pytest.mark.parametrize("version", [1, 3])
async def test_a_thread_with_a_gap_in_its_log_is_an_error_and_left_as_it_is(path: Path, version: int) -> None:
    await damaged(path, "DELETE FROM rows WHERE part = '~c' AND key = ?", version)


async def check_lost(path: Path, statement: str) -> None:
    """Change the file, and find that the thread is damaged."""
    change_file(path, statement)
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one"):
            await store.load(ROOM)


async def test_a_thread_that_has_lost_its_snapshot_is_an_error_and_left_as_it_is(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1), change(2, snapshot=b"2"), change(3), change(4, snapshot=b"4", prune=3))
    await check_lost(path, "DELETE FROM rows WHERE part = '~s'")


async def test_a_thread_that_has_lost_everything_is_an_error_and_no_empty_one(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER))
    await check_lost(path, "DELETE FROM rows WHERE part = '~s' AND thread = 1")


async def test_a_damaged_page_is_a_store_error(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(snapshot=b"x" * 100_000), *(change(version) for version in range(1, 200)))
    with database(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    for readonly in (False, True):
        assert "it is damaged: see `plait check" in await refusal(path, readonly=readonly)


# Writes that fail


def unwritable(version: int, *, after: int | None = -1) -> Write:
    """Return a change with a record for whose key SQLite has no text."""
    return msgspec.structs.replace(change(version, after=after), records=[Record("values", "\ud800", b"1")])


@pytest.mark.parametrize("alone", [True, False])
async def test_a_guilty_write_in_a_batch_fails_none_but_its_own_thread(path: Path, alone: bool) -> None:
    keys = [ThreadKey("room", str(number)) for number in range(20)]
    async with SqliteStore(path) as store:
        await put(store, *(beginning(key=key) for key in keys[:10]))
        guilty = unwritable(1, after=None)
        futures = [submit(store, change(1, key=key)) for key in keys[:10]]
        futures.append(submit(store, guilty))
        if not alone:
            futures.append(submit(store, change(2, key=ROOM)))
        futures += [submit(store, change(1, key=key, after=None)) for key in keys[10:]]
        found = await outcomes(futures)
        assert found[:10] == [None] * 10
        assert found[-10:] == [None] * 10
        assert all(kind is not None and issubclass(kind, StoreError) for kind in found[10:-10])
        assert await store.load(ROOM) is None
        await put(store, beginning(), change(1))
        await put(store, *(change(2, key=key) for key in keys))


async def test_a_write_that_sqlite_has_no_text_for_fails_none_but_itself(path: Path) -> None:
    broken = ThreadKey("room", "\ud800")
    async with SqliteStore(path) as store:
        await put(store, beginning(key=OTHER))
        futures = [submit(store, write) for write in (beginning(), change(1), beginning(key=broken))]
        futures.append(submit(store, change(1, key=OTHER)))
        assert await outcomes(futures) == [None, None, StoreError, None]
        await put(store, change(2), change(2, key=OTHER))
        assert await versions(store) == (2, [1, 2])


@pytest.mark.parametrize("alone", [True, False])
async def test_a_write_with_a_value_of_the_wrong_type_fails_none_but_itself(path: Path, alone: bool) -> None:
    # Type checkers refuse these, but nothing else does.
    broken: list[Any] = ["text", bytearray(b"x"), [1]]
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER))
        for value in broken:
            version = (await versions(store, OTHER))[0]
            futures = [submit(store, put_records(("a", value)))]
            futures += [] if alone else [submit(store, change(version + 1, key=OTHER))]
            assert (await outcomes(futures))[1:] == ([] if alone else [None])
        assert await outcomes([submit(store, put_records(("a", "text")))]) == [StoreError]  # type: ignore[arg-type]
        for value in (1, object()):
            with pytest.raises(TypeError):
                submit(store, put_records(("a", value)))  # type: ignore[arg-type]
            await put(store, change((await versions(store, OTHER))[0] + 1, key=OTHER))
        await put(store, change(1), put_records(("a", b"1"), after=1))


async def test_a_failed_write_of_a_thread_leaves_it_as_it_was(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1))
        assert await outcomes([submit(store, unwritable(2)), submit(store, change(3))]) != [None, None]
        assert await versions(store) == (1, [1])
        await put(store, change(2), change(3))
    async with SqliteStore(path) as store:
        assert await versions(store) == (3, [1, 2, 3])


async def test_a_single_failed_write_is_followed_by_one_that_is_not(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1))
        for version in range(2, 6):
            assert await outcomes([submit(store, unwritable(version))]) == [StoreError]
            await put(store, change(version))
        assert await versions(store) == (5, [1, 2, 3, 4, 5])


async def test_a_full_disk_is_a_store_error_and_loses_nothing(path: Path) -> None:
    script = """
        import asyncio, json, resource, signal, sys
        from plait.errors import Fenced, StoreError
        from plait.store.protocol import ThreadKey, Write
        from plait.store.sqlite.store import SqliteStore
        from tests.server.owning import submit
        from tests.server.store.contract import ROOM, beginning, change, versions

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        async def main():
            async with SqliteStore(sys.argv[1]) as store:
                await submit(store, beginning())
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
                version, error = 0, None
                while error is None:
                    try:
                        await submit(store, change(version + 1, snapshot=b"x" * 20_000))
                        version += 1
                    except StoreError as found:
                        error = found
                other = ThreadKey("room", "other")
                together = await asyncio.gather(
                    submit(store, change(version + 1, snapshot=b"x" * 20_000)),
                    submit(store, beginning(key=other, snapshot=b"x" * 20_000)),
                    return_exceptions=True,
                )
                found = (await versions(store))[0]
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                await submit(store, change(version + 1))
                print(json.dumps({
                    "version": version, "found": found, "error": str(error), "fenced": isinstance(error, Fenced),
                    "together": [isinstance(each, StoreError) and not isinstance(each, Fenced) for each in together],
                }))

        asyncio.run(main())
    """
    done = await asyncio.to_thread(run, script, path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["found"] == found["version"] > 0
    assert found["error"].startswith("room/one could not be written: ")
    assert not found["fenced"]
    assert found["together"] == [True, True]
    async with SqliteStore(path) as store:
        assert (await versions(store))[0] == found["version"] + 1


async def test_a_database_that_somebody_else_keeps_locked_is_a_store_error(path: Path) -> None:
    async with SqliteStore(path, lock_timeout=0.1) as store:
        await put(store, beginning())
        with database(path) as db:
            db.execute("BEGIN IMMEDIATE")
            assert await outcomes([submit(store, change(1))]) == [StoreError]
            db.execute("ROLLBACK")
        await put(store, change(1))
        assert await versions(store) == (1, [1])
