"""Guards the open file of a store: notices its replacement, and records the last write. Runs in the writer's thread."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from plait.store.outcomes import FileLost
from plait.store.sqlite.file_identity import FileIdentity, set_log_aside
from plait.store.sqlite.lock import FileStamp, LastWrite, LogIdentity, StoreLock

__all__ = ["FileGuard"]

log = logging.getLogger("plait.store")

T = TypeVar("T", LastWrite, LogIdentity)


class FileGuard:
    """Guards one open file."""

    def __init__(self, path: Path, lock: StoreLock) -> None:
        self._path = path
        self._lock = lock
        self._identity: FileIdentity | None = None
        self._warned: set[str] = set()
        # Whether another file is at the path, so that writes to the open file would be lost.
        self.is_lost = False
        self._is_replaced = False

    def begin(self, before: FileStamp) -> None:
        """Record the identity of the files, as `FileIdentity` does. Call it when all connections are open."""
        self._identity = FileIdentity(self._path, before)

    @property
    def has_begun(self) -> bool:
        """Whether the identity of the files is known."""
        return self._identity is not None

    def next_stamp(self) -> FileStamp:
        """Return the next stamp of the file, which earlier copies of it do not have."""
        assert self._identity is not None
        return FileStamp(self._identity.own.server, self._identity.own.step + 1)

    def take_stamp(self, stamp: FileStamp) -> None:
        """Record that the file has a stamp."""
        assert self._identity is not None
        self._identity.own = stamp

    def is_found(self, *, has_written: bool = False) -> bool:
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

    def check(self, *, has_written: bool = True) -> None:
        """Raise FileLost if the files were deleted or replaced."""
        if not self.is_found(has_written=has_written):
            raise FileLost

    def record(self, write: LastWrite) -> None:
        """Record the last durable write."""
        self._record(self._lock.write_last_write, write)

    def end(self) -> bool:
        """Return whether the log may be copied into the file, before the connections are closed."""
        if self._identity is None:
            return True
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

    # Inside

    def _record(self, write: Callable[[T], None], value: T) -> None:
        try:
            write(value)
        except OSError as error:  # The lock file only serves to detect a loss; nothing is lost without it.
            self._warn_once("%s.lock could not be written: %s", error)

    def _warn_once(self, line: str, error: OSError) -> None:
        if line not in self._warned:
            self._warned.add(line)
            log.warning(line, self._path, error)
