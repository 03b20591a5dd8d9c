"""The writer of a SQLite store: makes changes, and checks that the file was not replaced. Runs in its OS thread."""

import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from plait.errors import StoreError
from plait.store.outcomes import FileLost, Outcome, describe, make_indeterminate, make_refusal
from plait.store.rows.engine import INDEX, Change, Range
from plait.store.sqlite import schema, table
from plait.store.sqlite.failures import may_be_in_log
from plait.store.sqlite.file_guard import FileGuard
from plait.store.sqlite.file_place import FilePlace
from plait.store.sqlite.files import has_content
from plait.store.sqlite.lock import NO_STAMP, LastWrite, StoreLock
from plait.store.thread_rows import ThreadKey

__all__ = ["FileWriter"]

log = logging.getLogger("plait.store")


class FileWriter:
    """Writes to one open file."""

    def __init__(self, path: Path, place: FilePlace, lock: StoreLock) -> None:
        self._path = path
        self._place = place
        self._lock = lock
        self._guard = FileGuard(path, lock)
        # The stored counter, which identifies the last write if no thread got a new version.
        self._counter = 0
        # Whether a crashed server has left a log.
        self._has_old_log = False
        # Whether the log may contain a write that readers do not see, but that a restart would find.
        self.is_in_doubt = False

    def open(self, db: sqlite3.Connection, synchronous: str) -> bool:
        """Prepare the file for writing, and return whether it may have lost writes. Raises StoreError."""
        self._has_old_log = has_content(f"{self._path}-wal")
        schema.prepare(db, synchronous, self._place)
        schema.check_index(db)
        self._counter = schema.load_counter(db)
        if has_lost := self._has_lost(db):
            log.warning(
                "%s does not have the last stored write: it was truncated, or replaced by an older or empty file; "
                "its threads get new epochs, so that clients load their states from it",
                self._path,
            )
        # Without full durability, a power failure may have lost changes that clients have seen.
        return has_lost or (synchronous != "FULL" and self._has_old_log)

    def begin(self, db: sqlite3.Connection) -> None:
        """Record the identity of the files. Call it when all connections are open. Raises OSError."""
        self._guard.begin(schema.load_stamp(db) if self._has_old_log else NO_STAMP)
        try:
            self.stamp(db)
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.OperationalError as error:  # The disk may be full; threads can still be read.
            log.warning("%s cannot be written: %s", self._path, error)
        self._guard.is_found(has_written=True)

    def stamp(self, db: sqlite3.Connection) -> None:
        """Give the file a new stamp, which earlier copies of it do not have. Raises sqlite3.Error."""
        # SQLite may checkpoint after this write, which would make a truncated file look like the same one again.
        if self._guard.has_begun and self._guard.is_found():
            stamp = self._guard.next_stamp()
            schema.save_stamp(db, stamp)
            self._guard.take_stamp(stamp)
            self._guard.is_found(has_written=True)

    def write(self, db: sqlite3.Connection, changes: Sequence[Change]) -> Sequence[Outcome]:
        """Make changes in one transaction, or each in one of its own if that fails."""
        # Check before the commit, too: a refused write must not get into the log, which is copied on closing.
        if not self._guard.is_found():
            return _refuse_all(changes)
        if self.is_in_doubt:
            try:
                self.try_to_write(db)
            except sqlite3.Error as error:
                return [(0, _refuse(change.key, error)) for change in changes]
        try:
            outcomes = self._make(db, changes)
        except BaseException:
            self.is_in_doubt = True
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return outcomes if self._guard.is_found(has_written=True) else _refuse_all(changes)

    def try_to_write(self, db: sqlite3.Connection) -> None:
        """Make a write that changes nothing. It overwrites a write in doubt. Raises sqlite3.Error."""
        schema.rewrite_format(db)
        self.is_in_doubt = False

    def check_files(self, db: sqlite3.Connection) -> None:
        """Raise StoreError if the files were deleted or replaced."""
        self._guard.check()

    def end(self, db: sqlite3.Connection) -> bool:
        """Finish before the connections are closed, and return whether the log may be copied into the file."""
        return self._guard.end()

    def leave_log(self) -> None:
        """Rename the log of a file that was replaced, as `FileGuard.leave_log` does."""
        self._guard.leave_log()

    # Inside

    def _has_lost(self, db: sqlite3.Connection) -> bool:
        write = self._lock.read_last_write()
        try:
            return write is not None and not schema.has_write(db, write)
        except sqlite3.DatabaseError:  # The page of that thread is damaged; the write may still be there.
            return False

    def _make(self, db: sqlite3.Connection, changes: Sequence[Change]) -> Sequence[Outcome]:
        try:
            self._transact(db, changes)
        # TypeError: sqlite3 and the checksums raise it for values of the wrong type.
        except (sqlite3.Error, OverflowError, TypeError, ValueError) as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if may_be_in_log(error):
                try:
                    self.try_to_write(db)
                except sqlite3.Error:
                    self.is_in_doubt = True
                    return [(0, make_indeterminate(change.key, error, str(error))) for change in changes]
            if len(changes) == 1:
                return [(0, _refuse(changes[0].key, error))]
            return self._make_each(db, changes, error)
        return [change.outcome for change in changes]

    def _make_each(self, db: sqlite3.Connection, changes: Sequence[Change], error: Exception) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for change in changes:
            if self.is_in_doubt:
                outcomes.append((0, _refuse(change.key, error)))
            else:
                outcomes += self._make(db, [change])
        return outcomes

    def _transact(self, db: sqlite3.Connection, changes: Sequence[Change]) -> None:
        rows = [table.make_values(row) for change in changes for row in change.rows]
        gone: list[Range] = []
        for change in changes:
            if change.gone:
                gone += change.gone
        if not rows and not gone:
            return
        last = next(((row[0], row[2]) for row in reversed(rows) if row[0] and type(row[2]) is int), None)
        if len(rows) == 1 and not gone and last is not None:
            table.write_one(db, rows[0])
        else:
            db.execute("BEGIN IMMEDIATE")
            table.write(db, rows, gone, [space for change in changes for space in change.spaces])
            if last is None or INDEX in {row[0] for row in rows} | {each[0] for each in gone}:
                counter = schema.increment_counter(db)
                db.execute("COMMIT")
                self._counter = counter
            else:
                db.execute("COMMIT")
        space, version = last or (0, 0)
        self._guard.record(LastWrite(space, version, self._counter))


def _refuse(key: ThreadKey, cause: Exception) -> StoreError:
    return make_refusal(key, cause, describe(cause))


def _refuse_all(changes: Sequence[Change]) -> list[Outcome]:
    return [(0, FileLost(f"{change.key} could not be written: {FileLost()}")) for change in changes]
