"""The tables of a SQLite store's file, and the upgrades of older files. Runs in the OS threads of the connections."""

import sqlite3
import time
from typing import Final

from plait.errors import StoreError
from plait.store.checksums import checksum_thread
from plait.store.lock import LAST
from plait.store.protocol import ThreadKey, connection_id
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["begin_new_epochs", "check", "check_threads", "prepare", "rewrite_version"]

_APPLICATION_ID: Final = 0x706C6169  # "plai"
_SCHEMA_VERSION: Final = 5
_CHECK_SECONDS: Final = 1.0
# A row without a checksum was written in an older format. `head` is a recent version of the thread: it is updated
# about a second after a change. `stateless` is 1 for a thread that had no state at version 0. `idle_since` is NULL
# while the thread is awake, and where the class has no `expires_after`. `counter` has at most one row: the number of
# transactions that deleted a thread, or after which no thread had a newer version. `removed` has the ids of deleted
# threads whose rows are not all removed. Large rows have row ids: otherwise SQLite would rewrite neighbouring rows.
_RECORDS: Final = """
CREATE TABLE records (
    thread INTEGER NOT NULL, part TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, checksum INTEGER NOT NULL,
    UNIQUE (thread, part, key)
) STRICT;
"""
_CHANGES: Final = """
CREATE TABLE changes (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, ops BLOB NOT NULL, source TEXT NOT NULL, at INTEGER NOT NULL,
    checksum INTEGER, UNIQUE (thread, version)
) STRICT;
"""
_ADDED_IN_4: Final = f"""
{_RECORDS}
CREATE TABLE counter (id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL) STRICT;
CREATE INDEX threads_idle ON threads (kind, idle_since, name) WHERE idle_since IS NOT NULL;
CREATE INDEX threads_not_idle ON threads (kind) WHERE idle_since IS NULL;
"""
_ADDED_IN_5: Final = """
CREATE TABLE removed (thread INTEGER PRIMARY KEY) STRICT;
CREATE TABLE origin (id INTEGER PRIMARY KEY CHECK (id = 0), run INTEGER NOT NULL, step INTEGER NOT NULL) STRICT;
"""
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, epoch TEXT NOT NULL,
    state_version INTEGER NOT NULL DEFAULT 1, secret BLOB NOT NULL DEFAULT x'', head INTEGER NOT NULL DEFAULT 0,
    checksum INTEGER, stateless INTEGER NOT NULL DEFAULT 0, idle_since INTEGER, UNIQUE (kind, name)
) STRICT;
CREATE TABLE snapshots (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL, checksum INTEGER,
    PRIMARY KEY (thread, version)
) STRICT;
{_CHANGES}
CREATE TABLE clients (
    thread INTEGER NOT NULL, client TEXT NOT NULL, ref INTEGER NOT NULL, refused BLOB NOT NULL, at INTEGER NOT NULL,
    checksum INTEGER, PRIMARY KEY (thread, client)
) STRICT, WITHOUT ROWID;
CREATE TABLE schemas (
    kind TEXT NOT NULL, hash TEXT NOT NULL, schema BLOB NOT NULL, PRIMARY KEY (kind, hash)
) STRICT, WITHOUT ROWID;
{_ADDED_IN_4}
{_ADDED_IN_5}
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_SCHEMA_VERSION};
COMMIT;
"""
# From each format to the next.
_UPGRADES: Final = {
    1: """
BEGIN IMMEDIATE;
ALTER TABLE threads ADD COLUMN state_version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE snapshots RENAME TO snapshots_1;
CREATE TABLE snapshots (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (thread, version)
) STRICT;
INSERT INTO snapshots SELECT thread, version, state FROM snapshots_1;
DROP TABLE snapshots_1;
CREATE TABLE clients (
    thread INTEGER NOT NULL, client TEXT NOT NULL, ref INTEGER NOT NULL, refused BLOB NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (thread, client)
) STRICT, WITHOUT ROWID;
CREATE TABLE schemas (
    kind TEXT NOT NULL, hash TEXT NOT NULL, schema BLOB NOT NULL, PRIMARY KEY (kind, hash)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 2;
COMMIT;
""",
    # In format 2 the id of a client was the one that it joined with, and did not depend on its principal.
    2: f"""
BEGIN IMMEDIATE;
ALTER TABLE threads ADD COLUMN secret BLOB NOT NULL DEFAULT x'';
ALTER TABLE threads ADD COLUMN head INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN checksum INTEGER;
ALTER TABLE snapshots ADD COLUMN checksum INTEGER;
ALTER TABLE changes ADD COLUMN checksum INTEGER;
ALTER TABLE clients ADD COLUMN checksum INTEGER;
UPDATE threads SET secret = randomblob(16);
UPDATE threads AS t SET head = {LAST}, checksum = checksum_thread(kind, name, state_version, secret);
UPDATE clients SET client = connection_id((SELECT secret FROM threads WHERE id = thread), client);
PRAGMA user_version = 3;
COMMIT;
""",
    3: f"""
BEGIN IMMEDIATE;
ALTER TABLE threads ADD COLUMN stateless INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN idle_since INTEGER;
{_ADDED_IN_4}
PRAGMA user_version = 4;
COMMIT;
""",
    # In format 4 these tables had no row ids.
    4: f"""
BEGIN IMMEDIATE;
ALTER TABLE changes RENAME TO changes_4;
ALTER TABLE records RENAME TO records_4;
{_CHANGES}
{_RECORDS}
INSERT INTO changes (thread, version, ops, source, at, checksum)
    SELECT thread, version, ops, source, at, checksum FROM changes_4 ORDER BY thread, version;
INSERT INTO records (thread, part, key, value, checksum)
    SELECT thread, part, key, value, checksum FROM records_4 ORDER BY thread, part, key;
DROP TABLE changes_4;
DROP TABLE records_4;
{_ADDED_IN_5}
PRAGMA user_version = 5;
COMMIT;
""",
}


def prepare(db: sqlite3.Connection, synchronous: str) -> None:
    """Create the tables, or upgrade an older file. Raises StoreError for a file that plait did not write."""
    marks = db.execute("PRAGMA application_id").fetchone(), db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if marks != ((0,), (0,)):
        check(db, may_be_older=True)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA journal_size_limit = 67108864")
    if marks == ((0,), (0,)):
        db.executescript(_SCHEMA)
        return
    # SQLite opens a read-only file without an error: write something, to get the error here.
    db.execute("BEGIN")
    db.execute("PRAGMA user_version = 0")
    db.execute("ROLLBACK")
    db.create_function("connection_id", 2, lambda secret, client: connection_id(secret, SUBPROTOCOL, None, client))
    db.create_function("checksum_thread", 4, lambda kind, name, *rest: checksum_thread(ThreadKey(kind, name), *rest))
    while upgrade := _UPGRADES.get(db.execute("PRAGMA user_version").fetchone()[0]):
        db.executescript(upgrade)


def check(db: sqlite3.Connection, *, may_be_older: bool = False) -> None:
    """Check that plait wrote the file. Raises StoreError, or sqlite3.DatabaseError for a damaged one."""
    tables, roots = db.execute("SELECT count(*), count(DISTINCT rootpage) FROM sqlite_schema").fetchone()
    if roots < tables:
        raise sqlite3.DatabaseError("malformed: two tables are in the same place")
    if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
        raise StoreError("it is an SQLite database, but not one of plait's: name another file")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > _SCHEMA_VERSION:
        raise StoreError(
            f"it was written by a newer plait (format {version}, this plait reads up to {_SCHEMA_VERSION}): install "
            "the newer plait, or restore a backup"
        )
    if version < _SCHEMA_VERSION and not may_be_older:
        raise StoreError(f"it has the format of an older plait ({version}): serve it once to upgrade it")


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
    db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
