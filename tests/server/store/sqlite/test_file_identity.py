"""A store's file that is replaced while it is open, and logs of other files."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.clocks import stopped_clock
from tests.server.owning import submit
from tests.server.store.contract import OTHER, ROOM, beginning, change, put, versions
from tests.server.store.sqlite.test_file_writer import WRITE_AND_DIE, log_of
from tests.server.store.sqlite.test_store import database, run

from plait.cli.maintenance import check_store
from plait.errors import StoreError
from plait.store.sqlite.backup import back_up, restore
from plait.store.sqlite.file_identity import FileIdentity
from plait.store.sqlite.lock import NO_STAMP, FileStamp, read_log_identity
from plait.store.sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


async def make_store(path: Path, last: int) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER), *(change(version) for version in range(1, last + 1)))


def checkpoint(path: Path) -> None:
    """Write the log to the file, as another process may do."""
    with database(path) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


async def until_saved(path: Path) -> None:
    """Wait until the file has another step."""
    with database(path) as db:
        before = db.execute("SELECT step FROM stamp").fetchone()
        async with asyncio.timeout(10):
            while db.execute("SELECT step FROM stamp").fetchone() == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


# While it is open


async def test_what_others_may_do_to_the_file_is_no_loss(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning())
        for version in range(1, 4):
            await asyncio.sleep(0.006)  # The files are looked for again.
            await put(store, change(version))
            checkpoint(path)
            os.utime(path)
            await store.check_writes()
        with database(path) as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await store.check_writes()
        await put(store, change(4))
    async with SqliteStore(path) as store:
        assert (await versions(store))[0] == 4


async def test_the_file_may_be_checkpointed_many_times(path: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning())
        for version in range(1, 300):
            await put(store, change(version, snapshot=bytes(40_000)))
        await store.check_writes()
    async with SqliteStore(path) as store:
        assert (await versions(store))[0] == 299


def _copy_other(path: Path, folder: Path) -> None:
    shutil.copyfile(folder / "other.db", path)


def _copy_older(path: Path, folder: Path) -> None:
    shutil.copyfile(folder / "older.db", path)


def _move_other(path: Path, folder: Path) -> None:
    (folder / "other.db").replace(path)


def _truncate(path: Path, folder: Path) -> None:
    os.truncate(path, 0)


def _cut(path: Path, folder: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def _fill_with_garbage(path: Path, folder: Path) -> None:
    path.write_bytes(b"garbage " * 100_000)


HARMS = [_copy_other, _copy_older, _move_other, _truncate, _cut, _fill_with_garbage]


@pytest.mark.parametrize("harm", HARMS)
async def test_a_file_that_is_replaced_is_not_written_and_its_log_is_moved_aside(
    path: Path, tmp_path: Path, harm: Callable[[Path, Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    await make_store(tmp_path / "other.db", 30)
    await make_store(path, 3)
    async with SqliteStore(path) as store:
        shutil.copyfile(path, tmp_path / "older.db")  # By hand, by the same server's run.
        await put(store, change(4, snapshot=bytes(20_000)))
        await until_saved(path)
        checkpoint(path)
        await put(store, change(5), change(1, key=OTHER))
        harm(path, tmp_path)
        there = path.read_bytes()
        with pytest.raises(StoreError, match="deleted or replaced"):
            await store.check_writes()
        with pytest.raises(StoreError, match="deleted or replaced"):
            await submit(store, change(6))
    assert path.read_bytes() == there
    assert not log_of(path).exists()
    aside = path.with_name("threads.db-wal.lost")
    assert aside.stat().st_size
    assert str(aside) in caplog.text
    if harm in (_copy_other, _move_other, _copy_older):
        assert [line for line, is_damage in check_store(path) if is_damage] == []
        async with SqliteStore(path) as store:
            stored = await store.load(ROOM)
            assert stored is not None
            assert stored.version == (3 if harm is _copy_older else 30)
            assert stored.epoch != "e1"


@pytest.mark.parametrize("harm", [_copy_older, _move_other, _truncate])
async def test_a_write_right_after_another_is_refused_if_the_file_was_replaced_in_between(
    path: Path, tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    await make_store(tmp_path / "other.db", 30)
    await make_store(path, 3)
    shutil.copyfile(path, tmp_path / "older.db")
    async with SqliteStore(path) as store:
        await put(store, change(4))
        harm(path, tmp_path)
        there = path.read_bytes()
        with pytest.raises(StoreError, match="deleted or replaced"):
            await submit(store, change(5))
    assert path.read_bytes() == there


@pytest.mark.parametrize("harm", [_copy_older, _move_other, _truncate])
async def test_no_row_is_written_by_itself_into_a_file_that_was_replaced(
    path: Path, tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    await make_store(tmp_path / "other.db", 30)
    await make_store(path, 3)
    shutil.copyfile(path, tmp_path / "older.db")
    async with SqliteStore(path) as store:
        # SQLite writes its log to the file after every transaction.
        assert store._file._writer is not None
        await store._file._writer.post(lambda db: db.execute("PRAGMA wal_autocheckpoint = 1"))
        await put(store, change(4))
        harm(path, tmp_path)
        there = path.read_bytes()
        with suppress(StoreError):  # What is there may not be readable.
            await store.threads()  # It saves the heads of threads first.
        with pytest.raises(StoreError, match="deleted or replaced"):
            await store.add_schema("room", "1", b"{}")
        with pytest.raises(StoreError, match="deleted or replaced"):
            await store.check_writes()
    assert path.read_bytes() == there


def _remove_log(path: Path) -> None:
    log_of(path).unlink()


def _move_log(path: Path) -> None:
    log_of(path).rename(path.with_name("moved"))


def _replace_log(path: Path) -> None:
    path.with_name("copy").write_bytes(log_of(path).read_bytes())
    path.with_name("copy").replace(log_of(path))


def _replace_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))
    shutil.copytree(path.parent.with_name("moved"), path.parent)


def _replace_log_and_set_the_time_of_the_folder_back(path: Path) -> None:
    status = path.parent.stat()
    _replace_log(path)
    os.utime(path.parent, ns=(status.st_atime_ns, status.st_mtime_ns))


def make_files(path: Path) -> FileIdentity:
    path.parent.mkdir()
    path.write_bytes(b"file")
    log_of(path).write_bytes(b"log")
    return FileIdentity(path, NO_STAMP)


def change_until_the_time_is_another(folder: Path) -> None:
    before = folder.stat().st_ctime_ns
    while folder.stat().st_ctime_ns == before:
        (folder / "another").touch()
        (folder / "another").unlink()


def wait_for_a_tick(folder: Path) -> None:
    """Wait until the next change has another time; in memory, a removal may get that of another change in its tick."""
    (other := folder.with_name("other")).mkdir()
    until = folder.stat().st_ctime_ns + 10_000_000
    while other.stat().st_ctime_ns < until:
        (other / "file").touch()
        (other / "file").unlink()


@pytest.mark.parametrize("age", [0, 10])
@pytest.mark.parametrize(
    "harm", [_remove_log, _move_log, _replace_log, _replace_folder, _replace_log_and_set_the_time_of_the_folder_back]
)
def test_a_log_that_was_removed_moved_or_replaced_is_missed(
    tmp_path: Path, harm: Callable[[Path], None], age: int
) -> None:
    path = tmp_path / "folder" / "threads.db"
    identity = make_files(path)
    with stopped_clock() as clock:
        clock.move(age)
        assert all(identity.has_log() for _ in range(3))
        change_until_the_time_is_another(path.parent)
        assert identity.has_log()
        change_until_the_time_is_another(path.parent)
        assert identity.has_log()
        wait_for_a_tick(path.parent)
        harm(path)
        assert not identity.has_log()


def test_a_log_that_is_replaced_in_the_same_tick_of_the_clock_of_its_folder_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, tick = os.stat, 2_000_000_000

    def stat_with_rough_times(path: str) -> SimpleNamespace:
        status = stat(path)
        at = status.st_ctime_ns // tick * tick
        return SimpleNamespace(st_dev=status.st_dev, st_ino=status.st_ino, st_ctime_ns=at)

    path = tmp_path / "folder" / "threads.db"
    identity = make_files(path)
    with monkeypatch.context() as context:
        context.setattr("plait.store.sqlite.file_identity.os.stat", stat_with_rough_times)
        assert identity.has_log()
        log_of(path).rename(path.with_name("moved"))
        assert not identity.has_log()


# The log of another file


@pytest.fixture(scope="module")
def killed_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a server that was killed twice, each time after 20 changes."""
    folder = tmp_path_factory.mktemp("killed")
    for _ in range(2):
        assert run(WRITE_AND_DIE, folder / "threads.db", "FULL").returncode == 9
    return folder


@pytest.fixture
def killed(path: Path, killed_files: Path) -> Path:
    """Return the file of a server that was killed after change 40; the last changes are in the log only."""
    for each in killed_files.iterdir():
        shutil.copyfile(each, path.with_name(each.name))
    return path


@pytest.mark.parametrize("harm", [_copy_other, _copy_older, _move_other, _truncate, _fill_with_garbage, "delete"])
async def test_the_log_of_another_file_stops_the_start_until_a_backup_is_restored(
    killed: Path, tmp_path: Path, harm: Callable[[Path, Path], None] | str
) -> None:
    await make_store(tmp_path / "other.db", 30)
    async with SqliteStore(killed):
        pass
    shutil.copyfile(killed, tmp_path / "older.db")
    back_up(killed, tmp_path / "backup.db")
    assert run(WRITE_AND_DIE, killed, "FULL").returncode == 9
    if callable(harm):
        harm(killed, tmp_path)
    else:
        killed.unlink()
    there, log = killed.read_bytes() if killed.exists() else None, log_of(killed).read_bytes()
    for _ in range(2):
        for readonly in (False, True):
            with pytest.raises(StoreError, match=r"deleted, replaced or truncated .* `plait restore BACKUP "):
                async with SqliteStore(killed, readonly=readonly):
                    pass
        if killed.exists():
            with pytest.raises(StoreError, match="plait restore"):
                list(check_store(killed))
            with pytest.raises(StoreError, match="plait restore"):
                back_up(killed, tmp_path / "copy.db")
        assert (killed.read_bytes() if killed.exists() else None) == there
        assert log_of(killed).read_bytes() == log
    assert restore(tmp_path / "backup.db", killed)[0] == 2
    assert killed.with_name("threads.db-wal.lost").read_bytes() == log
    kept = killed.with_name("threads.db.before-restore")
    assert (kept.read_bytes() if kept.exists() else None) == there
    assert not log_of(kept).exists()
    async with SqliteStore(killed) as store:
        assert (await versions(store))[0] == 40


async def test_a_file_and_its_log_may_be_moved_together_and_a_log_that_was_moved_away_is_no_obstacle(
    killed: Path, tmp_path: Path
) -> None:
    await make_store(tmp_path / "other.db", 30)
    lock = killed.with_name(killed.name + ".lock").read_bytes()
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for each in (killed, log_of(killed)):
        shutil.copyfile(each, folder / each.name)
    (folder / "threads.db.lock").write_bytes(lock)
    async with SqliteStore(folder / "threads.db") as store:
        assert (await versions(store))[0] == 40
    _copy_other(killed, tmp_path)
    log_of(killed).rename(tmp_path / "log")
    async with SqliteStore(killed) as store:
        assert (await versions(store))[0] == 30


async def test_the_log_is_known_as_that_of_its_file_after_each_restart_of_it(path: Path) -> None:
    await make_store(path, 1)
    async with SqliteStore(path) as store:
        for version in range(2, 12):
            # SQLite writes the log to the file after a large change.
            await put(store, change(version, snapshot=bytes(5_000_000) if version in (6, 7) else None))
            found = read_log_identity(path)
            assert found is not None
            assert found.salts == int.from_bytes(log_of(path).read_bytes()[16:24])
            if version in (3, 4, 10):
                with database(path) as db:
                    assert db.execute("PRAGMA wal_checkpoint").fetchone()[0] == 0


def test_a_stamp_may_follow_itself_and_earlier_ones_of_its_server() -> None:
    before = FileStamp(3, 9)
    assert all(found.may_follow(7, before) for found in (before, FileStamp(7, 1)))
    assert not any(
        found.may_follow(7, before) for found in (NO_STAMP, FileStamp(3, 8), FileStamp(3, 10), FileStamp(5, 9))
    )
    after = FileStamp(7, 2)
    assert all(found.may_follow(7, after) for found in (after, FileStamp(7, 3)))
    assert not any(found.may_follow(7, after) for found in (NO_STAMP, FileStamp(7, 1), FileStamp(3, 9)))


# What is no other file


WRITE_UP_TO = """
    import asyncio, os, resource, signal, sys
    from pathlib import Path
    from plait.errors import StoreError
    from plait.store.sqlite.store import SqliteStore
    from tests.server.owning import submit
    from tests.server.store.contract import ROOM, change
    from tests.server.store.sqlite.test_file_identity import has_part_of_its_log

    async def main():
        path, is_killed = Path(sys.argv[1]), sys.argv[2] == "killed"
        async with SqliteStore(path) as store:
            version = (await store.load(ROOM)).version
            if is_killed:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            # No room for what the next checkpoint writes at the end of the file; the log is smaller.
            size = path.stat().st_size
            assert size > 6_000_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 400_000, resource.RLIM_INFINITY))
            while path.stat().st_size < size + 300_000:
                version += 1
                try:
                    await submit(store, change(version, snapshot=bytes(100_000)))
                except StoreError:
                    break
                print(version, flush=True)
            assert has_part_of_its_log(path)
            await asyncio.sleep(0.01)  # The files are looked for again.
            try:
                await submit(store, change(version + 1))
            except StoreError as error:
                assert "deleted or replaced" not in str(error), error
            else:
                version += 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await store._probe(writes=True)
            await store.check_writes()
            os._exit(9)

    asyncio.run(main())
"""


def has_part_of_its_log(path: Path) -> bool:
    """Whether the file's first page tells more pages than the file has."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(32)[28:]) * 4096 > path.stat().st_size


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of processes")
@pytest.mark.parametrize("end", ["killed", "full"])
async def test_a_file_that_has_a_part_of_its_log_is_the_same(path: Path, end: str) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER), change(1, snapshot=bytes(7_000_000)))
    done = run(WRITE_UP_TO, path, end)
    assert done.returncode == (-signal.SIGXFSZ if end == "killed" else 9), done.stderr
    assert end == "full" or has_part_of_its_log(path)
    last = int(done.stdout.split()[-1])
    assert not any(is_damage and "SQLite" in line for line, is_damage in check_store(path))
    async with SqliteStore(path) as store:
        found = [row.version for row in await store.changes(ROOM, after=1)]
        assert found[: last - 1] == list(range(2, last + 1))
        await put(store, change(found[-1] + 1))
        await store.check_writes()


async def test_a_file_may_be_put_back_with_its_log(killed: Path, tmp_path: Path) -> None:
    for each in (killed, log_of(killed)):
        shutil.copyfile(each, tmp_path / f"kept-{each.name}")
    async with SqliteStore(killed) as store:
        await put(store, change(41, snapshot=bytes(100_000)))
    assert run(WRITE_AND_DIE, killed, "FULL").returncode == 9
    for each in (killed, log_of(killed)):
        shutil.copyfile(tmp_path / f"kept-{each.name}", each)
    async with SqliteStore(killed) as store:
        assert (await versions(store))[0] == 40
        await store.check_writes()


async def test_a_server_may_start_while_another_process_reads_what_a_killed_one_has_left(killed: Path) -> None:
    with closing(sqlite3.connect(f"file:{killed}?mode=ro", uri=True, isolation_level=None)) as db:
        db.execute("BEGIN")
        assert db.execute("SELECT count(*) FROM rows WHERE part = '~thread/room'").fetchone() == (2,)
        async with SqliteStore(killed) as store:
            await put(store, change(41))
            await store.check_writes()
    async with SqliteStore(killed) as store:
        assert (await versions(store))[0] == 41
