"""The SQL statements that write to a SQLite store's file. Runs in the OS thread of the writer."""

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from plait.clock import read_wall_clock
from plait.errors import StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.outcomes import Outcome, make_indeterminate, make_refusal
from plait.store.protocol import ThreadKey, Write
from plait.store.sqlite.checksums import (
    Origin,
    checksum_change,
    checksum_client,
    checksum_record,
    checksum_snapshot,
    checksum_thread,
)
from plait.store.sqlite.removal import STEP, prune_log, remove_rows
from plait.store.sqlite.schema import LAST_VERSION, rewrite_format
from plait.store.thread_rows import ChangeRow, ClientRow, Record, Snapshot

__all__ = ["BatchResult", "Head", "Heads", "commit", "refuse"]

SqlValue = str | int | bytes | bytearray | None

_SELECT_HEAD: Final = f"SELECT t.id, t.epoch, {LAST_VERSION} FROM threads t WHERE t.kind = ? AND t.name = ?"
_INSERT_CHANGE: Final = "INSERT INTO changes (thread, version, ops, source, at, checksum) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_CLIENT: Final = """
INSERT OR REPLACE INTO clients (thread, client, ref, refused, at, checksum) VALUES (?, ?, ?, ?, ?, ?)
"""
_INSERT_SNAPSHOT: Final = "INSERT OR REPLACE INTO snapshots (thread, version, state, checksum) VALUES (?, ?, ?, ?)"
_INSERT_RECORD: Final = """
INSERT INTO records (thread, part, key, value, checksum) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (thread, part, key) DO UPDATE SET value = excluded.value, checksum = excluded.checksum
"""
_DELETE_RECORD: Final = "DELETE FROM records WHERE thread = ? AND part = ? AND key = ?"
# Do not use the id of a deleted thread again while rows of it are left.
_INSERT_THREAD: Final = """
INSERT INTO threads (
    kind, name, epoch, state_version, secret, head, stateless, due, created_at, changed_at, user, checksum, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1 + max(
    coalesce((SELECT max(id) FROM threads), 0), coalesce((SELECT max(thread) FROM removed), 0)))
"""
_SELECT_ORIGIN: Final = "SELECT secret, stateless, created_at, user FROM threads WHERE id = ?"
_SET_STATE_VERSION: Final = "UPDATE threads SET state_version = ?, checksum = ? WHERE id = ?"
_INCREMENT_COUNTER: Final = """
INSERT INTO counter (id, value) VALUES (0, 1) ON CONFLICT (id) DO UPDATE SET value = value + 1 RETURNING value
"""
_SET_DUE: Final = "UPDATE threads SET due = :due WHERE id = :thread AND due <> :due"


class Head(NamedTuple):
    """The stored head of a thread, as the writer caches it: its row id, epoch and version."""

    thread: int
    epoch: str
    version: int


# Only the writer changes the file, so it can cache the heads of the threads that it has written.
Heads = dict[ThreadKey, Head]

_HEADS_KEPT: Final = 10_000


class BatchResult:
    """The outcome of a batch."""

    __slots__ = ("changed", "counter", "deleted", "has_rest", "is_in_doubt", "outcomes", "written")

    def __init__(self, groups: int) -> None:
        # The outcome of each group.
        self.outcomes: list[Outcome] = [(0, None)] * groups
        # The row ids of deleted threads. A thread that was written later may have the id of one of them.
        self.deleted: list[int] = []
        # Whether some of their rows are left.
        self.has_rest = False
        # The heads of the threads that are new or have a newer version, in order.
        self.written: list[Head] = []
        # The heads of the threads that existed before and have a new change or record, and its time if known.
        self.changed: list[tuple[Head, int | None]] = []
        # The counter, if this batch incremented it: for a deletion, or because no thread has a new version.
        self.counter: int | None = None
        # Whether the log may contain the commit of a transaction that failed.
        self.is_in_doubt = False


def commit(db: sqlite3.Connection, heads: Heads, batch: Sequence[WriteGroup]) -> BatchResult:
    """Write a batch in one transaction."""
    if len(heads) > _HEADS_KEPT:
        heads.clear()
    result = BatchResult(len(batch))
    try:
        _transact(db, heads, list(enumerate(batch)), result)
    except BaseException:
        heads.clear()
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return result


def _transact(
    db: sqlite3.Connection, heads: Heads, groups: Sequence[tuple[int, WriteGroup]], result: BatchResult
) -> None:
    try:
        if len(groups) == 1 and (head := _write_alone(db, heads, groups[0][1])) is not None:
            result.outcomes[groups[0][0]] = 1, None
            result.written.append(head)
            result.changed.append((head, None))
            return
        db.execute("BEGIN IMMEDIATE")
        transaction = _Transaction(db, heads)
        outcomes = [(index, transaction.accept(group)) for index, group in groups]
        transaction.insert()
        db.execute("COMMIT")
    # TypeError: sqlite3 and the checksums raise it for values of the wrong type.
    except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        is_in_doubt = _may_be_in_log(error) and not _overwrite(db)
        result.is_in_doubt |= is_in_doubt
        for index, group in groups:
            key = group.writes[0].key
            heads.pop(key, None)
            if is_in_doubt:
                result.outcomes[index] = 0, make_indeterminate(key, error, str(error))
            elif len(groups) > 1 and not result.is_in_doubt:
                _transact(db, heads, [(index, group)], result)
            else:
                result.outcomes[index] = 0, refuse(key, error)
        return
    for index, outcome in outcomes:
        result.outcomes[index] = outcome
    result.deleted += transaction.deleted
    result.has_rest |= transaction.has_rest
    result.written += transaction.written
    result.changed += transaction.changed
    if transaction.counter is not None:
        result.counter = transaction.counter


def refuse(key: ThreadKey, cause: Exception) -> StoreError:
    """Return the error of a write that is known not to be stored."""
    is_odd = isinstance(cause, UnicodeEncodeError)
    return make_refusal(key, cause, "SQLite has no text for half of a surrogate pair" if is_odd else str(cause))


def _may_be_in_log(error: Exception) -> bool:
    """Whether a statement that failed may have written a commit to the log, where a restart would find it.

    The commit is written last, so it is in the log only if the sync after it failed, not if the write itself failed.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_IOERR and code != sqlite3.SQLITE_IOERR_WRITE


def _overwrite(db: sqlite3.Connection) -> bool:
    """Overwrite the commit that a failed transaction may have left in the log, and return whether that succeeded."""
    try:
        rewrite_format(db)
    except sqlite3.Error:
        return False
    return True


def _write_alone(db: sqlite3.Connection, heads: Heads, group: WriteGroup) -> Head | None:
    """Write a group that is one change by the server to a cached thread, as a single statement without BEGIN.

    Returns None, and writes nothing, for any other group.
    """
    if len(group.writes) != 1:
        return None
    write = group.writes[0]
    rows, head = write.changes, heads.get(write.key)
    if len(rows) != 1 or head is None:
        return None
    if write != Write(write.key, write.epoch, write.after, write.version, rows, fence=write.fence):
        return None
    if write.refusal((head.epoch, head.version)) is not None:
        return None
    db.execute(_INSERT_CHANGE, _change_values(head.thread, rows[0]))
    heads[write.key] = head = Head(head.thread, head.epoch, write.version)
    return head


class _Transaction:
    """One transaction: `accept` creates and deletes threads, and `insert` inserts all other rows together."""

    __slots__ = ("_accepted", "_db", "_heads", "_removable", "changed", "counter", "deleted", "has_rest", "written")

    def __init__(self, db: sqlite3.Connection, heads: Heads) -> None:
        self._db = db
        self._heads = heads
        self._accepted: list[tuple[int, Write]] = []
        # The bytes of deleted threads that this transaction may still remove.
        self._removable = STEP
        self.deleted: list[int] = []
        self.has_rest = False
        self.written: list[Head] = []
        self.changed: list[tuple[Head, int | None]] = []
        self.counter: int | None = None

    def accept(self, group: WriteGroup) -> Outcome:
        """Accept the writes of a thread that follow its stored version."""
        key, db = group.writes[0].key, self._db
        head = self._heads.get(key)
        if head is None and (row := db.execute(_SELECT_HEAD, key).fetchone()):
            head = Head(*row)
        before = head
        count, error = group.count_following(None if head is None else (head.epoch, head.version))
        writes = coalesce(group.writes if error is None else group.writes[:count])
        for write in writes:
            if write.is_deletion:
                assert head is not None
                self._delete(head.thread)
                head = None
                continue
            if head is None:
                head = Head(self._insert_thread(write), write.epoch, write.version)
            else:
                head = Head(head.thread, write.epoch, write.version)
                if write.state_version is not None:
                    self._set_state_version(head.thread, key, write.state_version)
                if write.due is not None:
                    db.execute(_SET_DUE, {"due": write.due, "thread": head.thread})
                if write.changes or write.records or write.changed_at is not None:
                    self.changed.append((head, write.changed_at))
            self._accepted.append((head.thread, write))
        if head is None:
            self._heads.pop(key, None)
        elif writes:
            self._heads[key] = head
            if head != before:
                self.written.append(head)
        return count, error

    def insert(self) -> None:
        """Insert the rows of the accepted writes."""
        db = self._db
        changes: list[tuple[SqlValue, ...]] = []
        clients: list[tuple[SqlValue, ...]] = []
        snapshots: list[tuple[SqlValue, ...]] = []
        for thread, write in self._accepted:
            changes += [_change_values(thread, row) for row in write.changes]
            if write.clients:
                clients += [_client_values(thread, row) for row in write.clients]
            if write.snapshots:
                snapshots += [_snapshot_values(thread, each) for each in write.snapshots]
            if write.records:
                self._write_records(thread, write.records)
        if changes:
            db.executemany(_INSERT_CHANGE, changes)
        if clients:
            db.executemany(_INSERT_CLIENT, clients)
        if snapshots:
            db.executemany(_INSERT_SNAPSHOT, snapshots)
        for thread, write in self._accepted:
            if write.prune is not None:
                prune_log(db, thread, write.prune)
        if self.deleted or (self._accepted and not self.written):
            (self.counter,) = db.execute(_INCREMENT_COUNTER).fetchone()

    def _insert_thread(self, write: Write) -> int:
        key, version = write.key, write.state_version or 1
        origin = Origin(write.secret, write.is_stateless, write.created_at, write.user)
        checksum = checksum_thread(key, version, origin)
        changed_at = read_wall_clock() if write.changed_at is None else write.changed_at
        values = (
            *(*key, write.epoch, version, write.secret, write.version, write.is_stateless),
            *(write.due or 0, write.created_at, changed_at, write.user, checksum),
        )
        thread = self._db.execute(_INSERT_THREAD, values).lastrowid
        assert thread is not None
        return thread

    def _set_state_version(self, thread: int, key: ThreadKey, version: int) -> None:
        checksum = checksum_thread(key, version, Origin(*self._db.execute(_SELECT_ORIGIN, (thread,)).fetchone()))
        self._db.execute(_SET_STATE_VERSION, (version, checksum, thread))

    def _delete(self, thread: int) -> None:
        self._db.execute("DELETE FROM threads WHERE id = ?", (thread,))
        if self._removable:
            self._removable = remove_rows(self._db, thread, self._removable)
        if not self._removable:
            self._db.execute("INSERT INTO removed (thread) VALUES (?)", (thread,))
            self.has_rest = True
        self.deleted.append(thread)

    def _write_records(self, thread: int, records: Sequence[Record]) -> None:
        # If a key has several records, the last one is stored.
        last = {(record.part, record.key): record for record in records}
        deleted = [(thread, *key) for key, record in last.items() if record.value is None]
        stored = [_record_values(thread, record) for record in last.values() if record.value is not None]
        if deleted:
            self._db.executemany(_DELETE_RECORD, deleted)
        self._db.executemany(_INSERT_RECORD, stored)


# sqlite3 looks for an adapter of each bytes parameter, which takes longer than copying a small value to a bytearray.


def _change_values(thread: int, row: ChangeRow) -> tuple[SqlValue, ...]:
    return thread, row.version, bytearray(row.ops), row.source, row.at, checksum_change(thread, row)


def _client_values(thread: int, row: ClientRow) -> tuple[SqlValue, ...]:
    return thread, row.client, row.ref, bytearray(row.refused), row.at, checksum_client(thread, row)


def _snapshot_values(thread: int, row: Snapshot) -> tuple[SqlValue, ...]:
    return thread, row.version, row.state, checksum_snapshot(thread, row.version, row.state)


def _record_values(thread: int, record: Record) -> tuple[SqlValue, ...]:
    value = record.value or b""
    return thread, record.part, record.key, bytearray(value), checksum_record(thread, record)
