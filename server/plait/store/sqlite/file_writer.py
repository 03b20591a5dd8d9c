"""The writer of a SQLite store: commits batches, and checks that the file was not replaced. Runs in its OS thread."""

import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from plait.clock import read_wall_clock
from plait.store.batches import WriteGroup
from plait.store.outcomes import FileLost, Outcome
from plait.store.sqlite import schema
from plait.store.sqlite.commits import BatchResult, Heads, commit, refuse
from plait.store.sqlite.file_identity import FileIdentity, set_log_aside
from plait.store.sqlite.file_place import FilePlace
from plait.store.sqlite.lock import NO_STAMP, FileStamp, LastWrite, LogIdentity, StoreLock
from plait.store.sqlite.removal import has_removed, remove_step

__all__ = ["FileWriter"]

log = logging.getLogger("plait.store")

P = ParamSpec("P")
T = TypeVar("T", LastWrite, LogIdentity)


class FileWriter:
    """Writes to one open store."""

    def __init__(self, path: Path, place: FilePlace, lock: StoreLock) -> None:
        self._path = path
        self._place = place
        self._lock = lock
        self._heads: Heads = {}
        # By row id: the current versions of threads whose stored heads are older, and when they changed last.
        self._stale: dict[int, tuple[int, int]] = {}
        # The stored counter, which identifies the last write if no thread got a new version.
        self._counter = 0
        self._identity: FileIdentity | None = None
        self._warned: set[str] = set()
        # Whether another file is at the path, so that writes to the open file would be lost.
        self.is_lost = False
        self._is_replaced = False
        # Whether a crashed server has left a log.
        self._has_old_log = False
        # Whether the log may contain a write that readers do not see, but that a restart would find.
        self.is_in_doubt = False
        # Whether deleted threads have rows left.
        self.has_rest = False

    @property
    def has_stale(self) -> bool:
        """Whether the stored heads of some threads are old. Can be read in any OS thread."""
        return bool(self._stale)

    def open(self, db: sqlite3.Connection, synchronous: str) -> None:
        """Prepare the file for writing. Raises StoreError for a file that this plait did not write."""
        # Without full durability, a power failure may have lost changes that clients have seen.
        self._has_old_log = _has_content(f"{self._path}-wal")
        may_have_lost = synchronous != "FULL" and self._has_old_log
        schema.prepare(db, synchronous, self._place)
        schema.check_threads(db)
        self._counter = schema.load_counter(db)
        self.has_rest = has_removed(db)
        has_lost = self._has_lost(db)
        if has_lost:
            log.warning(
                "%s does not have the last stored write: it was truncated, or replaced by an older or empty file; "
                "its threads get new epochs, so that clients load their states from it",
                self._path,
            )
        if has_lost or may_have_lost:
            schema.begin_new_epochs(db)
            self._lock.clear()

    def begin(self, db: sqlite3.Connection) -> None:
        """Record the identity of the files. Call it when all connections are open. Raises OSError."""
        self._identity = FileIdentity(self._path, schema.load_stamp(db) if self._has_old_log else NO_STAMP)
        try:
            self.save_heads(db)
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.OperationalError as error:  # The disk may be full; threads can still be read.
            log.warning("%s cannot be written: %s", self._path, error)
        self._is_found(has_written=True)

    def commit(self, db: sqlite3.Connection, batch: Sequence[WriteGroup]) -> Sequence[Outcome]:
        """Write a batch in one transaction and return the outcome of each group."""
        # Check before the commit, too: a refused write must not get into the log, which is copied on closing.
        if not self._is_found():
            return self._refuse(batch)
        if self.is_in_doubt:
            try:
                self.try_to_write(db)
            except sqlite3.Error as error:
                return [(0, refuse(group.writes[0].key, error)) for group in batch]
        try:
            result = commit(db, self._heads, batch)
        except BaseException:
            self.is_in_doubt = True
            raise
        self.is_in_doubt = result.is_in_doubt
        if not self._is_found(has_written=True):
            return self._refuse(batch)
        for thread in result.deleted:
            self._stale.pop(thread, None)
        self.has_rest |= result.has_rest
        now = read_wall_clock()
        for head, at in result.changed:
            self._stale[head.thread] = head.version, now if at is None else at
        self._record_last_write(result)
        return result.outcomes

    def save_heads(self, db: sqlite3.Connection) -> None:
        """Store the current versions of threads in their rows, to detect a loss of their last changes, and the times.

        The file also gets a new stamp, which earlier copies of it do not have.
        """
        identity = self._identity
        # SQLite may checkpoint after this write, which would make a truncated file look like the same one again.
        if identity is not None and self._is_found():
            stamp = FileStamp(identity.own.server, identity.own.step + 1)
            schema.save_heads(db, self._stale, stamp)
            identity.own = stamp
            self._stale = {}
            self._is_found(has_written=True)

    def end(self, db: sqlite3.Connection) -> bool:
        """Finish before the connections are closed, and return whether the log may be copied into the file."""
        if self._identity is None:
            return True
        with suppress(sqlite3.Error):  # Heads only serve to detect a loss; nothing is lost without them.
            self.save_heads(db)
        try:
            self._is_replaced = self.is_lost and not self._identity.has_file()
        except OSError:
            self._is_replaced = True
        return not self._is_replaced

    def leave_log(self) -> None:
        """Rename the log of a file that was replaced: it does not belong to the new file.

        Call it after all connections are closed. Raises OSError.
        """
        if self._identity is None:
            return
        if self._is_replaced and self._identity.has_log():
            log.error("the last changes of the lost file %s are in %s", self._path, set_log_aside(self._path))

    def remove_rest(self, db: sqlite3.Connection) -> None:
        """Remove some of the rows of deleted threads. Raises sqlite3.Error."""
        if self.is_in_doubt:
            self.try_to_write(db)
        self.has_rest = self._is_found() and remove_step(db)

    def try_to_write(self, db: sqlite3.Connection) -> None:
        """Make a write that changes nothing. It overwrites a write in doubt. Raises sqlite3.Error."""
        schema.rewrite_format(db)
        self.is_in_doubt = False

    def check_files(self, db: sqlite3.Connection, *, has_written: bool = True) -> None:
        """Raise StoreError if the files were deleted or replaced."""
        if not self._is_found(has_written=has_written):
            raise FileLost

    def write(
        self,
        db: sqlite3.Connection,
        function: Callable[Concatenate[sqlite3.Connection, P], None],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a function that writes rows of the whole file. Raises StoreError, sqlite3.Error."""
        self.check_files(db, has_written=False)
        function(db, *args, **kwargs)
        self.check_files(db)

    # Inside

    def _is_found(self, *, has_written: bool = False) -> bool:
        """Whether the files are in place. A write may have restarted the log, which has another identity then."""
        if self.is_lost or self._identity is None:
            return not self.is_lost
        try:
            is_same = self._identity.has_log() and self._identity.has_file()
            if is_same and has_written and (found := self._identity.take_log_identity()) is not None:
                self._record(self._lock.write_log_identity, found)
        except OSError as error:  # An error of the file system does not mean that the file was replaced.
            self._warn_once("cannot check whether %s was deleted or replaced: %s", error)
            return True
        if not is_same:
            self.is_lost = True
            log.error(
                "the store's file %s (or its -wal) was deleted or replaced while it was open; "
                "nothing is stored until the server is restarted",
                self._path,
            )
        return is_same

    def _has_lost(self, db: sqlite3.Connection) -> bool:
        write = self._lock.read_last_write()
        try:
            return write is not None and not schema.has_write(db, write)
        except sqlite3.DatabaseError:  # The page of that thread is damaged; the write may still be there.
            return False

    def _refuse(self, batch: Sequence[WriteGroup]) -> list[Outcome]:
        return [(0, FileLost(f"{group.writes[0].key} could not be written: {FileLost()}")) for group in batch]

    def _record_last_write(self, result: BatchResult) -> None:
        if result.counter is not None:
            self._counter = result.counter
        if result.written:
            head = result.written[-1]
            write = LastWrite.of(head.thread, head.version, head.epoch, self._counter)
        elif result.counter is not None:
            write = LastWrite(0, 0, 0, self._counter)
        else:
            return
        self._record(self._lock.write_last_write, write)

    def _record(self, write: Callable[[T], None], value: T) -> None:
        try:
            write(value)
        except OSError as error:  # The lock file only serves to detect a loss; nothing is lost without it.
            self._warn_once("%s.lock could not be written: %s", error)

    def _warn_once(self, line: str, error: OSError) -> None:
        if line not in self._warned:
            self._warned.add(line)
            log.warning(line, self._path, error)


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False
