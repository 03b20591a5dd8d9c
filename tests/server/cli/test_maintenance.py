"""Looking after a store's file."""

from pathlib import Path

import pytest
from tests.server.store.contract import OTHER, ROOM, beginning, change, client_row, put
from tests.server.store.sqlite.test_store import change_file, database, hide_room

from plait.cli.maintenance import check_store
from plait.errors import StoreError
from plait.store.protocol import Write
from plait.store.rows.engine import Key
from plait.store.sqlite.store import SqliteStore
from plait.store.sqlite.table import make_values, write_one

SET = "value = json_set(value,"
ONE = "WHERE part = '~thread/room' AND key = 'one'"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return a closed store's file with two threads; the first has rows of every kind."""
    path = tmp_path / "threads.db"
    async with SqliteStore(path) as store:
        await put(store, beginning(), *(change(n, client=client_row("c", n)) for n in range(1, 4)))
        await put(store, change(4, snapshot=b"4"), change(5), beginning(key=OTHER))
    return path


def problems(path: Path) -> list[str]:
    """Return the lines of damage, and look at the last line."""
    *lines, (verdict, is_damage) = check_store(path)
    assert not is_damage
    assert all(each for _, each in lines)
    count = len(lines)
    assert verdict.startswith(f"{path}: ")
    assert verdict.endswith(f", {count} damaged place{'s' if count > 1 else ''}" if count else ", nothing is damaged")
    return [line for line, _ in lines]


async def test_a_sound_store_is_all_read_also_while_a_server_has_it_open(path: Path) -> None:
    assert problems(path) == []
    async with SqliteStore(path) as store:
        await put(store, change(6))
        assert [line for line, _ in check_store(path)] == [f"{path}: 2 threads, 6 changes, nothing is damaged"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE rows SET value = value || ' ' WHERE part = '~c' AND key = 2", "change 2 is damaged"),
        ("DELETE FROM rows WHERE part = '~c' AND key = 2", "changes are missing between versions 1 and 3"),
        ("DELETE FROM rows WHERE part = '~c' AND key = 5", "changes are missing after version 4, up to 5"),
        ("UPDATE rows SET value = '5' WHERE part = '~s' AND key = 4", "the snapshot of version 4 is damaged"),
        (
            "DELETE FROM rows WHERE part = '~s' AND thread = 2",
            "room/two cannot be read: neither a snapshot nor changes",
        ),
        (f"UPDATE rows SET {SET} '$.ref', 9) WHERE part = '~p'", "the record of a client's pushes is damaged"),
        ("UPDATE rows SET key = 'd' WHERE part = '~p'", "the record of a client's pushes is damaged"),
        (f"UPDATE rows SET {SET} '$.state_version', 7) {ONE}", "room/one cannot be read: the thread's own record is"),
        (f"UPDATE rows SET key = 'three' {ONE}", "room/three cannot be read: the thread's own record"),
        (f"UPDATE rows SET key = CAST(x'ff' AS TEXT) {ONE}", "room/\ufffd cannot be read"),
        ("DELETE FROM rows WHERE part = '~thread/room' AND key = 'two'", "1 row belongs to no thread"),
        ("DELETE FROM rows WHERE part = '~created/room' AND key LIKE '%one'", "room/one is missing in ~created/room"),
        ("UPDATE rows SET value = 1 WHERE part = '~changed/room' AND key LIKE '%one'", "of ~changed/room is damaged"),
        ("UPDATE rows SET value = '1' WHERE part = '~number'", "the row 'next' of ~number is damaged"),
    ],
)
async def test_what_is_damaged_is_said_and_nothing_else(path: Path, damage: str, said: str) -> None:
    change_file(path, damage)
    (line,) = problems(path)
    assert said in line


@pytest.mark.parametrize("row", [(1, "~c", 2, b'{"at":1,"source":"server","ops":{}'), (1, "~s", 0, b"{")])
async def test_a_row_that_is_not_json_is_damage_though_its_checksum_is_right(
    path: Path, row: tuple[int, str, Key, bytes]
) -> None:
    with database(path) as db:
        db.execute("DELETE FROM rows WHERE thread = ? AND part = ? AND key = ?", row[:3])
        write_one(db, make_values(row))
    (line,) = problems(path)
    assert "room/one cannot be read: " in line
    assert "is damaged" not in line


async def test_all_damage_is_said(path: Path) -> None:
    change_file(path, "UPDATE rows SET value = value || ' ' WHERE part = '~c'")
    assert len(problems(path)) == 5


async def test_a_state_to_which_the_changes_do_not_lead_is_damage(path: Path) -> None:
    ops = b'[{"op":"remove","path":"/nowhere"}]'
    async with SqliteStore(path) as store:
        (bad,) = change(6).changes
        await put(store, Write(ROOM, "e1", 5, 6, (type(bad)(6, ops, "server", 1),)))
    (line,) = problems(path)
    assert "room/one cannot be read" in line


async def test_damage_to_sqlites_own_structures_is_said(path: Path) -> None:
    hide_room(path)
    lines = problems(path)
    assert any(line.startswith("SQLite: ") for line in lines)
    assert any("room/one cannot be found by its name" in line for line in lines)


@pytest.mark.parametrize("content", [None, b"no database " * 1000, b""])
def test_what_is_no_store_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "threads.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=f"cannot open the store {path}: "):
        list(check_store(path))
