"""Detects that a store's file was replaced while it was open, and that the log next to a file is not its own."""

import os
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from plait.clock import read_wall_clock
from plait.errors import StoreError
from plait.store.sqlite.lock import NO_STAMP, FileStamp, LogIdentity, read_log_identity

__all__ = ["FileIdentity", "check_log", "is_foreign_log", "make_log_path", "set_log_aside"]

# The number of times that a file that looks foreign is read again, and the seconds in between.
_READS: Final = 50
_READ_AFTER: Final = 0.01
# Stands for the stamp of a file that was truncated.
_TRUNCATED: Final = FileStamp(-1, 0)
# The microseconds to which file systems round times, at most: two changes in between may have the same time.
_ROUNDED: Final = 2_000_000
# The place of the salts in a log.
_SALTS: Final = slice(16, 24)


class FileIdentity:
    """The files of an open SQLite database in WAL mode: the database and its log.

    SQLite continues to write to a file that was deleted or replaced, and those writes would be lost. A file can also be
    overwritten in place. So whenever its size or time has changed, its stamp must be one that only this server writes;
    a copy of the file has an older stamp.
    """

    def __init__(self, path: Path, before: FileStamp) -> None:
        """`before` is the stamp of a server that crashed and left its log; `NO_STAMP` if none did."""
        # Absolute, as the working directory may change.
        self._path = path.absolute()
        # As strings, since each write looks there.
        self._file, self._log, self._folder = map(str, (self._path, make_log_path(self._path), self._path.parent))
        self._file_id, self._log_id = _identify(self._file), _identify(self._log)
        # The stamp that the server wrote last, and the stamp that was last read from the file without its log.
        self.own = before if before.server else FileStamp(secrets.randbits(62) + 1, 0)
        self._seen = _read_stamp(self._path, 0)
        # The size and time of the file when `_seen` was read.
        self._size_and_time = 0, 0
        # What identifies the folder and its last change, since which the log was found; None if it may change unseen.
        self._folder_id: tuple[int, int, int] | None = None
        self._salts = 0
        # The size and time of the file when the salts were last read, and when SQLite restarted the log.
        self._read_at: tuple[int, int] | None = None
        self._restarted_at: tuple[int, int] | None = None

    def has_log(self) -> bool:
        """Whether the log is still at its path. Raises OSError."""
        # To create, remove or rename a file changes its folder. The status of the log itself is expensive: once it is
        # read, Linux updates the time of the log at the next write.
        if self._log_id is None or ((folder := _identify_change(self._folder)) and folder == self._folder_id):
            return True
        if _identify(self._log) != self._log_id:
            return False
        is_old = folder is not None and read_wall_clock() - folder[2] // 1000 > _ROUNDED
        self._folder_id = folder if is_old else None
        return True

    def has_file(self) -> bool:
        """Whether the database is still at its path and was not overwritten. Raises OSError."""
        for _ in range(_READS):
            try:
                status = os.stat(self._file)
            except (FileNotFoundError, NotADirectoryError):
                return False
            if (status.st_dev, status.st_ino) != self._file_id:
                return False
            size_and_time = status.st_size, status.st_mtime_ns
            if size_and_time == self._size_and_time:
                return True
            if (found := _read_stamp(self._path, self._size_and_time[0])).may_follow(self.own.server, self._seen):
                self._seen, self._size_and_time = found, size_and_time
                return True
            # Another process may be copying a part of the log into the file.
            time.sleep(_READ_AFTER)
        return False

    def take_log_identity(self) -> LogIdentity | None:
        """Return the identity of the log if SQLite has restarted it since the last call; otherwise None.

        Call it after `has_file`. Raises OSError.
        """
        # SQLite restarts the log after it has written all of it to the file, so not again while the file is the same.
        if self._restarted_at == self._size_and_time:
            return None
        is_read, self._read_at = self._read_at == self._size_and_time, self._size_and_time
        if (salts := _read_salts(self._log)) in (0, self._salts):
            return None
        self._salts = salts
        if is_read:  # Otherwise SQLite may have written the log after it restarted it.
            self._restarted_at = self._size_and_time
        return LogIdentity(salts, self.own.server, *self._seen, self._size_and_time[0])


def _read_stamp(path: Path, size: int) -> FileStamp:
    """Return the stamp in a file, without reading its log; `NO_STAMP` if it has none.

    A file with less than `size` bytes was truncated. A larger one may have a part of its log: SQLite copies the pages
    of a log one by one, and a crash or a full disk may have interrupted it.
    """
    is_smaller = size > 0 and (not path.exists() or path.stat().st_size < size)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            if not is_smaller:
                # Use the file's size instead of the one in its first page.
                db.execute("PRAGMA writable_schema = ON")
            return FileStamp(*(db.execute("SELECT server, step FROM stamp").fetchone() or NO_STAMP))
    except (sqlite3.Error, UnicodeDecodeError):  # The file is empty, damaged, or of another application.
        return _TRUNCATED if is_smaller else NO_STAMP


def is_foreign_log(path: Path) -> bool:
    """Whether the log next to a file belongs to another file that a server had open at this path.

    A server may have the file open. Raises OSError.
    """
    identity = read_log_identity(path)  # Read it first, so that the file is never older.
    if identity is None or _read_salts(make_log_path(path)) != identity.salts:
        return False
    seen = FileStamp(identity.seen_server, identity.seen_step)
    return not _read_stamp(path, identity.size).may_follow(identity.server, seen)


def check_log(path: Path) -> None:
    """Raise StoreError if the log next to a file belongs to another file: SQLite would damage this file with it."""
    if is_foreign_log(path):
        log = make_log_path(path)
        raise StoreError(
            f"it was deleted, replaced or truncated while a server had it open, and {log} has changes of the file "
            f"before it: put a backup in its place with `plait restore BACKUP {path}`, or move {log} away to use it as "
            "it is"
        )


def set_log_aside(path: Path) -> Path:
    """Rename the log next to a file, so that SQLite does not apply it, and return its new path. Raises OSError."""
    log = make_log_path(path)
    names = (f"{log.name}.lost{'' if n == 1 else f'-{n}'}" for n in range(1, 10_000))
    aside = next(found for name in names if not (found := log.with_name(name)).exists())
    log.rename(aside)
    return aside


def make_log_path(path: Path) -> Path:
    """Return the path of a file's log."""
    return path.with_name(path.name + "-wal")


def _read_salts(log: str | Path) -> int:
    """Return the salts of a log; 0 if it has none. Raises OSError."""
    try:
        with open(log, "rb", buffering=0) as file:
            return int.from_bytes(file.read(_SALTS.stop)[_SALTS])
    except FileNotFoundError:
        return 0


def _identify(path: str) -> tuple[int, int] | None:
    """Return the device and inode of the file at a path; None if there is no file. Raises any other OSError."""
    change = _identify_change(path)
    return None if change is None else change[:2]


def _identify_change(path: str) -> tuple[int, int, int] | None:
    """Return the device and inode of the file at a path and the nanoseconds of its last change, as `_identify` does."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # Not the time of modification, which copying programs set back.
    return status.st_dev, status.st_ino, status.st_ctime_ns
