"""The tables of a SQLite store's file, and the rows about the whole file. Runs in the OS threads of the connections."""

import sqlite3
import time
from collections.abc import Mapping
from typing import Final
from zlib import crc32

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.sqlite.file_place import FilePlace, read_place
from plait.store.sqlite.lock import NO_STAMP, FileStamp, LastWrite

__all__ = [
    "LAST_VERSION",
    "begin_new_epochs",
    "check",
    "check_place",
    "check_threads",
    "has_write",
    "load_counter",
    "load_stamp",
    "prepare",
    "rewrite_format",
    "save_heads",
]

_APPLICATION_ID: Final = 0x706C6169  # "plai"
# Files of any other format are refused.
_FORMAT: Final = 8
_CHECK_SECONDS: Final = 1.0
# - threads.head: a recent version of the thread, updated about a second after a change.
# - threads.stateless: 1 if the thread had no state at version 0.
# - threads.due: 0 for never; odd if the thread expires then.
# - threads.changed_at: updated with the head.
# - counter, one row at most: the number of transactions that deleted a thread, or gave no thread a new version.
# - removed: the ids of deleted threads that still have rows.
# - stamp, one row at most: a FileStamp.
# Tables with large rows have row ids: without them, SQLite would rewrite the neighbours of a changed row.
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, epoch TEXT NOT NULL,
    state_version INTEGER NOT NULL, secret BLOB NOT NULL, head INTEGER NOT NULL, checksum INTEGER NOT NULL,
    stateless INTEGER NOT NULL, due INTEGER NOT NULL, created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL, user TEXT, UNIQUE (kind, name)
) STRICT;
CREATE INDEX threads_due ON threads (due, kind, name) WHERE due > 0;
CREATE INDEX threads_created ON threads (kind, created_at, name);
CREATE INDEX threads_changed ON threads (kind, changed_at, name);
CREATE INDEX threads_user ON threads (user, kind, name) WHERE user IS NOT NULL;
CREATE TABLE snapshots (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL, checksum INTEGER NOT NULL,
    UNIQUE (thread, version)
) STRICT;
CREATE TABLE changes (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, ops BLOB NOT NULL, source TEXT NOT NULL, at INTEGER NOT NULL,
    checksum INTEGER NOT NULL, UNIQUE (thread, version)
) STRICT;
CREATE TABLE records (
    thread INTEGER NOT NULL, part TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,
    UNIQUE (thread, part, key)
) STRICT;
CREATE TABLE clients (
    thread INTEGER NOT NULL, client TEXT NOT NULL, ref INTEGER NOT NULL, refused BLOB NOT NULL, at INTEGER NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (thread, client)
) STRICT, WITHOUT ROWID;
CREATE TABLE schemas (
    kind TEXT NOT NULL, hash TEXT NOT NULL, schema BLOB NOT NULL, PRIMARY KEY (kind, hash)
) STRICT, WITHOUT ROWID;
CREATE TABLE counter (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL) STRICT;
CREATE TABLE removed (thread INTEGER PRIMARY KEY) STRICT;
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


def check_threads(db: sqlite3.Connection) -> None:
    """Check the index by which threads are found: a thread missing from it would be created again.

    Gives up after about a second, which is enough for all but very large files. Raises sqlite3.DatabaseError.
    """
    deadline = time.monotonic() + _CHECK_SECONDS
    db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
    try:
        (found,) = db.execute("PRAGMA integrity_check(threads)").fetchone()
    except sqlite3.OperationalError:  # Interrupted.
        return
    finally:
        db.set_progress_handler(None, 0)
    if found != "ok":
        raise sqlite3.DatabaseError(f"malformed: {found}")


LAST_VERSION: Final = """max(
    coalesce((SELECT max(version) FROM snapshots WHERE thread = t.id), 0),
    coalesce((SELECT max(version) FROM changes WHERE thread = t.id), 0))
"""
"""SQL for the newest version in the rows of the thread `t`."""


def begin_new_epochs(db: sqlite3.Connection) -> None:
    """Give each thread a new epoch, so that no client resumes from a version that this file does not have."""
    db.execute("UPDATE threads SET epoch = lower(hex(randomblob(8)))")


def rewrite_format(db: sqlite3.Connection) -> None:
    """Write the format's number again: the smallest possible write."""
    db.execute(f"PRAGMA user_version = {_FORMAT}")


def save_heads(db: sqlite3.Connection, heads: Mapping[int, tuple[int, int]], stamp: FileStamp) -> None:
    """Store the versions and the times of the last changes of threads, by row id, and a stamp, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        values = [(*head, id) for id, head in heads.items()]
        db.executemany("UPDATE threads SET head = ?, changed_at = ? WHERE id = ?", values)
        db.execute("INSERT OR REPLACE INTO stamp (id, server, step) VALUES (0, ?, ?)", stamp)
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def load_stamp(db: sqlite3.Connection) -> FileStamp:
    """Return the stamp that the last server has written; `NO_STAMP` if there is none."""
    return FileStamp(*(db.execute("SELECT server, step FROM stamp").fetchone() or NO_STAMP))


def load_counter(db: sqlite3.Connection) -> int:
    """Return how often the counter was incremented."""
    found = db.execute("SELECT value FROM counter").fetchone()
    return 0 if found is None else found[0]


def has_write(db: sqlite3.Connection, write: LastWrite) -> bool:
    """Whether the file has this write."""
    counter = load_counter(db)
    if counter != write.counter or not write.thread:
        # A later write that incremented the counter may have deleted the thread.
        return counter >= write.counter
    found = db.execute(f"SELECT {LAST_VERSION}, t.epoch FROM threads t WHERE t.id = ?", (write.thread,)).fetchone()
    return found is not None and found[0] >= write.version and crc32(found[1].encode()) == write.epoch
