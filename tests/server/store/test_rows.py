"""The store over rows."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import copyfile
from typing import Any
from zlib import crc32

import msgspec
import pytest
from tests.clocks import stopped_clock
from tests.server.owning import owned, submit
from tests.server.store.contract import (
    EPOCH,
    OTHER,
    PATIENCE,
    ROOM,
    beginning,
    change,
    client_row,
    log,
    put,
    versions,
)
from tests.server.store.contract_records import delete, put_records

from plait.errors import CorruptThread, StoreError
from plait.store.memory import MemoryRows
from plait.store.rows.engine import INDEX, Engine, ReadPlan, Reads, Row, Span
from plait.store.rows.layout import FORMATS
from plait.store.rows.parts import FORMAT
from plait.store.rows.reads import find_head
from plait.store.rows.spaces import put_rows
from plait.store.rows.store import RowStore
from plait.store.sqlite.file_place import ONLY_FILE
from plait.store.sqlite.store import SqliteRows, SqliteStore
from plait.store.thread_rows import Prune, RecordRange, ThreadKey


def rows_of(path: Path, where: str) -> list[tuple[str, str | int, Any]]:
    """Return the parts, keys and values of rows in a file, without those of formats."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"SELECT part, key, value FROM rows WHERE {where} ORDER BY thread, part, key").fetchall()


async def test_rows_of_a_thread_are_readable_in_sql(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with owned(SqliteStore(path), ROOM) as store:
        await put(store, beginning(snapshot=b'{"n":0}'), put_records(("a", b"[1]"), ("b", b"\xff")))
        await put(store, change(1, client=client_row("c", 7)))
    ((head,),) = [[value] for part, key, value in rows_of(path, "thread = 0") if (part, key) == ("~thread/room", "one")]
    space = json.loads(head)["space"]
    found = rows_of(path, f"thread = {space}")
    assert [row[:2] for row in found] == [("values", "a"), ("values", "b"), ("~c", 1), ("~p", "c"), ("~s", 0)]
    assert [found[0][2], found[1][2], found[4][2]] == ["[1]", b"\xff", '{"n":0}']
    assert json.loads(found[2][2])["ops"] == [{"op": "replace", "path": "", "value": 1}]
    assert json.loads(found[3][2])["ref"] == 7


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_store_with_rows_of_another_format_is_refused(kind: str) -> None:
    engine, known = MemoryRows(), FORMATS[kind]
    store = RowStore(engine)
    async with owned(store, ROOM):
        await put(store, beginning())
    for version, who in ((known + 1, "a newer plait"), (known - 1, "an earlier build of plait")):
        await put_rows(engine, [(INDEX, FORMAT, kind, b"%d" % version)])
        formats = f"rows of the kind '{kind}' in format {version}; this plait reads format {known}"
        with pytest.raises(StoreError, match=rf"^cannot open the store: it was written by {who} \({formats}\): "):
            await store.__aenter__()
    await put_rows(engine, [(INDEX, FORMAT, kind, b"%d" % known)])
    async with store:
        assert await versions(store) == (0, [])


async def test_a_kind_of_rows_that_a_store_lacks_is_new_to_it_and_one_that_plait_lacks_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.db"
    store = SqliteStore(path)
    async with owned(store, ROOM):
        await put(store, beginning())
    with closing(sqlite3.connect(path)) as db:
        formats = db.execute("SELECT * FROM rows WHERE part = '~format' ORDER BY key").fetchall()
        db.execute("DELETE FROM rows WHERE part = '~format' AND key = 'client'")
        db.commit()
        async with owned(store, ROOM):
            await put(store, change(1))
        assert db.execute("SELECT * FROM rows WHERE part = '~format' ORDER BY key").fetchall() == formats
        row = 0, "~format", "odd", "1"
        db.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (*row, checksum(*row)))
        db.commit()
    with pytest.raises(StoreError, match="written by a newer plait"):
        await store.__aenter__()


async def test_no_version_is_too_large_to_ask_for(engine: Engine) -> None:
    async with owned(RowStore(engine), ROOM) as store:
        await put(store, beginning(), change(1))
        for version in (2**63 - 1, 2**70):
            assert await store.changes(ROOM, after=version) == []
            assert [row.version for row in await store.changes_before(ROOM, version)] == [1]
            assert await store.load(ROOM, version=version) is None


async def test_facts_of_a_thread_that_could_not_be_read_again_are_refused(engine: Engine) -> None:
    odd: Any = "x"
    async with owned(RowStore(engine), ROOM) as store:
        begin = beginning()
        wrong = [msgspec.structs.replace(begin, **{name: odd}) for name in ("due", "created_at", "state_version")]
        wrong.append(msgspec.structs.replace(begin, user=7))
        for write in wrong:
            with pytest.raises(StoreError, match=r"^room/one could not be written: "):
                await submit(store, write)
        await put(store, begin)
        with pytest.raises(StoreError, match=r"^room/one could not be written: "):
            await submit(store, msgspec.structs.replace(change(1), due=odd))
        await put(store, change(1))
        assert await versions(store) == (1, [1])


def checksum(space: int, part: str, key: str | int, value: str) -> int:
    return crc32(value.encode(), crc32(f"{space} {part} {key}".encode()))


@pytest.mark.parametrize("part", ["~c", "~s", "values", "~thread/room"])
async def test_a_damaged_row_is_an_error_of_its_thread(tmp_path: Path, part: str) -> None:
    path = tmp_path / "rows.db"
    store = SqliteStore(path)
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER), change(1), put_records(("a", b"1"), after=1))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE rows SET value = value || ' ' WHERE part = ? AND key <> 'two'", (part,))
        db.execute("UPDATE rows SET value = substr(value, 1, length(value) - 1) WHERE part = ? AND thread = 2", (part,))
        db.commit()
    async with owned(store, ROOM, OTHER):
        with pytest.raises(CorruptThread, match="room/one"):
            await store.load(ROOM, records=[RecordRange("values")])
        assert await versions(store, OTHER) == (0, [])


async def test_a_thread_whose_last_change_is_missing_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    store = SqliteStore(path)
    async with owned(store, ROOM):
        await put(store, beginning(), change(1), change(2))
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM rows WHERE part = '~c' AND key = 2")
        db.commit()
    async with store:
        with pytest.raises(CorruptThread, match="missing after version 1, up to 2"):
            await store.load(ROOM)


async def test_a_file_that_has_lost_its_last_change_gives_its_threads_new_epochs(tmp_path: Path) -> None:
    path, copy = tmp_path / "rows.db", tmp_path / "copy.db"
    store = SqliteStore(path)
    async with owned(store, ROOM, OTHER):
        await put(store, beginning(), beginning(key=OTHER))
    copyfile(path, copy)
    async with owned(store, ROOM):
        await put(store, change(1))
    copyfile(copy, path)
    async with store:
        stored, other = await store.load(ROOM), await store.load(OTHER)
        assert stored is not None
        assert other is not None
        assert stored.version == 0
        assert EPOCH not in (stored.epoch, other.epoch)


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "memory":
        return MemoryRows()
    path = tmp_path / "engine.db"
    return SqliteRows(path, synchronous="FULL", readonly=False, lock_timeout=5, place=ONLY_FILE, patience=0)


async def test_rows_of_a_deleted_thread_are_removed_in_steps(engine: Engine) -> None:
    async with owned(RowStore(engine), ROOM) as store:
        await put(store, beginning(), put_records(*((str(n), b"x") for n in range(3000))), change(1))
        await put(store, delete(1))
        async with asyncio.timeout(PATIENCE):
            while any("~removed" in row for row in (await engine.read(ReadPlan(read_all)))[0]):  # noqa: ASYNC110
                await asyncio.sleep(0)
        index, space = await engine.read(ReadPlan(read_all))
        assert {part for part, _, _ in index} == {"~format", "~number"}
        assert space == []


def read_all() -> Reads[list[list[Row]]]:
    """Return the rows of the index, and of the first space."""
    return (yield [Span(number, ("",), ("\U0010ffff",)) for number in (0, 1)])


async def test_the_space_of_a_thread_is_not_used_again_after_the_store_is_opened_again(engine: Engine) -> None:
    store, spaces = RowStore(engine), set[int]()
    for number in range(3):
        key = ThreadKey("room", str(number))
        async with owned(store, key):
            await put(store, beginning(key=key), delete(0, key=key))
            await put(store, beginning(key=key))
            found = await engine.read(ReadPlan(find_head, key))
            assert found is not None
            spaces.add(found.space)
    assert len(spaces) == 3


async def test_a_thread_without_an_owner_is_forgotten_when_rows_are_saved(engine: Engine) -> None:
    async with RowStore(engine) as store:
        fence = await store.claim(ROOM)
        for write in (beginning(), change(1)):
            await store.submit(msgspec.structs.replace(write, fence=fence))
        await store.threads()
        assert ROOM in store._known
        store.release(ROOM, fence)
        await store.threads()
        assert ROOM not in store._known
        assert await versions(store) == (1, [1])


async def test_a_change_a_second_after_the_last_one_stores_its_time_with_it(engine: Engine) -> None:
    with stopped_clock() as clock:
        async with owned(RowStore(engine), ROOM) as store:
            await put(store, beginning())
            begun = clock.now
            for seconds, saved in ((0.5, begun), (0.6, begun + 1_100_000), (0.5, begun + 1_100_000)):
                clock.move(seconds)
                found = await store.find(ROOM)
                assert found is not None
                await put(store, change(found.version + 1))
                head = await engine.read(ReadPlan(find_head, ROOM))
                assert head is not None
                assert head.changed_at == saved


async def test_bounds_of_bytes_and_age_are_found_a_page_at_a_time(engine: Engine) -> None:
    async with owned(RowStore(engine), ROOM) as store:
        await put(store, *log(300, every=20, ops=100, at=10))
        for version, prune, oldest in (
            (301, Prune(bytes=10_000), 200),
            (302, Prune(at=2_450), 240),
            (303, Prune(), 240),
        ):
            await put(store, change(version, snapshot=b"%d" % version, prune=prune, at=400))
            assert [row.version for row in await store.changes(ROOM, after=0, limit=1)] == [oldest + 1]
        for version in range(304, 504):
            await put(store, change(version, snapshot=b"%d" % version, prune=Prune(bytes=1_000), at=400))
        kept = await store.changes(ROOM, after=0)
        sizes = [len(row.ops) for row in kept]
        assert sum(sizes) <= 1_000 < sum(sizes) + sizes[0]
