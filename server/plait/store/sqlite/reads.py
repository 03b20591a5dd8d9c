"""The SQL statements that read a SQLite store's file. Runs in the OS threads of the connections."""

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from typing import Final

from plait.errors import CorruptThread
from plait.store.page import take_page
from plait.store.protocol import StoredThread, ThreadHeader, ThreadKey
from plait.store.sqlite.checksums import read_change, read_client, read_records, read_snapshot, read_thread
from plait.store.sqlite.schema import LAST_VERSION
from plait.store.thread_rows import KNOWN_CLIENTS, ChangeRow, ClientRow, Record, RecordRange

__all__ = [
    "find",
    "find_end",
    "list_snapshots",
    "load",
    "load_changes",
    "load_client",
    "load_clients",
    "load_page",
    "load_record",
    "load_record_of_each",
    "load_records",
    "load_schema",
    "load_schemas",
    "read_transaction",
    "save_schema",
]

_FIND: Final = f"""
SELECT t.epoch, {LAST_VERSION}, t.created_at, t.user, t.due, t.changed_at FROM threads t WHERE t.kind = ? AND t.name = ?
"""
_THREAD: Final = f"""
SELECT t.id, t.epoch, {LAST_VERSION}, t.due, t.head, t.state_version, t.secret, t.stateless, t.created_at, t.user,
    t.checksum
FROM threads t WHERE t.kind = ? AND t.name = ?
"""
_CHANGES: Final = "SELECT version, ops, source, at, checksum FROM changes WHERE thread = ?"
_RECORDS: Final = "SELECT key, value, checksum FROM records WHERE thread = ? AND part = ?"
_PAGE: Final = """
SELECT part, key, value, checksum FROM records WHERE thread = ? AND (part, key) > (?, ?) ORDER BY part, key LIMIT ?
"""


@contextmanager
def read_transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Make all statements of the block see the same state of the file. Blocks can be nested.

    Without it, a statement could find another thread under the row id of a deleted one.
    """
    if db.in_transaction:
        yield
        return
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:  # SQLite ends it by itself after some errors.
            db.execute("COMMIT")


def load(
    db: sqlite3.Connection, key: ThreadKey, version: int | None, ranges: Sequence[RecordRange] = ()
) -> StoredThread | None:
    """Return a thread, at `version` if one is given, with the records of ranges. Raises CorruptThread."""
    with read_transaction(db):
        found = db.execute(_THREAD, key).fetchone()
        if found is None:
            return None
        thread, epoch, last, due = found[:4]
        to = last if version is None else version
        snapshot = db.execute(
            "SELECT version, state, checksum FROM snapshots WHERE thread = ? AND version <= ?"
            " ORDER BY version DESC LIMIT 1",
            (thread, to),
        ).fetchone()
        since = snapshot[0] if snapshot else 0
        rows = db.execute(f"{_CHANGES} AND version > ? AND version <= ? ORDER BY version", (thread, since, to))
        changes = [read_change(key, thread, row) for row in rows]
        (oldest,) = db.execute("SELECT min(version) FROM snapshots WHERE thread = ?", (thread,)).fetchone()
        clients = _load_clients(db, thread) if version is None else None
        records = tuple(_load_range(db, key, thread, each) for each in ranges)
    head, state_version, origin = read_thread(key, found[4:])
    if type(last) is not int or last < head:
        raise CorruptThread(f"{key} cannot be read: changes are missing after version {last}, up to {head}")
    if version is not None and not (oldest or 0) <= version <= last:
        return None
    state = None if snapshot is None else read_snapshot(key, thread, snapshot)
    if snapshot is None and not changes and not (origin.is_stateless and to == 0):
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are stored")
    if len(changes) != to - since or any(row.version != since + n for n, row in enumerate(changes, 1)):
        raise CorruptThread(f"{key} cannot be read: changes are missing between versions {since} and {to}")
    return StoredThread(
        *(epoch, to, state, changes, state_version, origin.secret, clients),
        *(due, origin.created_at, origin.user, records),
    )


def _load_clients(db: sqlite3.Connection, thread: int) -> frozenset[str] | None:
    """Return the ids of the clients that have a row; None if there are too many."""
    # Read them as bytes: a damaged id must not prevent the thread from waking.
    rows = db.execute("SELECT CAST(client AS BLOB) FROM clients WHERE thread = ? LIMIT ?", (thread, KNOWN_CLIENTS + 1))
    found = [bytes(client).decode(errors="replace") for (client,) in rows]
    return frozenset(found) if len(found) <= KNOWN_CLIENTS else None


def find(db: sqlite3.Connection, key: ThreadKey) -> ThreadHeader | None:
    """Return the header of a thread; None if there is none."""
    found = db.execute(_FIND, key).fetchone()
    return None if found is None else ThreadHeader(*found)


def load_changes(
    db: sqlite3.Connection, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool = False
) -> list[ChangeRow]:
    """Return changes after a version, in order, or those before it, newest first."""
    which = f"AND version {'<' if is_reverse else '>'} ? ORDER BY version {'DESC' if is_reverse else ''} LIMIT ?"
    with read_transaction(db):
        if (thread := _find(db, key)) is None:
            return []
        with closing(db.execute(f"{_CHANGES} {which}", (thread, version, limit))) as rows:
            return take_page((read_change(key, thread, row) for row in rows), lambda row: len(row.ops), size)


def load_client(db: sqlite3.Connection, key: ThreadKey, client: str) -> ClientRow | None:
    """Return the row of a client; None if there is none."""
    row = db.execute(
        "SELECT c.thread, c.client, c.ref, c.refused, c.at, c.checksum FROM clients c"
        " JOIN threads t ON t.id = c.thread WHERE t.kind = ? AND t.name = ? AND c.client = ?",
        (*key, client),
    ).fetchone()
    return read_client(key, row[0], row[1:]) if row else None


def load_clients(db: sqlite3.Connection, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
    """Return the rows of a thread's clients after one. Raises CorruptThread."""
    rows = db.execute(
        "SELECT c.thread, c.client, c.ref, c.refused, c.at, c.checksum FROM clients c JOIN threads t ON t.id = c.thread"
        " WHERE t.kind = ? AND t.name = ? AND c.client > ? ORDER BY c.client LIMIT ?",
        (*key, after, limit),
    )
    return [read_client(key, row[0], row[1:]) for row in rows]


def list_snapshots(db: sqlite3.Connection, key: ThreadKey) -> list[int]:
    """Return the versions of a thread's snapshots."""
    rows = db.execute("SELECT version FROM snapshots WHERE thread = ?", (_find(db, key),))
    return [version for (version,) in rows]


def load_record(db: sqlite3.Connection, key: ThreadKey, part: str, name: str) -> bytes | None:
    """Return the value of a record; None if there is none. Raises CorruptThread."""
    with read_transaction(db):
        if (thread := _find(db, key)) is None:
            return None
        rows = db.execute(f"{_RECORDS} AND key = ?", (thread, part, name))
        found = read_records(key, thread, part, rows)
    return found[0].value if found else None


def load_record_of_each(db: sqlite3.Connection, keys: Sequence[ThreadKey], part: str, name: str) -> list[bytes | None]:
    """Return the values of one record of several threads; None for one that is missing or damaged."""
    found: list[bytes | None] = []
    with read_transaction(db):
        for key in keys:
            try:
                found.append(load_record(db, key, part, name))
            except CorruptThread:
                found.append(None)
    return found


def load_records(db: sqlite3.Connection, key: ThreadKey, wanted: RecordRange) -> list[Record]:
    """Return the records of a range. Raises CorruptThread."""
    with read_transaction(db):
        if (thread := _find(db, key)) is None:
            return []
        return _load_range(db, key, thread, wanted)


def _load_range(db: sqlite3.Connection, key: ThreadKey, thread: int, wanted: RecordRange) -> list[Record]:
    part, prefix, after, before, size = wanted.part, wanted.prefix, wanted.after, wanted.before, wanted.size
    # Use one bound for each end: with two, SQLite would search by one of them and scan the rows beyond the other.
    which, values = f"{_RECORDS} AND key {'>' if after >= prefix else '>='} ?", [thread, part, max(after, prefix)]
    ends = [end for end in (before, find_end(prefix)) if end is not None]
    if ends:
        which, values = f"{which} AND key < ?", [*values, min(ends)]
    which = f"{which} ORDER BY key {'DESC' if wanted.reverse else ''} LIMIT ?"
    with closing(db.execute(which, (*values, wanted.limit))) as rows:
        return read_records(key, thread, part, rows, size=size)


def find_end(prefix: str) -> str | None:
    """Return the first string after all that begin with `prefix`, by code points; None if there is none."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    # SQLite cannot store the halves of surrogate pairs.
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)


def load_page(db: sqlite3.Connection, key: ThreadKey, after: tuple[str, str], limit: int, size: int) -> list[Record]:
    """Return records of all parts after a part and a key. Raises CorruptThread."""
    found: list[Record] = []
    with read_transaction(db):
        if (thread := _find(db, key)) is None:
            return []
        with closing(db.execute(_PAGE, (thread, *after, limit))) as rows:
            for part, of_part in groupby(rows, key=lambda row: row[0]):
                left = size - sum(len(record.value or b"") for record in found)
                if left <= 0:
                    break
                found += read_records(key, thread, part, (row[1:] for row in of_part), size=left)
    return found


def load_schema(db: sqlite3.Connection, kind: str, hash: str) -> bytes | None:
    """Return a stored schema; None if there is none."""
    row = db.execute("SELECT schema FROM schemas WHERE kind = ? AND hash = ?", (kind, hash)).fetchone()
    return row[0] if row else None


def load_schemas(db: sqlite3.Connection) -> list[tuple[str, str, bytes]]:
    """Return all stored schemas, each with its kind and hash."""
    return db.execute("SELECT kind, hash, schema FROM schemas ORDER BY kind, hash").fetchall()


def save_schema(db: sqlite3.Connection, kind: str, hash: str, schema: bytes) -> None:
    """Store a schema, in a transaction of its own."""
    db.execute("INSERT OR IGNORE INTO schemas (kind, hash, schema) VALUES (?, ?, ?)", (kind, hash, schema))


def _find(db: sqlite3.Connection, key: ThreadKey) -> int | None:
    """Return the row id of a thread; None if there is none."""
    found = db.execute("SELECT id FROM threads WHERE kind = ? AND name = ?", key).fetchone()
    return None if found is None else found[0]
