"""The file beside a store that says which server may write, and what was written last."""

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple, Self
from zlib import crc32

from plait.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows: nothing but SQLite's own locks keeps two servers apart there.
    fcntl = None  # type: ignore[assignment]

__all__ = ["Mark", "StoreLock"]

# The parts of a mark, and their combination, by which a damaged one is told.
_MARK: Final = struct.Struct("<QQQQ")
_KEY: Final = 0x706C6169


class Mark(NamedTuple):
    """The last durable write: the row id of its thread, the thread's version after it, and a checksum of its epoch.

    SQLite's log loses its end or nothing: where this write is there, all the ones before it are.
    """

    thread: int
    version: int
    epoch: int

    @classmethod
    def of(cls, thread: int, version: int, epoch: str) -> Self:
        """Return the mark of a write to a thread with this epoch."""
        return cls(thread, version, crc32(epoch.encode()))


class StoreLock:
    """The right to write to a store's file, which the operating system gives back when the process ends."""

    def __init__(self, path: Path) -> None:
        """Take the right. Raises StoreError when another server has it, OSError when the lock file cannot be opened."""
        self._file: int | None = None
        if fcntl is None:
            return
        file = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise StoreError(
                "it is in use by another server: stop that one, or give this one a file of its own"
            ) from None
        self._file = file

    def read(self) -> Mark | None:
        """Return the mark; None when there is none that can be read."""
        data = b"" if self._file is None else os.pread(self._file, _MARK.size, 0)
        if len(data) != _MARK.size:
            return None
        thread, version, epoch, combined = _MARK.unpack(data)
        return Mark(thread, version, epoch) if combined == thread ^ version ^ epoch ^ _KEY else None

    def write(self, mark: Mark) -> None:
        """Keep a mark, over the end of the process, too. Raises OSError."""
        if self._file is not None:
            thread, version, epoch = mark
            os.pwrite(self._file, _MARK.pack(thread, version, epoch, thread ^ version ^ epoch ^ _KEY), 0)

    def clear(self) -> None:
        """Forget the mark. Raises OSError."""
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Give the right back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
