"""The tables of a SQLite store's file, and the rows about the whole file. Runs in the OS threads of the connections."""

import sqlite3
import time
from contextlib import closing
from itertools import zip_longest
from typing import Final

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.rows.parts import CHANGE, SNAPSHOT
from plait.store.sqlite.file_place import FilePlace, read_place
from plait.store.sqlite.lock import NO_STAMP, FileStamp, LastWrite

__all__ = [
    "HEADS",
    "check",
    "check_index",
    "check_place",
    "has_write",
    "increment_counter",
    "load_counter",
    "load_stamp",
    "prepare",
    "rewrite_format",
    "save_stamp",
]

HEADS: Final = "thread = 0 AND part >= '~thread/' AND part < '~thread0'"
"""The SQL that selects the rows of threads."""

_APPLICATION_ID: Final = 0x706C6169  # "plai"
# Files of another format are refused. Each kind of row has a format of its own, too.
_FORMAT: Final = 9
_CHECK_SECONDS: Final = 1.0
# - rows.thread: 0 for the index, or the number of a space. rows.value is text if it is UTF-8, such as JSON.
# - counter, one row at most: the number of transactions that LastWrite identifies by it.
# - stamp, one row at most: a FileStamp.
# - threads: beside the index of the table, by which rows are found, so that damage to either is noticed.
# The table has row ids: without them, SQLite would rewrite the neighbours of a changed row.
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE rows (
    thread INTEGER NOT NULL, part TEXT NOT NULL, key ANY NOT NULL, value ANY NOT NULL, checksum INTEGER NOT NULL,
    UNIQUE (thread, part, key)
) STRICT;
CREATE UNIQUE INDEX threads ON rows (part, key) WHERE thread = 0;
CREATE TABLE counter (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL) STRICT;
CREATE TABLE stamp (id INTEGER PRIMARY KEY CHECK (id = 0), server INTEGER NOT NULL, step INTEGER NOT NULL) STRICT;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
"""
# The place of the file, if it is one of several.
_PLACE: Final = """
CREATE TABLE place (
    id INTEGER PRIMARY KEY CHECK (id = 0), number INTEGER NOT NULL, count INTEGER NOT NULL
) STRICT;
INSERT INTO place VALUES (0, {number}, {count});
"""
_INCREMENT_COUNTER: Final = """
INSERT INTO counter (id, value) VALUES (0, 1) ON CONFLICT (id) DO UPDATE SET value = value + 1 RETURNING value
"""
_FOUND: Final = "SELECT rowid, part, key FROM rows INDEXED BY {} WHERE thread = 0 ORDER BY part, key"
_LAST_VERSION: Final = "SELECT max(key) FROM rows WHERE thread = ? AND part IN (?, ?)"


def prepare(db: sqlite3.Connection, synchronous: str, place: FilePlace) -> None:
    """Create the tables in an empty file. Raises StoreError for a file that this plait did not write."""
    is_empty = db.execute("PRAGMA application_id").fetchone() == (0,) and db.execute(
        "SELECT count(*) FROM sqlite_schema"
    ).fetchone() == (0,)
    if not is_empty:
        check(db)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA journal_size_limit = 67108864")
    if is_empty:
        in_place = _PLACE.format(number=place.number, count=place.count) if place.count > 1 else ""
        db.executescript(f"{_SCHEMA}{in_place}COMMIT;")
        return
    # SQLite opens a read-only file without an error: write something, to get the error here.
    db.execute("BEGIN")
    db.execute("PRAGMA user_version = 0")
    db.execute("ROLLBACK")


def check(db: sqlite3.Connection) -> None:
    """Check that this plait can read the file. Raises StoreError, or sqlite3.DatabaseError for a damaged one."""
    tables, roots = db.execute("SELECT count(*), count(DISTINCT rootpage) FROM sqlite_schema").fetchone()
    if roots < tables:
        raise sqlite3.DatabaseError("malformed: two tables are in the same place")
    if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
        raise StoreError("it is an SQLite database, but not one of plait's: name another file")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    check_format(version, _FORMAT)


def check_place(db: sqlite3.Connection, place: FilePlace) -> None:
    """Check that the file is at its place among the files of its store. Raises StoreError."""
    if (stored := read_place(db)) == place:
        return
    if stored.count == 1:
        raise StoreError(
            f"it is not file {place.number} of a store of {place.count} files: put back the one that was here"
        )
    raise StoreError(
        f"it is file {stored.number} of a store of {stored.count} files: open the store without a number in its name"
    )


def check_index(db: sqlite3.Connection) -> None:
    """Check the index by which threads are found: a thread missing from it would be created again.

    Gives up after about a second, which is enough for all but very large files. Raises sqlite3.DatabaseError.
    """
    deadline = time.monotonic() + _CHECK_SECONDS
    db.text_factory = bytes
    try:
        with (
            closing(db.execute(_FOUND.format("sqlite_autoindex_rows_1"))) as by_all,
            closing(db.execute(_FOUND.format("threads"))) as by_name,
        ):
            for number, (found, expected) in enumerate(zip_longest(by_all, by_name)):
                if found != expected:
                    raise sqlite3.DatabaseError("malformed: an index has other rows than the other one")
                if number % 1000 == 0 and time.monotonic() > deadline:
                    return
    finally:
        db.text_factory = str


def rewrite_format(db: sqlite3.Connection) -> None:
    """Write the format's number again: the smallest possible write."""
    db.execute(f"PRAGMA user_version = {_FORMAT}")


def save_stamp(db: sqlite3.Connection, stamp: FileStamp) -> None:
    """Store the stamp of the file."""
    db.execute("INSERT OR REPLACE INTO stamp (id, server, step) VALUES (0, ?, ?)", stamp)


def load_stamp(db: sqlite3.Connection) -> FileStamp:
    """Return the stamp that the last server has written; `NO_STAMP` if there is none."""
    return FileStamp(*(db.execute("SELECT server, step FROM stamp").fetchone() or NO_STAMP))


def increment_counter(db: sqlite3.Connection) -> int:
    """Increment the counter, and return it."""
    ((found,),) = db.execute(_INCREMENT_COUNTER).fetchall()
    return int(found)


def load_counter(db: sqlite3.Connection) -> int:
    """Return how often the counter was incremented."""
    found = db.execute("SELECT value FROM counter").fetchone()
    return 0 if found is None else found[0]


def has_write(db: sqlite3.Connection, write: LastWrite) -> bool:
    """Whether the file has this write."""
    counter = load_counter(db)
    if counter != write.counter or not write.space:
        # A later write that incremented the counter may have deleted the thread.
        return counter >= write.counter
    (found,) = db.execute(_LAST_VERSION, (write.space, CHANGE, SNAPSHOT)).fetchone()
    return found is not None and found >= write.version
