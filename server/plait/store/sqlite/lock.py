"""The lock file of a SQLite store: the lock, the last durable write, and the identity of the log."""

import asyncio
import logging
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple, Self
from weakref import WeakSet
from zlib import crc32

from plait.errors import StoreError

__all__ = [
    "NO_STAMP",
    "FileStamp",
    "LastWrite",
    "LogIdentity",
    "StoreInUse",
    "StoreLock",
    "read_log_identity",
    "take_lock",
]

log = logging.getLogger("plait.store")

try:
    import fcntl
except ImportError:  # On Windows, only SQLite's own locks keep two servers apart.
    fcntl = None  # type: ignore[assignment]


# The file has the fields of a LastWrite and of a LogIdentity, each followed by its checksum.
_LAST_WRITE: Final = struct.Struct("<QQQ")
_LOG_IDENTITY: Final = struct.Struct("<QqqqQ")
_CHECKSUM: Final = struct.Struct("<Q")
_LOG_IDENTITY_AT: Final = _LAST_WRITE.size + _CHECKSUM.size
# Seconds between two attempts to take the lock of a file, and seconds after which the wait is logged.
_ASK_EVERY: Final = 0.02
_LONG_WAIT: Final = 1.0


class StoreInUse(StoreError):
    """Another server has the store open."""


class FileStamp(NamedTuple):
    """A server's mark in the file that it has open: its random number, and a number that it increments.

    A server that finds the log of a crashed one continues with the number of that server.
    """

    server: int
    step: int

    def may_follow(self, server: int, seen: Self) -> bool:
        """Whether a file with this stamp may be the file that had `seen`, with later writes only of this server."""
        return self == seen or (self.server == server and (seen.server != server or self.step >= seen.step))


NO_STAMP: Final = FileStamp(0, 0)
"""The stamp of a file without a stamp."""


class LogIdentity(NamedTuple):
    """The database file that a log (`-wal`) belongs to."""

    # The salts identify the log: SQLite chooses new ones whenever it restarts the log.
    salts: int
    # The server that writes to the log.
    server: int
    # The stamp and the size of the database when the log began. Since then only this server has written to the
    # database, which has not become smaller.
    seen_server: int
    seen_step: int
    size: int


class LastWrite(NamedTuple):
    """The last durable write.

    SQLite's log can only lose its end: if this write is in the file, all earlier writes are.
    """

    # The space of the thread and its version after the write; both are 0 if the write has incremented the counter.
    space: int
    version: int
    counter: int


class StoreLock:
    """The exclusive right to write to a store's file; the operating system releases it when the process ends.

    A forked child closes its copy, because otherwise the lock would be held until the child ends, too.
    """

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises StoreInUse when another server has it, OSError when the lock file cannot be opened."""
        self._file: int | None = None
        if fcntl is None:
            return
        file = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise StoreInUse(
                "it is in use by another server: stop that server, or use another file for this one"
            ) from None
        self._file = file
        _taken.add(self)

    def read_last_write(self) -> LastWrite | None:
        """Return the last durable write; None if it is not known."""
        data = b"" if self._file is None else os.pread(self._file, _LOG_IDENTITY_AT, 0)
        fields = _unpack(_LAST_WRITE, data)
        return None if fields is None else LastWrite(*fields)

    def write_last_write(self, write: LastWrite) -> None:
        """Record the last durable write. The record outlives the process. Raises OSError."""
        if self._file is not None:
            os.pwrite(self._file, _pack(_LAST_WRITE, write), 0)

    def write_log_identity(self, identity: LogIdentity) -> None:
        """Record the file that the log belongs to. Raises OSError."""
        if self._file is not None:
            os.pwrite(self._file, _pack(_LOG_IDENTITY, identity), _LOG_IDENTITY_AT)

    def clear(self) -> None:
        """Remove both records. Raises OSError."""
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_taken: Final[WeakSet[StoreLock]] = WeakSet()


def _leave_to_parent() -> None:
    for lock in tuple(_taken):
        lock.close()


if fcntl is not None:
    os.register_at_fork(after_in_child=_leave_to_parent)


async def take_lock(path: Path, patience: float) -> StoreLock:
    """Take the lock of a file; wait if another server has it. Raises StoreError and OSError."""
    loop = asyncio.get_running_loop()
    begun, has_said = loop.time(), False
    while True:
        try:
            return StoreLock(path)
        except StoreInUse:
            waited = loop.time() - begun
            if waited >= patience:
                raise
        if waited >= _LONG_WAIT and not has_said:
            has_said = True
            log.warning("waiting for another server to close %s", path)
        await asyncio.sleep(_ASK_EVERY)


def read_log_identity(path: Path) -> LogIdentity | None:
    """Return the file that the log of a store belongs to; None if it is not known. Raises OSError."""
    try:
        data = path.with_name(path.name + ".lock").read_bytes()[_LOG_IDENTITY_AT:]
    except FileNotFoundError:
        return None
    fields = _unpack(_LOG_IDENTITY, data)
    return None if fields is None else LogIdentity(*fields)


def _pack(fields: struct.Struct, values: LastWrite | LogIdentity) -> bytes:
    data = fields.pack(*values)
    return data + _CHECKSUM.pack(crc32(data))


def _unpack(fields: struct.Struct, data: bytes) -> tuple[int, ...] | None:
    """Return the fields; None if they are missing or damaged."""
    if len(data) != fields.size + _CHECKSUM.size:
        return None
    *values, checksum = struct.unpack(fields.format + "Q", data)
    return tuple(values) if checksum == crc32(data[: fields.size]) else None
