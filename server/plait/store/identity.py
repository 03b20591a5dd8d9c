"""Whether a store's file is the one that the server opened, and whether the log next to a file belongs to it."""

import os
import secrets
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from plait.errors import StoreError
from plait.store.lock import NO_ORIGIN, LogMark, Origin, read_log_mark

__all__ = ["FileIdentity", "check_log", "is_foreign_log", "make_log_path", "set_log_aside"]

# How often, and after how many seconds, a file that looks foreign is read again.
_READS: Final = 50
_READ_AFTER: Final = 0.01
# What is found in a file that was cut short.
_CUT: Final = Origin(-1, 0)
# Where the salts are in a log.
_SALTS: Final = slice(16, 24)


class FileIdentity:
    """The files of an open SQLite database in WAL mode: the database and its log.

    SQLite keeps writing to a file that was deleted or replaced, and those writes would be lost. A file can be replaced
    in place, too: whenever its size or time has changed, it must have what only this server writes. Copies of it that
    were made before are older.
    """

    def __init__(self, path: Path, before: Origin) -> None:
        """`before` is what the server that was killed has written; `NO_ORIGIN` if there was none."""
        # Absolute, as the working directory may change.
        self._path = path.absolute()
        self._log = make_log_path(self._path)
        self._file_id, self._log_id = _identify(self._path), _identify(self._log)
        # What the server writes into the file, and what was last read of that from the file without its log.
        self.own = before if before.run else Origin(secrets.randbits(62) + 1, 0)
        self._seen = read_origin(self._path, 0)
        # Its size and time before that.
        self._looks = 0, 0
        self._salts = 0

    def has_log(self) -> bool:
        """Whether the log is still at its path. Raises OSError."""
        return self._log_id is None or _identify(self._log) == self._log_id

    def has_file(self) -> bool:
        """Whether the database is still at its path, and what it was. Raises OSError."""
        for _ in range(_READS):
            try:
                status = self._path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            if (status.st_dev, status.st_ino) != self._file_id:
                return False
            looks = status.st_size, status.st_mtime_ns
            if looks == self._looks:
                return True
            if (found := read_origin(self._path, self._looks[0])).fits(self.own.run, self._seen):
                self._seen, self._looks = found, looks
                return True
            # Another process may be writing a part of the log to the file.
            time.sleep(_READ_AFTER)
        return False

    def take_mark(self) -> LogMark | None:
        """Return what a later server must know of the log, if the log has begun again since. Raises OSError.

        Call it when the file has been found.
        """
        salts = _read_salts(self._log)
        if salts in (0, self._salts):
            return None
        self._salts = salts
        return LogMark(salts, self.own.run, *self._seen, self._looks[0])


def read_origin(path: Path, size: int) -> Origin:
    """Return what a server has written into a file, without the file's log; `NO_ORIGIN` if it has nothing.

    A file with less than `size` bytes must be whole. Otherwise it may have a part of its log: SQLite writes the pages
    of a log one by one, and may have been killed, or have met a full disk.
    """
    is_smaller = size > 0 and (not path.exists() or path.stat().st_size < size)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            if not is_smaller:
                # Go by the file's size, not by the one that its first page tells.
                db.execute("PRAGMA writable_schema = ON")
            return Origin(*(db.execute("SELECT run, step FROM origin").fetchone() or NO_ORIGIN))
    except (sqlite3.Error, UnicodeDecodeError):  # It is empty, damaged, or of another format or application.
        return _CUT if is_smaller else NO_ORIGIN


def is_foreign_log(path: Path) -> bool:
    """Whether the log next to a file is that of another file, which a server had open at this path.

    A server may have the file open. Raises OSError.
    """
    mark = read_log_mark(path)  # First: the file is never older than the mark.
    if mark is None or _read_salts(make_log_path(path)) != mark.salts:
        return False
    return not read_origin(path, mark.size).fits(mark.run, Origin(mark.seen_run, mark.seen_step))


def check_log(path: Path) -> None:
    """Raise StoreError if the log next to a file is another file's: SQLite would damage the file with it."""
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


def _read_salts(log: Path) -> int:
    """Return the salts of a log, 0 if it has none. Raises OSError."""
    try:
        with log.open("rb", buffering=0) as file:
            return int.from_bytes(file.read(_SALTS.stop)[_SALTS])
    except FileNotFoundError:
        return 0


def _identify(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file at a path, None if there is no file. Raises any other OSError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
