"""A store's file that is replaced while it is open, and logs of other files."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.store.contract import OTHER, ROOM, beginning, change, put, versions
from tests.server.store.test_sqlite import database, run
from tests.server.store.test_writer import WRITE_AND_DIE, log_of

from plait.cli.maintenance import check_store
from plait.errors import StoreError
from plait.store.copies import back_up, restore
from plait.store.lock import LogMark, Origin
from plait.store.sqlite import SqliteStore


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
        before = db.execute("SELECT step FROM origin").fetchone()
        async with asyncio.timeout(10):
            while db.execute("SELECT step FROM origin").fetchone() == before:  # noqa: ASYNC110
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
            await store.submit(change(6))
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


# The log of another file


@pytest.fixture
def killed(path: Path) -> Path:
    """Return the file of a server that was killed after change 20, of which the last are in the log alone."""
    assert run(WRITE_AND_DIE, path, "FULL").returncode == 9
    assert run(WRITE_AND_DIE, path, "FULL").returncode == 9
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


def test_a_log_fits_the_file_as_it_was_seen_and_as_its_server_wrote_it_after_that() -> None:
    before = LogMark(7, 3, 9, 0, 0)
    assert before.fits(Origin(3, 9))
    assert before.fits(Origin(7, 1))
    assert not any(map(before.fits, [Origin(0, 0), Origin(3, 8), Origin(3, 10), Origin(5, 9)]))
    after = LogMark(7, 7, 2, 0, 0)
    assert after.fits(Origin(7, 2))
    assert after.fits(Origin(7, 3))
    assert not any(map(after.fits, [Origin(7, 1), Origin(0, 0), Origin(3, 9)]))
