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
from plait.store.protocol import ThreadKey
from plait.store.sqlite.checksums import (
    Origin,
    checksum_change,
    checksum_client,
    checksum_record,
    checksum_snapshot,
    checksum_thread,
)
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange

OTHER_OPS = b'[{"op":"replace","path":"","value":9}]'


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
        pytest.param(f"UPDATE changes SET ops = CAST('{OTHER_OPS.decode()}' AS BLOB) WHERE version = 5", id="ops"),
        pytest.param("UPDATE changes SET source = 'another' WHERE version = 5", id="source"),
        pytest.param("UPDATE changes SET source = CAST(x'ff' AS TEXT) WHERE version = 5", id="no text"),
        pytest.param("UPDATE changes SET at = at + 1 WHERE version = 5", id="time"),
        pytest.param("UPDATE changes SET checksum = checksum + 1 WHERE version = 5", id="checksum"),
        pytest.param("UPDATE snapshots SET state = x'35' WHERE version = 4", id="snapshot"),
        pytest.param("UPDATE threads SET state_version = 3", id="state_version"),
        pytest.param("UPDATE threads SET created_at = created_at + 1", id="created_at"),
        pytest.param("UPDATE threads SET user = 'eve'", id="user"),
        pytest.param("UPDATE threads SET epoch = CAST(x'ff' AS TEXT)", id="epoch that is no text"),
        pytest.param("DELETE FROM changes WHERE version = 5", id="newest change"),
        pytest.param("UPDATE threads SET head = 6", id="head"),
    ],
)
async def test_a_thread_with_a_damaged_row_is_corrupt_and_the_others_are_not(path: Path, damage: str) -> None:
    which = "thread = 1" if "WHERE" in damage else "id = 1"
    change_file(path, f"{damage} {'AND' if 'WHERE' in damage else 'WHERE'} {which}")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one cannot be read"):
            await store.load(ROOM)
        assert (await versions(store, OTHER))[0] == 5


async def test_a_damaged_change_is_found_in_the_log(path: Path) -> None:
    change_file(path, "UPDATE changes SET at = at + 1 WHERE version = 2 AND thread = 1")
    async with SqliteStore(path) as store:
        for reading in (store.changes(ROOM, after=0), store.changes_before(ROOM, 5), store.load(ROOM, version=3)):
            with pytest.raises(CorruptThread, match="change 2 is damaged"):
                await reading
        assert await versions(store) == (5, [5])


@pytest.mark.parametrize("column", ["ref = ref + 1", "refused = x'5b5d5d'", "at = at + 1"])
async def test_what_is_known_of_a_client_is_not_believed_when_it_is_damaged(path: Path, column: str) -> None:
    change_file(path, f"UPDATE clients SET {column} WHERE thread = 1")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one"):
            await store.client(ROOM, "c")
        assert await store.client(OTHER, "c") is not None


@pytest.mark.parametrize("damage", ["value = x'32'", "checksum = checksum + 1", "key = 'b'", "part = 'other'"])
async def test_a_damaged_record_is_an_error_and_the_others_are_read(path: Path, damage: str) -> None:
    async with SqliteStore(path) as store:
        for key in (ROOM, OTHER):
            await put(store, put_records(("a", b"1"), ("z", b"2"), after=5, key=key))
    change_file(path, f"UPDATE records SET {damage} WHERE thread = 1 AND key = 'a'")
    part = "other" if "part" in damage else "values"
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one cannot be read: the record"):
            await store.record(ROOM, part, "b" if "key" in damage else "a")
        with pytest.raises(CorruptThread, match="room/one cannot be read: the record"):
            await store.records(ROOM, RecordRange(part))
        found = await store.record_of_each([OTHER, ROOM], part, "b" if "key" in damage else "a")
        assert found[1] is None
        assert await store.record_of_each([ROOM, OTHER], "values", "z") == [b"2", b"2"]
        assert await store.record(ROOM, "values", "z") == b"2"
        assert len(await store.records(OTHER, RecordRange("values"))) == 2
        assert (await versions(store))[0] == 5


async def test_a_thread_that_is_marked_as_stateless_by_damage_is_corrupt(path: Path) -> None:
    change_file(path, "UPDATE threads SET stateless = 1 WHERE id = 1")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="the thread's own record"):
            await store.load(ROOM)


async def test_a_row_of_another_thread_is_not_taken_for_one_of_this(path: Path) -> None:
    change_file(path, "DELETE FROM changes WHERE thread = 1")
    change_file(path, "UPDATE changes SET thread = 1 WHERE thread = 2")
    async with SqliteStore(path) as store:
        with pytest.raises(CorruptThread, match="room/one"):
            await store.load(ROOM)


async def test_a_bit_that_is_turned_is_an_error_or_changes_nothing(path: Path, tmp_path: Path) -> None:
    async with SqliteStore(path) as store:
        expected = [await load_all(store, key) for key in (ROOM, OTHER)]
    with database(path) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        # A client with a damaged id is an unknown client, and a snapshot that is not found is replaced by the one
        # before it; `plait check` finds both.
        roots = db.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name IN ('clients', 'sqlite_autoindex_snapshots_1')"
        )
        others = [root - 1 for (root,) in roots]
    data = path.read_bytes()
    places = [at for at, byte in enumerate(data) if byte and at // 4096 not in others]
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
            assert found == expected, f"byte {at}"
    assert outcomes == {StoreError, CorruptThread}


async def test_a_thread_that_is_not_found_by_its_name_does_not_begin_anew(path: Path) -> None:
    hide_room(path)
    with pytest.raises(StoreError, match=r"threads\.db: it is damaged: see `plait check"):
        async with SqliteStore(path):
            pass


def test_checksums_stay_as_they_are_in_the_files_of_earlier_versions() -> None:
    assert [
        checksum_thread(ThreadKey("room", "séven"), 2, Origin(b"secret", False, 5, "ümit")),
        checksum_change(7, ChangeRow(3, b"[]", "séver", 5)),
        checksum_snapshot(7, 3, b"{}"),
        checksum_client(7, ClientRow("c", 3, b"[]", 5)),
        checksum_record(7, Record("values", "schlüssel", b"{}")),
        checksum_thread(ThreadKey("room", "séven"), 2, Origin(b"secret", True, 5, None)),
    ] == [2133819090, 3312265295, 2974010048, 83830141, 2034502299, 510387454]
