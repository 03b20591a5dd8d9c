"""The lock file of a SQLite store: the lock, the mark of the last write, and what is known of the other files."""

import os
import sqlite3
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self
from zlib import crc32

from plait.errors import StoreError

__all__ = [
    "LAST",
    "NO_ORIGIN",
    "LogMark",
    "Mark",
    "Origin",
    "StoreLock",
    "has_write",
    "load_counter",
    "load_origin",
    "read_log_mark",
    "save_heads",
]

try:
    import fcntl
except ImportError:  # On Windows only SQLite's own locks keep two servers apart.
    fcntl = None  # type: ignore[assignment]


# The lock file has the fields of a Mark and of a LogMark, each followed by a checksum of them.
_MARK: Final = struct.Struct("<QQQQ")
_LOG_MARK: Final = struct.Struct("<QqqqQ")
_CHECKSUM: Final = struct.Struct("<Q")
_LOG_MARK_AT: Final = _MARK.size + _CHECKSUM.size


class Origin(NamedTuple):
    """What the server that has a file open writes into it: the number of its run, by chance, and a growing number.

    A run ends with its log: after a crash, the next server continues it.
    """

    run: int
    step: int

    def fits(self, run: int, seen: Self) -> bool:
        """Whether a file in which `seen` was found before, and which only this run has written since, may have this."""
        return self == seen or (self.run == run and (seen.run != run or self.step >= seen.step))


NO_ORIGIN: Final = Origin(0, 0)
"""What a file has before a server writes to it."""


class LogMark(NamedTuple):
    """Which file a log belongs to.

    It has the salts of the log, which SQLite chooses whenever it begins the log again; until then the file has what it
    had then, or what the run has written since, and is never cut short.
    """

    salts: int
    run: int
    seen_run: int
    seen_step: int
    size: int


class Mark(NamedTuple):
    """The last durable write.

    It has the row id of its thread, the thread's version after it, a checksum of its epoch, and the counter. A write
    that has raised the counter has no thread. SQLite's log can only lose its end: if this write is in the file, all
    earlier writes are.
    """

    thread: int
    version: int
    epoch: int
    counter: int

    @classmethod
    def of(cls, thread: int, version: int, epoch: str, counter: int) -> Self:
        """Return the mark of a write to a thread with this epoch."""
        return cls(thread, version, crc32(epoch.encode()), counter)


class StoreLock:
    """The exclusive right to write to a store's file; the operating system releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises StoreError when another server has it, OSError when the lock file cannot be opened."""
        self._file: int | None = None
        if fcntl is None:
            return
        file = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise StoreError(
                "it is in use by another server: stop that server, or use another file for this one"
            ) from None
        self._file = file

    def read(self) -> Mark | None:
        """Return the mark, None if there is none or it is damaged."""
        data = b"" if self._file is None else os.pread(self._file, _LOG_MARK_AT, 0)
        fields = _unpack(_MARK, data)
        return None if fields is None else Mark(*fields)

    def write(self, mark: Mark) -> None:
        """Write a mark, which outlives the process. Raises OSError."""
        if self._file is not None:
            os.pwrite(self._file, _pack(_MARK, mark), 0)

    def write_log_mark(self, mark: LogMark) -> None:
        """Write which file the log belongs to. Raises OSError."""
        if self._file is not None:
            os.pwrite(self._file, _pack(_LOG_MARK, mark), _LOG_MARK_AT)

    def clear(self) -> None:
        """Remove the marks. Raises OSError."""
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_log_mark(path: Path) -> LogMark | None:
    """Return which file the log of a store belongs to, None if that is not known. Raises OSError."""
    try:
        data = path.with_name(path.name + ".lock").read_bytes()[_LOG_MARK_AT:]
    except FileNotFoundError:
        return None
    fields = _unpack(_LOG_MARK, data)
    return None if fields is None else LogMark(*fields)


def _pack(fields: struct.Struct, mark: Mark | LogMark) -> bytes:
    data = fields.pack(*mark)
    return data + _CHECKSUM.pack(crc32(data))


def _unpack(fields: struct.Struct, data: bytes) -> tuple[int, ...] | None:
    """Return the fields of a mark, None if they are missing or damaged."""
    if len(data) != fields.size + _CHECKSUM.size or _CHECKSUM.unpack_from(data, fields.size) != (
        crc32(data[: fields.size]),
    ):
        return None
    return fields.unpack_from(data)


LAST: Final = """max(
    coalesce((SELECT max(version) FROM snapshots WHERE thread = t.id), 0),
    coalesce((SELECT max(version) FROM changes WHERE thread = t.id), 0))
"""
"""SQL for the newest version in the rows of the thread `t`."""


def save_heads(db: sqlite3.Connection, versions: Mapping[int, int], origin: Origin) -> None:
    """Store the current versions of threads, given by row id, and an origin, in a transaction of its own."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.executemany("UPDATE threads SET head = ? WHERE id = ?", [(head, id) for id, head in versions.items()])
        db.execute("INSERT OR REPLACE INTO origin (id, run, step) VALUES (0, ?, ?)", origin)
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def load_counter(db: sqlite3.Connection) -> int:
    """Return how many transactions have raised the counter."""
    found = db.execute("SELECT value FROM counter").fetchone()
    return 0 if found is None else found[0]


def load_origin(db: sqlite3.Connection) -> Origin:
    """Return what the last server has written; `NO_ORIGIN` if there is nothing."""
    return Origin(*(db.execute("SELECT run, step FROM origin").fetchone() or NO_ORIGIN))


def has_write(db: sqlite3.Connection, mark: Mark) -> bool:
    """Whether the marked write is in the file."""
    counter = load_counter(db)
    if counter != mark.counter or not mark.thread:
        # A later write that raised the counter may have deleted the marked thread.
        return counter >= mark.counter
    found = db.execute(f"SELECT t.id, {LAST}, t.epoch FROM threads t WHERE t.id = ?", (mark.thread,)).fetchone()
    return found is not None and found[1] >= mark.version and crc32(found[2].encode()) == mark.epoch
