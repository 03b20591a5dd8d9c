"""The tables of a SQLite store's file, and what upgrades an older file. Runs in the connections' OS threads."""

import sqlite3
from typing import Final

from plait.errors import StoreError
from plait.store.protocol import connection_id
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["check", "prepare"]

_APPLICATION_ID: Final = 0x706C6169  # "plai"
_SCHEMA_VERSION: Final = 3
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, epoch TEXT NOT NULL,
    state_version INTEGER NOT NULL DEFAULT 1, secret BLOB NOT NULL DEFAULT x'', UNIQUE (kind, name)
) STRICT;
CREATE TABLE snapshots (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, state BLOB NOT NULL, PRIMARY KEY (thread, version)
) STRICT;
CREATE TABLE changes (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, ops BLOB NOT NULL, source TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (thread, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE clients (
    thread INTEGER NOT NULL, client TEXT NOT NULL, ref INTEGER NOT NULL, refused BLOB NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (thread, client)
) STRICT, WITHOUT ROWID;
CREATE TABLE schemas (
    kind TEXT NOT NULL, hash TEXT NOT NULL, schema BLOB NOT NULL, PRIMARY KEY (kind, hash)
) STRICT, WITHOUT ROWID;
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
    # Clients were known by the ids that they join with, whoever was behind them.
    2: """
BEGIN IMMEDIATE;
ALTER TABLE threads ADD COLUMN secret BLOB NOT NULL DEFAULT x'';
UPDATE threads SET secret = randomblob(16);
UPDATE clients SET client = connection_id((SELECT secret FROM threads WHERE id = thread), client);
PRAGMA user_version = 3;
COMMIT;
""",
}


def prepare(db: sqlite3.Connection, synchronous: str) -> None:
    """Make the file ready to be written. Raises StoreError when it is not one of plait's."""
    marks = db.execute("PRAGMA application_id").fetchone(), db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if marks != ((0,), (0,)):
        check(db, may_be_older=True)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA journal_size_limit = 67108864")
    if marks == ((0,), (0,)):
        db.executescript(_SCHEMA)
        return
    db.create_function("connection_id", 2, lambda secret, client: connection_id(secret, SUBPROTOCOL, None, client))
    while upgrade := _UPGRADES.get(db.execute("PRAGMA user_version").fetchone()[0]):
        db.executescript(upgrade)


def check(db: sqlite3.Connection, *, may_be_older: bool = False) -> None:
    """Check that the file is one of plait's. Raises StoreError."""
    if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
        raise StoreError("the store's file is an SQLite database, but not one of plait's")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > _SCHEMA_VERSION:
        raise StoreError(f"the store was written by a newer plait (format {version}, this one knows {_SCHEMA_VERSION})")
    if version < _SCHEMA_VERSION and not may_be_older:
        raise StoreError(
            f"the store has the format of an older plait ({version}): serve it once to bring it up to date"
        )
