"""Damage to a store's file that SQLite does not see."""
# ruff: noqa: ASYNC240  Nothing else runs that could be held up.

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.server.store.contract import OTHER, ROOM, beginning, change, put, versions
from tests.server.store.contract_records import put_records
from tests.server.store.sqlite.test_store import change_file, database, hide_room

from plait.errors import CorruptThread, StoreError
from plait.store.rows.engine import Key
from plait.store.sqlite.store import SqliteStore
from plait.store.sqlite.table import make_values
from plait.store.thread_rows import ClientRow, RecordRange, ThreadKey

HEAD = "~thread/room"


def change_row(path: Path, part: str, key: str | int, change: str | None) -> None:
    """Change a row of ROOM in the file of a closed store; None deletes it."""
    what = "DELETE FROM rows" if change is None else f"UPDATE rows SET {change}"
    change_file(path, f"{what} WHERE part = ? AND key = ? AND thread = ?", part, key, int(part != HEAD))


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return a closed store's file with a thread in it, that has clients, a snapshot in its log, and a neighbour."""
    path = tmp_path / "threads.db"
    async with SqliteStore(path) as store:
        for key in (ROOM, OTHER):
            clients = [ClientRow("c", number, b"[]", number) for number in range(4)]
            await put(store, beginning(key=key), *(change(n, key=key, client=clients[n]) for n in range(1, 4)))
            await put(store, change(4, key=key, snapshot=b"4", state_version=2), change(5, key=key))
    return path


async def load_all(store: SqliteStore, key: ThreadKey) -> Sequence[Any]:
    """Return all that a store has of a thread, but for its epoch: another one only brings clients the whole state."""
    states = [await store.load(key, version=version) for version in (None, *range(6))]
    known = [state and msgspec.structs.replace(state, epoch="") for state in states]
    return [known, await store.changes(key, after=0), await store.changes_before(key, 6), await store.client(key, "c")]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(("~c", 5, "value = replace(value, '\"value\":5', '\"value\":9')"), id="ops"),
        pytest.param(("~c", 5, "value = json_set(value, '$.source', 'another')"), id="source"),
        pytest.param(("~c", 5, "value = CAST(x'ff' AS TEXT)"), id="no text"),
        pytest.param(("~c", 5, "value = json_set(value, '$.at', 2)"), id="time"),
        pytest.param(("~c", 5, "checksum = checksum + 1"), id="checksum"),
        pytest.param(("~s", 4, "value = '5'"), id="snapshot"),
        pytest.param((HEAD, "one", "value = json_set(value, '$.state_version', 3)"), id="state_version"),
        pytest.param((HEAD, "one", "value = json_set(value, '$.created_at', 3)"), id="created_at"),
        pytest.param((HEAD, "one", "value = json_set(value, '$.user', 'eve')"), id="user"),
        pytest.param((HEAD, "one", "value = json_set(value, '$.epoch', 'e2')"), id="epoch"),
        pytest.param((HEAD, "one", "value = CAST(x'ff' AS TEXT)"), id="no text in the thread's row"),
        pytest.param((HEAD, "one", "value = json_set(value, '$.version', 6)"), id="head"),
        pytest.param(("~c", 5, "key = 9"), id="version"),
        pytest.param(("~c", 5, None), id="newest change"),
    ],
)
async def test_a_thread_with_a_damaged_row_is_corrupt_and_the_others_are_not(
    path: Path, damage: tuple[str, str | int, str | None]
) -> None:
    change_row(path, *damage)
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one cannot be read"):
            await store.load(ROOM)
        assert (await versions(store, OTHER))[0] == 5


async def test_a_damaged_change_is_found_in_the_log(path: Path) -> None:
    change_row(path, "~c", 2, "value = json_set(value, '$.at', 2)")
    async with SqliteStore(path) as store:
        for reading in (store.changes(ROOM, after=0), store.changes_before(ROOM, 5), store.load(ROOM, version=3)):
            with pytest.raises(CorruptThread, match="change 2 is damaged"):
                await reading
        assert await versions(store) == (5, [5])


@pytest.mark.parametrize("column", ["'$.ref', 9", "'$.refused', json('[[]]')", "'$.at', 9"])
async def test_what_is_known_of_a_client_is_not_believed_when_it_is_damaged(path: Path, column: str) -> None:
    change_row(path, "~p", "c", f"value = json_set(value, {column})")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one"):
            await store.client(ROOM, "c")
        assert await store.client(OTHER, "c") is not None


@pytest.mark.parametrize("damage", ["value = '2'", "checksum = checksum + 1", "key = 'b'", "part = 'other'"])
async def test_a_damaged_record_is_an_error_and_the_others_are_read(path: Path, damage: str) -> None:
    async with SqliteStore(path) as store:
        for key in (ROOM, OTHER):
            await put(store, put_records(("a", b"1"), ("z", b"2"), after=5, key=key))
    change_row(path, "values", "a", damage)
    part = "other" if "part" in damage else "values"
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one cannot be read: the record"):
            await store.record(ROOM, part, "b" if "key" in damage else "a")
        with pytest.raises(CorruptThread, match="room/one cannot be read: the record"):
            await store.records(ROOM, RecordRange(part))
        found = await store.records_of_each([OTHER, ROOM], (part, "b" if "key" in damage else "a"))
        assert found[1] == [None]
        assert await store.records_of_each([ROOM, OTHER], ("values", "z")) == [[b"2"], [b"2"]]
        assert await store.record(ROOM, "values", "z") == b"2"
        assert len(await store.records(OTHER, RecordRange("values"))) == 2
        assert (await versions(store))[0] == 5


async def test_a_thread_that_is_marked_as_stateless_by_damage_is_corrupt(path: Path) -> None:
    change_row(path, HEAD, "one", "value = json_set(value, '$.is_stateless', json('true'))")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="the thread's own record"):
            await store.load(ROOM)


async def test_a_row_of_another_thread_is_not_taken_for_one_of_this(path: Path) -> None:
    change_file(path, "DELETE FROM rows WHERE thread = 1 AND part = '~c'")
    change_file(path, "UPDATE rows SET thread = 1 WHERE thread = 2 AND part = '~c'")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one"):
            await store.load(ROOM)


async def test_a_bit_that_is_turned_is_an_error_or_changes_nothing(path: Path, tmp_path: Path) -> None:
    async with SqliteStore(path) as store:
        expected = [await load_all(store, key) for key in (ROOM, OTHER)]
    with database(path) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        # A client that is not found by its damaged id is unknown, and a snapshot that is not found is replaced by the
        # one before it; `plait check` finds both.
        (index,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_rows_1'").fetchone()
    data = path.read_bytes()
    places = [at for at, byte in enumerate(data) if byte]
    assert len(data) == pages * 4096
    outcomes = set()
    for number, at in enumerate(random.Random(1).sample(places, 150)):
        damaged = tmp_path / f"damaged-{number}.db"
        damaged.write_bytes(data[:at] + bytes([data[at] ^ 1 << number % 8]) + data[at + 1 :])
        try:
            async with SqliteStore(damaged) as store:
                found = [await load_all(store, key) for key in (ROOM, OTHER)]
        except StoreError as error:
            outcomes.add(type(error))
        else:
            shown = slice(1, 3) if at // 4096 == index - 1 else slice(None)
            assert [each[shown] for each in found] == [each[shown] for each in expected], f"byte {at}"
    assert outcomes == {StoreError, CorruptThread}


async def test_a_thread_that_is_not_found_by_its_name_does_not_begin_anew(path: Path) -> None:
    hide_room(path)
    with pytest.raises(StoreError, match=r"threads\.db: it is damaged: see `plait check"):
        async with SqliteStore(path):
            pass


def test_checksums_stay_as_they_are_in_the_files_of_earlier_versions() -> None:
    rows: list[tuple[int, str, Key, bytes]] = [
        (0, "~thread/room", "séven", b"{}"),
        (7, "~c", 3, '{"source":"séver"}'.encode()),
        (7, "~s", 3, b"{}"),
        (7, "~p", "c", b"{}"),
        (7, "values", "schlüssel", b"\xff"),
    ]
    assert [make_values(row)[-1] for row in rows] == [2953549487, 479615179, 3467449204, 3853600532, 2098006123]
