"""The pages that are read from SQLite's log, compared with those that SQLite itself shows."""

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.parts.sql.wal import PAGE_SIZE, WalReader

Copy = dict[int, bytes]

SIZES = st.integers(0, 60_000)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SIZES),
        st.tuples(st.just("add many"), st.integers(1, 40)),
        st.tuples(st.just("remove"), st.integers(0, 10)),
        st.tuples(st.just("roll back"), st.integers(1, 60)),
        st.tuples(st.sampled_from(["nothing", "shrink", "checkpoint", "table"]), st.just(0)),
    ),
    max_size=25,
)


def open_file(path: Path) -> sqlite3.Connection:
    """Open a file whose transactions spill early."""
    db = sqlite3.connect(path, isolation_level=None)
    pragmas = ("page_size=4096", "auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=OFF")
    for pragma in (*pragmas, "wal_autocheckpoint=0", "cache_size=5"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    return db


def show(db: sqlite3.Connection) -> Copy:
    """Return the pages of a database as SQLite shows them."""
    data = db.serialize()
    return {at // PAGE_SIZE + 1: data[at : at + PAGE_SIZE] for at in range(0, len(data), PAGE_SIZE)}


def follow(log: WalReader, copy: Copy) -> bool:
    """Make the changes of the next commit in a copy, and return whether there was one."""
    if (changed := log.read()) is None:
        return False
    copy.update(changed.pages)
    for number in [number for number in copy if number > changed.size]:
        del copy[number]
    return True


def do(db: sqlite3.Connection, step: str, value: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    match step:
        case "add":
            db.execute("INSERT INTO notes VALUES (?)", ("x" * value,))
        case "add many" | "roll back":
            for number in range(value):
                db.execute("INSERT INTO notes VALUES (?)", (f"{number}" * 3000,))
        case "remove":
            db.execute("DELETE FROM notes WHERE rowid % 10 < ?", (value,))
        case "shrink":
            for _ in range(3):
                db.execute("PRAGMA incremental_vacuum(1)")
        case "table":
            db.execute("DROP TABLE IF EXISTS other")
            db.execute("CREATE TABLE other AS SELECT * FROM notes")
    db.execute("ROLLBACK" if step == "roll back" else "COMMIT")
    if step == "checkpoint":
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@given(STEPS)
def test_a_copy_that_follows_the_commits_has_the_pages_that_sqlite_shows(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder, closing(open_file(Path(folder) / "a")) as db:
        log, copy = WalReader(f"{folder}/a"), Copy()
        for step, value in [("nothing", -1), *steps]:
            if value == -1:
                db.execute("CREATE TABLE notes (text)")
                follow(log, copy)
            else:
                do(db, step, value)
                follow(log, copy)
            assert copy == show(db)
            assert not follow(log, copy)


@pytest.fixture
def file(tmp_path: Path) -> Any:
    with closing(open_file(tmp_path / "a")) as db:
        db.execute("CREATE TABLE notes (text)")
        log = WalReader(str(tmp_path / "a"))
        log.read()
        yield db, log


def fill(db: sqlite3.Connection, size: int) -> None:
    for _ in range(size):
        db.execute("INSERT INTO notes VALUES (?)", ("x" * 3000,))


def test_what_a_rolled_back_transaction_has_spilled_is_no_part_of_later_commits(file: Any) -> None:
    db, log = file
    copy = show(db)
    db.execute("BEGIN")
    fill(db, 300)
    db.execute("ROLLBACK")
    assert log.read() is None
    for number in range(3):
        db.execute("INSERT INTO notes VALUES (?)", (number,))
        assert follow(log, copy)
        assert copy == show(db)


def test_a_log_that_began_again_is_read_from_its_beginning(file: Any) -> None:
    db, log = file
    copy = show(db)
    for _ in range(3):
        fill(db, 1)
        assert follow(log, copy)
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    assert copy == show(db)


def test_all_commits_since_the_last_call_are_read(file: Any) -> None:
    db, log = file
    copy = show(db)
    fill(db, 30)
    db.execute("DELETE FROM notes WHERE rowid < 20")
    assert follow(log, copy)
    assert copy == show(db)
    assert log.read() is None


def test_pages_that_a_commit_has_cut_off_are_not_among_its_pages(file: Any) -> None:
    db, log = file
    fill(db, 50)
    log.read()
    db.execute("DELETE FROM notes")
    log.read()
    before = len(show(db))
    db.execute("BEGIN")
    for _ in range(10):
        db.execute("PRAGMA incremental_vacuum(1)")
    db.execute("COMMIT")
    changed = log.read()
    assert changed is not None
    assert changed.size == before - 10
    assert max(changed.pages) <= changed.size
