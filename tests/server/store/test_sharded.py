"""The store in several SQLite files."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import asyncio
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cases import each_case
from tests.server.owning import submit
from tests.server.store.contract import *  # noqa: F403
from tests.server.store.contract import OTHER, ROOM, beginning, change, listed, outcomes, put, versions
from tests.server.store.contract_due import *  # noqa: F403
from tests.server.store.contract_finding import *  # noqa: F403
from tests.server.store.contract_listing import *  # noqa: F403
from tests.server.store.contract_ranges import *  # noqa: F403
from tests.server.store.contract_records import *  # noqa: F403
from tests.server.store.contract_view import *  # noqa: F403

from plait.errors import StoreError
from plait.store.protocol import Store, ThreadQuery
from plait.store.sharded import ShardedStore
from plait.store.shards import SHARDS, find_file, find_shard
from plait.store.sqlite.files import Files
from plait.store.sqlite.lock import StoreLock
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ThreadKey
from plait.store.urls import open_files, open_share, open_shares, open_store

THREADS = [ThreadKey("room", str(number)) for number in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "game.db"


@pytest.fixture
def store(path: Path) -> Store:
    return open_store(f"sqlite:///{path}?files=3")


async def fill_files(url: str) -> None:
    """Store some threads."""
    async with open_store(url) as store:
        await put(store, *(beginning(key=key) for key in THREADS))
        await store.add_schema("room", "h1", b"{}")


def file_names(path: Path) -> list[str]:
    """Return the names of the database files in a folder."""
    return sorted(each.name for each in path.parent.iterdir() if each.suffix == ".db")


# Shards


@each_case(
    ("kind", "name", "shard"),
    [("room", "one", 446), ("room", "two", 143), ("roo", "mone", 703), ("кімната", "🔑", 170), ("room", "\ud800", 179)],
)
def test_the_shard_of_a_thread_never_changes(kind: str, name: str, shard: int) -> None:
    assert find_shard(ThreadKey(kind, name)) == shard


def test_threads_are_spread_over_all_shards_and_files() -> None:
    keys = [ThreadKey("room", str(number)) for number in range(20_000)]
    assert {find_shard(key) for key in keys} == set(range(SHARDS))
    for count in (2, 3, 64):
        counts = [0] * count
        for key in keys:
            counts[find_file(key, count)] += 1
        assert min(counts) > 20_000 / count * 0.7
    assert {find_file(key, 1) for key in keys} == {0}


# Files


async def test_each_thread_is_in_the_file_of_its_shard_and_each_file_knows_its_place(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=4")
    assert file_names(path) == ["game.0.db", "game.1.db", "game.2.db", "game.3.db"]
    for number in range(4):
        with closing(sqlite3.connect(path.with_name(f"game.{number}.db"))) as db:
            found = [ThreadKey("room", *row) for row in db.execute("SELECT key FROM rows WHERE part = '~thread/room'")]
            assert sorted(found) == sorted(key for key in THREADS if find_file(key, 4) == number) != []
            assert db.execute("SELECT number, count FROM place").fetchall() == [(number, 4)]
            assert db.execute("SELECT key FROM rows WHERE part = '~schema/room'").fetchall() == [("h1",)]


async def test_the_count_of_files_is_read_from_them(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=4")
    for url in (f"sqlite:///{path}", f"sqlite:///{path}?files=4"):
        async with open_store(url) as store:
            assert [key for key, _ in await listed(store)] == sorted(THREADS)
            assert await store.schema("room", "h1") == b"{}"
    assert file_names(path) == ["game.0.db", "game.1.db", "game.2.db", "game.3.db"]


@pytest.mark.parametrize(("first", "then"), [(4, 3), (4, 5), (4, 1), (1, 4)])
async def test_another_count_of_files_is_refused(path: Path, first: int, then: int) -> None:
    await fill_files(f"sqlite:///{path}?files={first}")
    before = file_names(path)
    with pytest.raises(StoreError, match=rf"{first} files?, not {then}, .*`plait store copy") as error:
        open_store(f"sqlite:///{path}?files={then}")
    assert "\n" not in str(error.value)
    assert file_names(path) == before


@pytest.mark.parametrize("files", ["0", "65", "-1", "x", "", "²", "1.5"])
def test_a_count_that_is_none_is_refused(path: Path, files: str) -> None:
    with pytest.raises(ValueError, match="from 1 to 64"):
        open_store(f"sqlite:///{path}?files={files}")


async def test_one_file_is_the_file_itself(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=1")
    assert file_names(path) == ["game.db"]
    assert isinstance(open_store(f"sqlite:///{path}"), SqliteStore)


async def test_a_store_of_one_file_beside_one_of_several_is_refused(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=2")
    with pytest.raises(StoreError, match="open it by its URL"):
        await SqliteStore(path).__aenter__()
    assert not path.exists()
    path.touch()
    with pytest.raises(StoreError, match="two stores"):
        open_store(f"sqlite:///{path}")


@pytest.mark.parametrize("is_truncated", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_file_that_is_missing_is_not_made_again(path: Path, number: int, is_truncated: bool) -> None:
    await fill_files(f"sqlite:///{path}?files=3")
    for each in path.parent.glob(f"game.{number}.db*"):
        each.unlink()
    if is_truncated:
        path.with_name(f"game.{number}.db").touch()
    with pytest.raises(StoreError, match=rf"game.{number}.db is missing"):
        await open_store(f"sqlite:///{path}?files=3").__aenter__()
    assert not path.with_name(f"game.{number}.db").exists() or is_truncated


@pytest.mark.parametrize("made", [1, 2])
async def test_files_that_a_kill_has_left_unmade_are_made(path: Path, made: int) -> None:
    async with open_store(f"sqlite:///{path}?files=3"):
        pass
    for number in range(3 - made):
        for each in path.parent.glob(f"game.{number}.db*"):
            each.unlink()
    await fill_files(f"sqlite:///{path}?files=3")
    assert file_names(path) == ["game.0.db", "game.1.db", "game.2.db"]


async def test_a_file_at_anothers_place_is_refused(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=3")
    first, last = path.with_name("game.0.db"), path.with_name("game.2.db")
    with pytest.raises(StoreError, match="file 0 of a store of 3 files"):
        await SqliteStore(first).__aenter__()
    last.write_bytes(path.with_name("game.1.db").read_bytes())
    with pytest.raises(StoreError, match="file 1 of a store of 3 files"):
        await open_store(f"sqlite:///{path}").__aenter__()
    # What was opened before it is closed again.
    async with open_files(Files.find(path), numbers=(0, 1)):
        pass


async def test_a_store_of_one_file_is_not_made_where_the_first_of_several_is_missing(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=3")
    path.with_name("game.0.db").unlink()
    with pytest.raises(StoreError, match=r"game\.0\.db is missing: put it back"):
        await open_store(f"sqlite:///{path}").__aenter__()
    assert file_names(path) == ["game.1.db", "game.2.db"]


async def test_two_may_each_open_some_of_the_files(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=3")
    files = Files.find(path)
    async with open_files(files, numbers=(0, 2)) as some, open_files(files, numbers=(1,)) as others:
        assert isinstance(some, ShardedStore)
        for store, numbers in ((some, (0, 2)), (others, (1,))):
            mine = [key for key in THREADS if find_file(key, 3) in numbers]
            assert [key for key, _ in await listed(store)] == sorted(mine)
            await put(store, *(change(1, key=key) for key in mine))
            assert await store.schema("room", "h1") == b"{}"
            (foreign, *_) = [key for key in THREADS if key not in mine]
            with pytest.raises(StoreError, match="not open here"):
                await store.load(foreign)
            with pytest.raises(StoreError, match="not open here"):
                await store.claim(foreign)
        with pytest.raises(StoreError, match="in use by another server"):
            await open_files(files, numbers=(1, 2)).__aenter__()
    async with open_files(files) as store:
        assert [version for _, version in await listed(store)] == [1] * len(THREADS)


async def test_a_file_that_cannot_be_written_makes_no_trouble_for_the_threads_of_others(path: Path) -> None:
    async with open_store(f"sqlite:///{path}?files=3") as store:
        await put(store, *(beginning(key=key) for key in THREADS))
        with closing(sqlite3.connect(path.with_name("game.1.db"))) as db:
            db.execute("DROP TABLE rows")
        found = await outcomes([submit(store, change(1, key=key)) for key in THREADS])
        assert found == [StoreError if find_file(key, 3) == 1 else None for key in THREADS]
        with pytest.raises(StoreError):
            await store.check_writes()


async def test_the_files_of_a_store_are_read_while_it_is_open(path: Path) -> None:
    async with open_store(f"sqlite:///{path}?files=3") as store:
        await put(store, beginning(), beginning(key=OTHER))
        async with open_files(Files.find(path), readonly=True) as reader:
            assert sorted(key for key, _ in await listed(reader)) == [ROOM, OTHER]
            await put(store, change(1))
            assert await versions(reader) == (1, [1])


# Shares


async def test_workers_own_the_files_of_a_store_that_is_made_at_once(path: Path) -> None:
    url = f"sqlite:///{path}"
    async with open_shares(url, 2):
        assert file_names(path) == ["game.0.db", "game.1.db"]
    async with open_share(url, 0, 2)[0] as first, open_share(url, 1, 2)[0] as second:
        for key in THREADS:
            owner, other = (first, second)[:: -1 if find_file(key, 2) else 1]
            await put(owner, beginning(key=key))
            with pytest.raises(StoreError, match="not open here"):
                await other.find(key)
        # While they are open, the whole store can only be read.
        async with open_shares(url, 2) as whole:
            assert [row.key for row in await whole.threads(ThreadQuery(kind="room"))] == sorted(THREADS)


@pytest.mark.parametrize(("asked", "count", "owned"), [("?files=5", 2, [[0, 2, 4], [1, 3]]), ("", 3, [[0], [1], [2]])])
def test_each_file_has_one_owner(path: Path, asked: str, count: int, owned: list[list[int]]) -> None:
    found = [open_share(f"sqlite:///{path}{asked}", number, count) for number in range(count)]
    assert {files for _, files in found} == {sum(map(len, owned))}
    assert [sorted(share._stores) for share, _ in found if isinstance(share, ShardedStore)] == owned


async def test_a_lost_file_of_several_workers_is_not_made_again(path: Path) -> None:
    await fill_files(f"sqlite:///{path}?files=2")
    path.with_name("game.1.db").unlink()
    with pytest.raises(StoreError, match=r"game\.1\.db is missing"):
        async with open_shares(f"sqlite:///{path}", 2):
            pass


async def test_a_store_waits_until_another_server_has_closed_the_file(path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    handler = logging.Handler()
    handler.emit = lambda record: said.put_nowait(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("plait.store")
    log.addHandler(handler)
    try:
        async with SqliteStore(path):
            with pytest.raises(StoreError, match="in use by another server"):
                await SqliteStore(path, patience=0.05).__aenter__()
            waiting = asyncio.create_task(SqliteStore(path, patience=60).__aenter__())
            assert await asyncio.wait_for(said.get(), 30) == f"waiting for another server to close {path}"
            assert not waiting.done()
        await (await waiting).__aexit__(None, None, None)
        assert said.empty()
    finally:
        log.removeHandler(handler)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_lock(path: Path) -> None:
    lock, (runs, running), (ends, ending) = StoreLock(path), os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.close(ending)
        os.write(running, b".")
        os.read(ends, 1)  # Until the parent has closed its end.
        os._exit(0)
    assert os.read(runs, 1) == b"."
    lock.close()
    StoreLock(path).close()
    for each in (runs, running, ends, ending):
        os.close(each)
    assert os.waitpid(child, 0)[1] == 0
