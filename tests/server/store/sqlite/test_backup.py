"""Copies of a store's file."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.server.store.contract import OTHER, ROOM, beginning, change, put, versions
from tests.server.store.sqlite.test_file_writer import WRITE_AND_DIE, log_of
from tests.server.store.sqlite.test_store import database, make_file_of_format, run

from plait.errors import StoreError
from plait.store.sqlite.backup import back_up, restore
from plait.store.sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.db"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


async def write(path: Path, *, first: int, last: int) -> None:
    """Write changes to a store, which may have to be made."""
    async with SqliteStore(path) as store:
        if first == 1:
            await put(store, beginning(), beginning(key=OTHER))
        await put(store, *(change(version) for version in range(first, last + 1)))


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Fail if a file has come, gone or changed."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    yield
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


async def test_a_backup_has_what_is_durable_while_a_server_has_the_store_open(path: Path, copy: Path) -> None:
    async with SqliteStore(path) as store:
        await put(store, beginning(), beginning(key=OTHER), change(1), change(2))
        assert back_up(path, copy) == 2
        await put(store, change(3))
    assert [each.name for each in path.parent.glob("copy*")] == ["copy.db"]
    async with SqliteStore(copy) as store:
        assert await versions(store) == (2, [1, 2])


async def test_a_backup_is_for_the_eyes_that_the_store_is_for(
    path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(path, first=1, last=1)
    path.chmod(0o640)
    chmod, before = Path.chmod, list[int]()

    def change_mode(self: Path, mode: int) -> None:
        before.append(self.stat().st_mode & 0o777)
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", change_mode)
    back_up(path, copy)
    assert copy.stat().st_mode & 0o777 == 0o640
    assert before == [0o600]


@pytest.mark.parametrize(
    ("target", "why"), [("copy.db", "exists: name another"), ("missing/copy.db", "mkdir -p"), ("folder", "exists")]
)
async def test_a_backup_replaces_nothing_and_makes_no_folder(path: Path, copy: Path, target: str, why: str) -> None:
    await write(path, first=1, last=1)
    copy.write_text("mine")
    (path.parent / "folder").mkdir()
    with pytest.raises(StoreError, match=why):
        back_up(path, path.parent / target)
    assert copy.read_text() == "mine"
    assert {each.name for each in path.parent.iterdir() if not each.name.startswith("threads.db")} == {
        "copy.db",
        "folder",
    }


@pytest.mark.parametrize("content", [None, b"no database " * 1000])
def test_what_is_no_store_is_not_backed_up(path: Path, copy: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with unchanged(path.parent), pytest.raises(StoreError, match=f"cannot open the store {path}"):
        back_up(path, copy)


async def test_a_backup_that_is_put_back_has_its_threads_with_new_epochs_and_keeps_what_was_there(
    path: Path, copy: Path
) -> None:
    await write(path, first=1, last=2)
    back_up(path, copy)
    assert run(WRITE_AND_DIE, path, "FULL").returncode == 9
    assert log_of(path).stat().st_size
    kept = path.with_name("threads.db.before-restore")
    assert restore(copy, path) == (2, kept)
    assert not log_of(path).exists()
    async with SqliteStore(path) as store:
        stored = [await store.load(key) for key in (ROOM, OTHER)]
        assert [each.version for each in stored if each is not None] == [2, 0]
        assert len({each.epoch for each in stored if each is not None} | {"e1"}) == 3
        epoch = stored[0].epoch if stored[0] is not None else ""
        await put(store, change(3, epoch=epoch))
    # It has a log, too.
    async with SqliteStore(kept) as store:
        found = await store.load(ROOM)
        assert found is not None
        assert (found.version, found.epoch) == (22, "e1")
    assert restore(copy, path)[1] == path.with_name("threads.db.before-restore-2")
    # The epochs that it has been given stay.
    async with SqliteStore(path) as store:
        first = await store.load(ROOM)
    async with SqliteStore(path) as store:
        assert await store.load(ROOM) == first


async def test_a_backup_can_be_put_where_no_store_was(path: Path, copy: Path) -> None:
    await write(path, first=1, last=2)
    back_up(path, copy)
    fresh = path.with_name("fresh.db")
    assert restore(copy, fresh) == (2, None)
    async with SqliteStore(fresh) as store:
        assert (await versions(store))[0] == 2


async def test_nothing_is_put_in_the_place_of_a_store_that_a_server_has_open(path: Path, copy: Path) -> None:
    await write(path, first=1, last=2)
    back_up(path, copy)
    async with SqliteStore(path) as store:
        with unchanged(path.parent), pytest.raises(StoreError, match="in use by another server"):
            restore(copy, path)
        await put(store, change(3))


async def test_a_damaged_backup_is_not_put_back(path: Path, copy: Path) -> None:
    await write(path, first=1, last=300)
    back_up(path, copy)
    data = bytearray(copy.read_bytes())
    data[3 * 4096 :] = os.urandom(len(data) - 3 * 4096)
    copy.write_bytes(data)
    with pytest.raises(StoreError, match="plait check"):
        restore(copy, path)
    async with SqliteStore(path) as store:
        assert (await versions(store))[0] == 300


async def test_a_store_is_not_put_in_its_own_place(path: Path) -> None:
    await write(path, first=1, last=1)
    with unchanged(path.parent), pytest.raises(StoreError, match="the store itself"):
        restore(path, path)


async def test_a_restore_that_fails_leaves_what_was_there(path: Path, copy: Path) -> None:
    await write(path, first=1, last=1)
    back_up(path, copy)
    with pytest.raises(StoreError, match="mkdir -p"):
        restore(copy, path.parent / "missing" / "threads.db")
    with database(copy) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer plait"):
        restore(copy, path)
    async with SqliteStore(path) as store:
        assert (await versions(store))[0] == 1


def test_a_file_of_an_earlier_build_is_neither_backed_up_nor_put_back(path: Path, copy: Path) -> None:
    make_file_of_format(path, 4)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="an earlier build of plait"):
        back_up(path, copy)
    assert (path.read_bytes(), copy.exists()) == (before, False)
    path.rename(copy)
    with pytest.raises(StoreError, match="an earlier build of plait"):
        restore(copy, path)
    assert (copy.read_bytes(), path.exists()) == (before, False)


async def test_a_backup_of_a_format_that_is_no_store_is_refused(path: Path, copy: Path) -> None:
    with sqlite3.connect(copy) as db:
        db.execute("CREATE TABLE notes (text)")
    db.close()
    with pytest.raises(StoreError, match="not one of plait's"):
        restore(copy, path)
    assert not path.exists()
