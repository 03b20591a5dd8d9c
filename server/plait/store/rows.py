"""The SQL statements that read and write a SQLite store's file. Runs in the OS threads of the connections."""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from plait.errors import CorruptThread, StoreError
from plait.store.checksums import (
    checksum_change,
    checksum_client,
    checksum_snapshot,
    checksum_thread,
    read_change,
    read_client,
    read_snapshot,
    read_thread,
)
from plait.store.lock import LAST
from plait.store.page import take_page
from plait.store.protocol import (
    CLIENT_DAYS,
    DAY,
    ChangeRow,
    ClientRow,
    Prune,
    Stored,
    ThreadKey,
    ThreadRow,
    Write,
)

__all__ = [
    "Head",
    "Heads",
    "commit",
    "load",
    "load_changes",
    "load_changes_before",
    "load_client",
    "load_schema",
    "load_threads",
    "save_schema",
]

_INSERT_CHANGE: Final = "INSERT INTO changes (thread, version, ops, source, at, checksum) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_CLIENT: Final = """
INSERT OR REPLACE INTO clients (thread, client, ref, refused, at, checksum) VALUES (?, ?, ?, ?, ?, ?)
"""
_INSERT_THREAD: Final = """
INSERT INTO threads (kind, name, epoch, state_version, secret, head, checksum) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SET_STATE_VERSION: Final = "UPDATE threads SET state_version = ?, checksum = ? WHERE id = ?"
_HEAD: Final = f"SELECT t.id, t.epoch, {LAST} FROM threads t WHERE t.kind = ? AND t.name = ?"
_THREAD: Final = f"""
SELECT t.id, t.epoch, {LAST}, t.head, t.state_version, t.secret, t.checksum FROM threads t
WHERE t.kind = ? AND t.name = ?
"""
_CHANGES: Final = "SELECT version, ops, source, at, checksum FROM changes WHERE thread = ?"
# The clock may have been wrong: times in the future are ignored, and no change after a recent one is too old.
_PAST_AGE: Final = """
SELECT max(version) FROM changes WHERE thread = :thread AND at < :at AND version < coalesce(
    (SELECT min(version) FROM changes WHERE thread = :thread AND at BETWEEN :at AND :now), 9223372036854775807)
"""
_PAST_BYTES: Final = """
SELECT max(version) FROM (
    SELECT version, sum(length(ops)) OVER (ORDER BY version DESC) AS size FROM changes WHERE thread = ?
) WHERE size > ?
"""
# A wrong clock must not expire clients: keep them until others have pushed on as many different days.
_FORGET_CLIENTS: Final = """
DELETE FROM clients WHERE thread = :thread AND at < :now - :day * :days AND at / :day < (
    SELECT min(day) FROM (
        SELECT DISTINCT at / :day AS day FROM clients WHERE thread = :thread AND at <= :now
        ORDER BY day DESC LIMIT :days))
"""


def load(db: sqlite3.Connection, key: ThreadKey, version: int | None) -> Stored | None:
    """Return a thread, at `version` if one is given. Raises CorruptThread."""
    db.execute("BEGIN")
    try:
        found = db.execute(_THREAD, key).fetchone()
        if found is None:
            return None
        thread, epoch, last = found[:3]
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
    finally:
        db.execute("COMMIT")
    head, state_version, secret = read_thread(key, found[3:])
    if type(last) is not int or last < head:
        raise CorruptThread(f"{key} cannot be read: changes are missing after version {last}, up to {head}")
    if version is not None and not (oldest or 0) <= version <= last:
        return None
    state = None if snapshot is None else read_snapshot(key, thread, snapshot)
    if snapshot is None and not changes:
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are stored")
    if len(changes) != to - since or any(row.version != since + n for n, row in enumerate(changes, 1)):
        raise CorruptThread(f"{key} cannot be read: changes are missing between versions {since} and {to}")
    return Stored(epoch, to, state, changes, state_version, secret)


def load_changes(db: sqlite3.Connection, key: ThreadKey, after: int, limit: int, size: int | None) -> list[ChangeRow]:
    """Return changes after a version, in order."""
    return _load_some_changes(db, key, "AND version > ? ORDER BY version LIMIT ?", (after, limit), size)


def load_changes_before(
    db: sqlite3.Connection, key: ThreadKey, version: int, limit: int, size: int | None
) -> list[ChangeRow]:
    """Return changes before a version, the last one first."""
    return _load_some_changes(db, key, "AND version < ? ORDER BY version DESC LIMIT ?", (version, limit), size)


def _load_some_changes(
    db: sqlite3.Connection, key: ThreadKey, which: str, values: tuple[int, int], size: int | None
) -> list[ChangeRow]:
    thread = db.execute("SELECT id FROM threads WHERE kind = ? AND name = ?", key).fetchone()
    if thread is None:
        return []
    with closing(db.execute(f"{_CHANGES} {which}", (*thread, *values))) as rows:
        return take_page((read_change(key, thread[0], row) for row in rows), size)


def load_client(db: sqlite3.Connection, key: ThreadKey, client: str) -> ClientRow | None:
    """Return the row of a client, None if there is none."""
    row = db.execute(
        "SELECT c.thread, c.client, c.ref, c.refused, c.at, c.checksum FROM clients c"
        " JOIN threads t ON t.id = c.thread WHERE t.kind = ? AND t.name = ? AND c.client = ?",
        (*key, client),
    ).fetchone()
    return read_client(key, row[0], row[1:]) if row else None


def load_threads(db: sqlite3.Connection, after: ThreadKey, limit: int) -> list[ThreadRow]:
    """Return stored threads in the order of kind and name, beginning after `after`."""
    keys = db.execute(
        "SELECT kind, name FROM threads WHERE (kind, name) > (?, ?) ORDER BY kind, name LIMIT ?",
        (*after, limit),
    )
    return [ThreadRow(ThreadKey(*key), db.execute(_HEAD, key).fetchone()[2]) for key in keys.fetchall()]


def load_schema(db: sqlite3.Connection, kind: str, hash: str) -> bytes | None:
    """Return a stored schema, None if there is none."""
    row = db.execute("SELECT schema FROM schemas WHERE kind = ? AND hash = ?", (kind, hash)).fetchone()
    return row[0] if row else None


def save_schema(db: sqlite3.Connection, kind: str, hash: str, schema: bytes) -> None:
    """Store a schema, in a transaction of its own."""
    db.execute("INSERT OR IGNORE INTO schemas (kind, hash, schema) VALUES (?, ?, ?)", (kind, hash, schema))


class Head(NamedTuple):
    """The stored head of a thread, as the writer caches it: its row id, epoch and version."""

    thread: int
    epoch: str
    version: int


# Only the writer changes the file, so it can cache the heads of the threads that it wrote last.
Heads = dict[ThreadKey, Head]

_HEADS_KEPT: Final = 10_000


def commit(db: sqlite3.Connection, heads: Heads, batch: Sequence[Write]) -> tuple[list[StoreError | None], list[Head]]:
    """Write a batch in one transaction; return the outcome of each write, and the new heads, in order."""
    groups: dict[ThreadKey, _Group] = {}
    for index, write in enumerate(batch):
        group = groups.get(write.key)
        if group is None:
            groups[write.key] = [(index, write)]
        else:
            group.append((index, write))
    outcomes: list[StoreError | None] = [None] * len(batch)
    written: list[Head] = []
    if len(heads) > _HEADS_KEPT:
        heads.clear()
    _transact(db, heads, list(groups.values()), outcomes, written)
    return outcomes, written


_Group = list[tuple[int, Write]]
"""Writes of one thread, each with its index in the batch."""


def _transact(
    db: sqlite3.Connection,
    heads: Heads,
    groups: Sequence[_Group],
    outcomes: list[StoreError | None],
    written: list[Head],
) -> None:
    try:
        if (head := _write_alone(db, heads, groups)) is not None:
            written.append(head)
            return
        db.execute("BEGIN IMMEDIATE")
        accepted = [each for group in groups if (each := _accept(db, heads, group, outcomes)) is not None]
        _insert(db, accepted)
        db.execute("COMMIT")
        written += [head for head, _ in accepted]
    except (sqlite3.Error, OverflowError, ValueError) as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        for group in groups:
            key = group[0][1].key
            heads.pop(key, None)
            if len(groups) > 1:
                _transact(db, heads, [group], outcomes, written)
            else:
                for index, _ in group:
                    outcomes[index] = _make_error(key, error)


def _make_error(key: ThreadKey, cause: Exception) -> StoreError:
    error = StoreError(f"{key} could not be written: {cause}")
    error.__cause__ = cause
    error.is_logged = True
    return error


def _write_alone(db: sqlite3.Connection, heads: Heads, groups: Sequence[_Group]) -> Head | None:
    """Write a batch that is one change by the server to a cached thread, as a single statement without BEGIN.

    Returns None, and writes nothing, for any other batch.
    """
    if len(groups) != 1 or len(groups[0]) != 1:
        return None
    _, write = groups[0][0]
    row, head = write.change, heads.get(write.key)
    if row is None or head is None or write != Write(write.key, write.epoch, write.after, write.version, row):
        return None
    if write.refusal((head.epoch, head.version)) is not None:
        return None
    db.execute(_INSERT_CHANGE, _change_values(head.thread, row))
    heads[write.key] = head = Head(head.thread, head.epoch, write.version)
    return head


def _accept(
    db: sqlite3.Connection, heads: Heads, group: _Group, outcomes: list[StoreError | None]
) -> tuple[Head, list[Write]] | None:
    """Return the writes of one thread that follow its stored version, and its head after them; None if none does."""
    key = group[0][1].key
    head = heads.get(key)
    if head is None and (row := db.execute(_HEAD, key).fetchone()):
        head = Head(*row)
    thread, stored = (None, None) if head is None else (head.thread, (head.epoch, head.version))
    accepted: list[Write] = []
    for index, write in group:
        outcomes[index] = error = write.refusal(stored)
        if error is not None:
            continue
        if thread is None:
            first = write.state_version or 1
            checksum = checksum_thread(key, first, write.secret)
            added = db.execute(_INSERT_THREAD, (*key, write.epoch, first, write.secret, write.version, checksum))
            thread = added.lastrowid
        elif (state_version := write.state_version) is not None:
            (secret,) = db.execute("SELECT secret FROM threads WHERE id = ?", (thread,)).fetchone()
            checksum = checksum_thread(key, state_version, secret)
            db.execute(_SET_STATE_VERSION, (state_version, checksum, thread))
        stored = write.epoch, write.version
        accepted.append(write)
    if thread is None or stored is None or not accepted:
        return None
    heads[key] = head = Head(thread, *stored)
    return head, accepted


def _insert(db: sqlite3.Connection, accepted: Sequence[tuple[Head, list[Write]]]) -> None:
    changes: list[tuple[Any, ...]] = []
    # By thread and id: the row of a client's last push replaces the earlier ones.
    clients: dict[tuple[int, str], ClientRow] = {}
    for (thread, *_), writes in accepted:
        for write in writes:
            if (row := write.change) is not None:
                changes.append(_change_values(thread, row))
            if (client := write.client) is not None:
                clients[thread, client.client] = client
    db.executemany(_INSERT_CHANGE, changes)
    db.executemany(_INSERT_CLIENT, [_client_values(thread, client) for (thread, _), client in clients.items()])
    for (thread, *_), writes in accepted:
        for write in writes:
            if write.snapshot is not None:
                db.execute(
                    "INSERT OR REPLACE INTO snapshots (thread, version, state, checksum) VALUES (?, ?, ?, ?)",
                    (thread, write.version, write.snapshot, checksum_snapshot(thread, write.version, write.snapshot)),
                )
            if write.prune is not None:
                _prune(db, thread, write.prune)


# sqlite3 looks for an adapter for each bytes parameter, which takes longer than copying a small one; for a bytearray it
# does not.


def _change_values(thread: int, row: ChangeRow) -> tuple[Any, ...]:
    return thread, row.version, bytearray(row.ops), row.source, row.at, checksum_change(thread, row)


def _client_values(thread: int, row: ClientRow) -> tuple[Any, ...]:
    return thread, row.client, row.ref, bytearray(row.refused), row.at, checksum_client(thread, row)


def _prune(db: sqlite3.Connection, thread: int, prune: Prune) -> None:
    """Forget what is older than the newest snapshot that is past a bound."""
    bounds, now = [prune.version], time.time_ns() // 1000
    if prune.at:
        bounds += db.execute(_PAST_AGE, {"thread": thread, "at": prune.at, "now": now}).fetchone()
    if prune.bytes is not None:
        bounds += db.execute(_PAST_BYTES, (thread, prune.bytes)).fetchone()
    bound = max(each or 0 for each in bounds)
    (oldest,) = db.execute(
        "SELECT max(version) FROM snapshots WHERE thread = ? AND version <= ?", (thread, bound)
    ).fetchone()
    if oldest is not None:
        db.execute("DELETE FROM changes WHERE thread = ? AND version <= ?", (thread, oldest))
        db.execute("DELETE FROM snapshots WHERE thread = ? AND version < ?", (thread, oldest))
    db.execute(_FORGET_CLIENTS, {"thread": thread, "now": now, "day": DAY, "days": CLIENT_DAYS})
