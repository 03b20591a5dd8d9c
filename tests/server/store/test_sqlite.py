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
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import (
    OTHER,
    ROOM,
    beginning,
    change,
    client_row,
    log,
    outcomes,
    put,
    state_version,
    states,
    told,
    versions,
)
from tests.server.store.contract_idle import *  # noqa: F403
from tests.server.store.contract_idle import idle
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_records import put_records

from plait.errors import CorruptThread, Fenced, StoreError
from plait.store.checksums import checksum_record
from plait.store.protocol import ChangeRow, ClientRow, IdleThread, Prune, Record, ThreadKey, ThreadRow, connection_id
from plait.store.sqlite import SqliteStore


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
        assert await store.threads() == [
            *(ThreadRow(ThreadKey("r", str(round)), 0) for round in range(3)),
            ThreadRow(ROOM, 7),
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
            assert await outcomes([store.submit(write)]) == [Fenced]
        await put(store, change(2))


async def test_the_file_keeps_no_more_of_the_log_than_it_was_told(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), *(change(version, snapshot=SNAPSHOTS.get(version)) for version in range(1, 10)))
        await put(store, change(10, snapshot=b"10", prune=7))
    with database(path) as db:
        assert db.execute("SELECT version FROM changes ORDER BY version").fetchall() == [(7,), (8,), (9,), (10,)]
        assert db.execute("SELECT version FROM snapshots ORDER BY version").fetchall() == [(6,), (8,), (10,)]


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
        from plait.store.sqlite import SqliteStore
        from tests.server.store.contract import beginning, change

        async def main():
            async with SqliteStore(sys.argv[1]) as store:
                await store.submit(beginning())
                for version in range(1, 50):
                    await store.submit(change(version))
                for version in range(50, 60):
                    store.submit(change(version))
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
            assert await looker.threads() == [ThreadRow(ROOM, 2)]
            with pytest.raises(StoreError):
                await looker.submit(change(3))
        await put(store, change(3))


async def test_looking_at_a_store_makes_no_file(path: Path) -> None:
    assert str(path) in await refusal(path, readonly=True)
    assert not path.exists()


async def test_reading_does_not_wait_for_writing(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning())
        future = store.submit(change(1))
        assert (await versions(store))[0] in (0, 1)
        await future


# Files of an older format

FORMAT_1 = """
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, epoch TEXT NOT NULL, UNIQUE (kind, name)
) STRICT;
CREATE TABLE snapshots (thread INTEGER PRIMARY KEY, version INTEGER NOT NULL, state BLOB NOT NULL) STRICT;
CREATE TABLE changes (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, ops BLOB NOT NULL, source TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (thread, version)
) STRICT, WITHOUT ROWID;
PRAGMA application_id = 0x706C6169;
PRAGMA user_version = 1;
"""


@pytest.fixture
def old_path(path: Path) -> Path:
    """Return a file of format 1: one thread with a snapshot in its log, one without one, and one without changes."""
    with database(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(FORMAT_1)
        for id, key in enumerate((ROOM, OTHER, ThreadKey("room", "three")), 1):
            db.execute("INSERT INTO threads VALUES (?, ?, ?, ?)", (id, *key, "e1"))
        db.execute("INSERT INTO snapshots VALUES (1, 3, ?), (3, 0, ?)", (b"3", b'"\xc3\xa9"'))
        for thread, first, last in ((1, 2, 5), (2, 1, 2)):
            for version in range(first, last + 1):
                row = written(version)
                db.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?)", (thread, version, row.ops, "c", 10 * version))
    return path


async def test_a_file_of_format_1_keeps_everything(old_path: Path) -> None:
    three = ThreadKey("room", "three")
    for _ in range(2):
        async with SqliteStore(old_path) as store:
            assert await store.threads() == [ThreadRow(ROOM, 5), ThreadRow(three, 0), ThreadRow(OTHER, 2)]
            assert await versions(store) == (5, [4, 5])
            assert await states(store, 5) == told([3, 4, 5])
            assert await versions(store, OTHER) == (2, [1, 2])
            stored = await store.load(three)
            assert stored is not None
            assert (stored.epoch, stored.version, stored.snapshot) == ("e1", 0, b'"\xc3\xa9"')
            assert [await state_version(store, key) for key in (ROOM, OTHER, three)] == [1, 1, 1]
            rows = await store.changes(ROOM, after=0)
            assert [(row.version, row.source, row.at) for row in rows] == [(v, "c", 10 * v) for v in (2, 3, 4, 5)]
            assert rows[0] == msgspec.structs.replace(written(2), source="c", at=20)
            assert await store.client(ROOM, "c") is None


def written(version: int) -> ChangeRow:
    (row,) = change(version).changes
    return row


async def test_a_file_of_format_1_can_be_written_on(old_path: Path) -> None:
    async with SqliteStore(old_path) as store:
        assert await outcomes([store.submit(change(5))]) == [Fenced]
        row = client_row()
        await put(store, change(6, client=row, state_version=2), change(7, snapshot=b"7"), change(8))
        await put(store, change(3, key=OTHER), change(4, key=OTHER, snapshot=b"4", prune=3))
        assert await states(store, 8) == told(range(3, 9))
        assert await store.client(ROOM, "c") == row
    async with SqliteStore(old_path) as store:
        assert await states(store, 8) == told(range(3, 9))
        assert await states(store, 4, OTHER) == told([4])
        assert await state_version(store) == 2
    with database(old_path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (5,)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_the_clients_of_a_file_of_format_2_are_those_of_whom_nobody_is_known(path: Path) -> None:
    rows = {(key, client): client_row(client) for key in (ROOM, OTHER) for client in ("a", "ключ")}
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER))
        for version, client in enumerate(("a", "ключ"), 1):
            await put(store, *(change(version, key=key, client=rows[key, client]) for key in (ROOM, OTHER)))
    with database(path) as db:
        for table in ("threads", "snapshots", "changes", "clients"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        for table in ("records", "counter", "removed", "origin"):
            db.execute(f"DROP TABLE {table}")
        for index in ("threads_idle", "threads_not_idle"):
            db.execute(f"DROP INDEX {index}")
        for column in ("head", "secret", "stateless", "idle_since"):
            db.execute(f"ALTER TABLE threads DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 2")
    secrets = set()
    async with SqliteStore(path) as store:
        for (key, client), row in rows.items():
            stored = await store.load(key)
            assert stored is not None
            secrets.add(stored.secret)
            id = connection_id(stored.secret, "plait.v1", None, client)
            assert await store.client(key, id) == msgspec.structs.replace(row, client=id)
            assert await store.client(key, client) is None
    assert list(map(len, secrets)) == [16, 16]


FORMAT_3 = """
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, epoch TEXT NOT NULL,
    state_version INTEGER NOT NULL DEFAULT 1, secret BLOB NOT NULL DEFAULT x'', head INTEGER NOT NULL DEFAULT 0,
    checksum INTEGER, UNIQUE (kind, name)
) STRICT;
CREATE TABLE snapshots (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL, checksum INTEGER,
    PRIMARY KEY (thread, version)
) STRICT;
CREATE TABLE changes (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, ops BLOB NOT NULL, source TEXT NOT NULL, at INTEGER NOT NULL,
    checksum INTEGER, PRIMARY KEY (thread, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE clients (
    thread INTEGER NOT NULL, client TEXT NOT NULL, ref INTEGER NOT NULL, refused BLOB NOT NULL, at INTEGER NOT NULL,
    checksum INTEGER, PRIMARY KEY (thread, client)
) STRICT, WITHOUT ROWID;
CREATE TABLE schemas (
    kind TEXT NOT NULL, hash TEXT NOT NULL, schema BLOB NOT NULL, PRIMARY KEY (kind, hash)
) STRICT, WITHOUT ROWID;
INSERT INTO threads VALUES (1, 'room', 'one', 'e1', 2, x'736563726574', 2, 2913930394);
INSERT INTO threads VALUES (2, 'room', 'two', 'e1', 1, x'', 1, 4184159699);
INSERT INTO snapshots VALUES (1, 0, x'30', 2818637927);
INSERT INTO changes VALUES
    (1, 1, CAST('[{"op":"replace","path":"","value":1}]' AS BLOB), 'server', 1, 3869914509),
    (1, 2, CAST('[{"op":"replace","path":"","value":2}]' AS BLOB), 'server', 1, 2722021040),
    (2, 1, CAST('[{"op":"replace","path":"","value":1}]' AS BLOB), 'server', 1, 2978486751);
INSERT INTO clients VALUES (1, 'c', 1, x'5b5d', 1, 368765726);
PRAGMA application_id = 0x706C6169;
PRAGMA user_version = 3;
"""


async def test_a_file_of_format_3_keeps_everything_and_takes_records_and_idle_times(path: Path) -> None:
    with database(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(FORMAT_3)
    for _ in range(2):
        async with SqliteStore(path) as store:
            assert await store.threads() == [ThreadRow(ROOM, 2), ThreadRow(OTHER, 1)]
            stored = await store.load(ROOM)
            assert stored is not None
            assert (stored.epoch, stored.version, stored.snapshot, stored.secret) == ("e1", 2, b"0", b"secret")
            assert (stored.state_version, list(stored.changes)) == (2, [written(1), written(2)])
            assert await store.client(ROOM, "c") == ClientRow("c", 1, b"[]", 1)
            assert await versions(store, OTHER) == (1, [1])
            await put(store, put_records(("a", b"1"), after=2))
            assert await store.record(ROOM, "values", "a") == b"1"
            await store.mark_idle("room", 7)
            await put(store, idle(5, version=2))
            assert await store.idle_threads("room", until=9) == [IdleThread(5, ROOM.name), IdleThread(7, OTHER.name)]
    # A thread that lost everything is no thread without a state.
    with database(path) as db:
        for table in ("changes", "snapshots"):
            db.execute(f"DELETE FROM {table}")
        db.execute("UPDATE threads SET head = 0")
    async with SqliteStore(path) as store:
        for key in (ROOM, OTHER):
            with pytest.raises(CorruptThread, match="neither a snapshot nor changes"):
                await store.load(key)


ADDED_IN_4 = """
ALTER TABLE threads ADD COLUMN stateless INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN idle_since INTEGER;
CREATE TABLE records (
    thread INTEGER NOT NULL, part TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (thread, part, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE counter (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL) STRICT;
CREATE INDEX threads_idle ON threads (kind, idle_since, name) WHERE idle_since IS NOT NULL;
CREATE INDEX threads_not_idle ON threads (kind) WHERE idle_since IS NULL;
PRAGMA user_version = 4;
"""


async def test_a_file_of_format_4_keeps_everything(path: Path) -> None:
    records = [Record("values", name, name.encode() * 100) for name in ("a", "b", "ключ")]
    with database(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(FORMAT_3 + ADDED_IN_4)
        for record in reversed(records):
            values = (1, record.part, record.key, record.value, checksum_record(1, record))
            db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?)", values)
    for _ in range(2):
        async with SqliteStore(path) as store:
            assert await store.threads() == [ThreadRow(ROOM, 2), ThreadRow(OTHER, 1)]
            assert await store.changes(ROOM, after=0) == [written(1), written(2)]
            assert await store.client(ROOM, "c") == ClientRow("c", 1, b"[]", 1)
            assert await store.records(ROOM, "values") == records
    with database(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM changes").fetchone() == (3,)


async def test_an_upgraded_file_has_the_tables_of_a_fresh_one(old_path: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.db"
    found = []
    for each in (old_path, fresh):
        async with SqliteStore(each):
            pass
        with database(each) as db:
            tables = {name: (kind, *rest) for _, name, kind, *rest in db.execute("PRAGMA table_list")}
            columns = {name: db.execute(f"PRAGMA table_xinfo({name})").fetchall() for name in tables}
            found.append((tables, columns, db.execute("PRAGMA user_version").fetchone()))
    assert found[0] == found[1]
    assert {"threads", "snapshots", "changes", "clients"} <= found[0][0].keys()


async def test_an_upgraded_file_notices_that_changes_of_before_and_a_threads_own_row_are_damaged(
    old_path: Path,
) -> None:
    async with SqliteStore(old_path) as store:
        assert await versions(store) == (5, [4, 5])
    with database(old_path) as db:
        db.execute("DELETE FROM changes WHERE version = 5")
    async with SqliteStore(old_path) as store:
        with pytest.raises(CorruptThread, match="missing after version 4, up to 5"):
            await store.load(ROOM)
    with database(old_path) as db:
        db.execute("UPDATE threads SET head = 0, secret = randomblob(16)")
    async with SqliteStore(old_path) as store:
        with pytest.raises(CorruptThread, match="the thread's own record"):
            await store.load(ROOM)


async def test_looking_at_a_file_of_an_older_format_says_what_to_do_and_leaves_it(old_path: Path) -> None:
    assert "serve it once" in await refusal(old_path, readonly=True)
    async with SqliteStore(old_path):
        pass
    async with SqliteStore(old_path, readonly=True) as looker:
        assert await versions(looker) == (5, [4, 5])


async def test_an_upgrade_that_fails_leaves_the_file_as_it_was(old_path: Path) -> None:
    with database(old_path) as db:
        db.execute("CREATE TABLE clients (mine)")
        before = list(db.iterdump())
    with pytest.raises(StoreError):
        async with SqliteStore(old_path):
            pass
    with database(old_path) as db:
        assert list(db.iterdump()) == before
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        db.execute("DROP TABLE clients")
    async with SqliteStore(old_path) as store:
        assert await versions(store) == (5, [4, 5])


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
        from plait.store.sqlite import SqliteStore

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
        from plait.store.sqlite import SqliteStore

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
        return [line for line in db.iterdump() if not line.startswith('INSERT INTO "origin"')]


@pytest.mark.parametrize("version", [1, 3])
async def test_a_thread_with_a_gap_in_its_log_is_an_error_and_left_as_it_is(path: Path, version: int) -> None:
    await damaged(path, "DELETE FROM changes WHERE version = ?", version)


async def test_a_thread_that_has_lost_its_snapshot_is_an_error_and_left_as_it_is(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1), change(2, snapshot=b"2"), change(3), change(4, snapshot=b"4", prune=3))
    change_file(path, "DELETE FROM snapshots")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one"):
            await store.load(ROOM)


async def test_a_thread_that_has_lost_everything_is_an_error_and_no_empty_one(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER))
    change_file(path, "DELETE FROM snapshots WHERE thread = (SELECT id FROM threads WHERE name = 'one')")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one"):
            await store.load(ROOM)


async def test_a_damaged_page_is_a_store_error(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(snapshot=b"x" * 100_000), *(change(version) for version in range(1, 200)))
    with database(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    assert "it is damaged: see `plait check" in await refusal(path)
    async with SqliteStore(path, readonly=True) as store:
        with pytest.raises(StoreError):
            await store.load(ROOM)
        with pytest.raises(StoreError):
            await store.threads()


# Writes that fail


@pytest.mark.parametrize("alone", [True, False])
async def test_a_guilty_write_in_a_batch_fails_none_but_its_own_thread(path: Path, alone: bool) -> None:
    keys = [ThreadKey("room", str(number)) for number in range(20)]
    async with SqliteStore(path) as store:
        await put(store, *(beginning(key=key) for key in keys[:10]))
        guilty = change(1, key=ROOM, after=None, at=2**70)
        futures = [store.submit(change(1, key=key)) for key in keys[:10]]
        futures.append(store.submit(guilty))
        if not alone:
            futures.append(store.submit(change(2, key=ROOM)))
        futures += [store.submit(change(1, key=key, after=None)) for key in keys[10:]]
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
        futures = [store.submit(write) for write in (beginning(), change(1), beginning(key=broken))]
        futures.append(store.submit(change(1, key=OTHER)))
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
            futures = [store.submit(put_records(("a", value)))]
            futures += [] if alone else [store.submit(change(version + 1, key=OTHER))]
            assert (await outcomes(futures))[1:] == ([] if alone else [None])
        assert await outcomes([store.submit(put_records(("a", "text")))]) == [StoreError]  # type: ignore[arg-type]
        for value in (1, object()):
            with pytest.raises(TypeError):
                store.submit(put_records(("a", value)))  # type: ignore[arg-type]
            await put(store, change((await versions(store, OTHER))[0] + 1, key=OTHER))
        await put(store, change(1), put_records(("a", b"1"), after=1))


async def test_a_failed_write_of_a_thread_leaves_it_as_it_was(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1))
        assert await outcomes([store.submit(change(2, at=2**70)), store.submit(change(3))]) != [None, None]
        assert await versions(store) == (1, [1])
        await put(store, change(2), change(3))
    async with SqliteStore(path) as store:
        assert await versions(store) == (3, [1, 2, 3])


async def test_a_single_failed_write_is_followed_by_one_that_is_not(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), change(1))
        for version in range(2, 6):
            assert await outcomes([store.submit(change(version, at=2**70))]) == [StoreError]
            await put(store, change(version))
        assert await versions(store) == (5, [1, 2, 3, 4, 5])


async def test_a_full_disk_is_a_store_error_and_loses_nothing(path: Path) -> None:
    script = """
        import asyncio, json, resource, signal, sys
        from plait.errors import Fenced, StoreError
        from plait.store.protocol import ThreadKey
        from plait.store.sqlite import SqliteStore
        from tests.server.store.contract import ROOM, beginning, change, versions

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        async def main():
            async with SqliteStore(sys.argv[1]) as store:
                await store.submit(beginning())
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
                version, error = 0, None
                while error is None:
                    try:
                        await store.submit(change(version + 1, snapshot=b"x" * 20_000))
                        version += 1
                    except StoreError as found:
                        error = found
                other = ThreadKey("room", "other")
                together = await asyncio.gather(
                    store.submit(change(version + 1, snapshot=b"x" * 20_000)),
                    store.submit(beginning(key=other, snapshot=b"x" * 20_000)),
                    return_exceptions=True,
                )
                found = (await versions(store))[0]
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                await store.submit(change(version + 1))
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
            assert await outcomes([store.submit(change(1))]) == [StoreError]
            db.execute("ROLLBACK")
        await put(store, change(1))
        assert await versions(store) == (1, [1])
