"""The tables of a SQLite store's file. Runs in the OS threads of the connections."""

import sqlite3
import time
from typing import Final

from plait.errors import StoreError

__all__ = ["begin_new_epochs", "check", "check_threads", "prepare", "rewrite_version"]

_APPLICATION_ID: Final = 0x706C6169  # "plai"
# Files of any other format are refused.
_FORMAT: Final = 6
_CHECK_SECONDS: Final = 1.0
# `head` is a recent version of the thread: it is updated about a second after a change. `stateless` is 1 for a thread
# that had no state at version 0. `idle_since` is NULL while the thread is awake, and where the class has no
# `expires_after`. `counter` has at most one row: the number of transactions that deleted a thread, or after which no
# thread had a newer version. `removed` has the ids of deleted threads whose rows are not all removed. `origin` has at
# most one row: the `Origin` of lock.py. Large rows have row ids: otherwise SQLite would rewrite neighbouring rows.
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, epoch TEXT NOT NULL,
    state_version INTEGER NOT NULL, secret BLOB NOT NULL, head INTEGER NOT NULL, checksum INTEGER NOT NULL,
    stateless INTEGER NOT NULL, idle_since INTEGER, UNIQUE (kind, name)
) STRICT;
CREATE INDEX threads_idle ON threads (kind, idle_since, name) WHERE idle_since IS NOT NULL;
CREATE INDEX threads_not_idle ON threads (kind) WHERE idle_since IS NULL;
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
CREATE TABLE origin (id INTEGER PRIMARY KEY CHECK (id = 0), run INTEGER NOT NULL, step INTEGER NOT NULL) STRICT;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT};
COMMIT;
"""


def prepare(db: sqlite3.Connection, synchronous: str) -> None:
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
        db.executescript(_SCHEMA)
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
    if version > _FORMAT:
        raise StoreError(
            f"it was written by a newer plait (in format {version}; this plait reads format {_FORMAT}): install the "
            "newer plait, or restore a backup"
        )
    if version < _FORMAT:
        raise StoreError(
            f"it was written by an earlier build of plait (in format {version}; this plait reads format {_FORMAT}): "
            "move it to another folder to begin with an empty store, or install the build that wrote it"
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


def begin_new_epochs(db: sqlite3.Connection) -> None:
    """Give each thread a new epoch, so that no client resumes from a version that this file does not have."""
    db.execute("UPDATE threads SET epoch = lower(hex(randomblob(8)))")


def rewrite_version(db: sqlite3.Connection) -> None:
    """Write a value that the file has already: the smallest possible write."""
    db.execute(f"PRAGMA user_version = {_FORMAT}")
