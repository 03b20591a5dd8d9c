"""Tracks whether a store can be written, and explains errors to the operator."""

import errno
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from plait.errors import Fenced, StoreError
from plait.store.batches import Outcome

__all__ = ["Health", "explain"]

log = logging.getLogger("plait.store")

# Seconds between log lines while writes fail.
_LOG_EVERY: Final = 1.0
# Seconds after a failed write before a test write is made.
_TRY_AFTER: Final = 5.0


class Health:
    """Tracks failed writes, and logs them at most once a second, as every write fails when the disk is full."""

    def __init__(self) -> None:
        # Why SQLite could not write; None while it can.
        self.trouble: str | None = None
        self._last_failure = 0.0
        self._last_line = float("-inf")
        # Failed writes that have not been logged.
        self._failed = 0

    def record(self, outcomes: Sequence[Outcome], sizes: Sequence[int], now: float) -> None:
        """Record the outcomes of groups of writes of these sizes; `now` is the time of the loop's clock."""
        failed = [(size - stored, error) for (stored, error), size in zip(outcomes, sizes, strict=True) if error]
        if failed:
            self._record_failures(failed, now, has_stored=any(stored for stored, _ in outcomes))
        elif self.trouble is not None:
            self.record_success()

    def record_success(self) -> None:
        """Record that the file can be written."""
        if self._failed:
            log.error("%d more changes are not stored", self._failed)
        log.warning("the store can be written again")
        self.trouble, self._failed = None, 0

    def should_try(self, now: float) -> bool:
        """Whether to make a test write: writes fail, and the last one failed some time ago."""
        return self.trouble is not None and now - self._last_failure >= _TRY_AFTER

    def postpone(self, now: float) -> None:
        """Postpone the next test write."""
        self._last_failure = now

    # Inside

    def _record_failures(self, outcomes: Sequence[tuple[int, StoreError]], now: float, *, has_stored: bool) -> None:
        failed = [error for _, error in outcomes if not isinstance(error, Fenced)]
        self._failed += sum(count for count, error in outcomes if not isinstance(error, Fenced))
        if failed and now - self._last_line >= _LOG_EVERY:
            log.error("%d changes are not stored; the last: %s", self._failed, failed[-1])
            self._last_line, self._failed = now, 0
        # Any other error concerns one write or one thread, not the whole store.
        causes = [each.__cause__ for each in failed if isinstance(each.__cause__, sqlite3.OperationalError)]
        if causes:
            self.trouble = str(causes[-1])
            self._last_failure = now
        elif self.trouble is not None and has_stored:
            self.record_success()


def explain(error: Exception, path: Path) -> str:
    """Return why the file cannot be opened and what to do about it, in one line."""
    folder = path.absolute().parent
    if isinstance(error, StoreError):
        return str(error)
    if not folder.is_dir():
        return f"there is no folder {folder}: make it with `mkdir -p {folder}`"
    if path.is_dir():
        return "it is a folder, not a file: name a file in it"
    if isinstance(error, UnicodeDecodeError) or "malformed" in str(error):
        return f"it is damaged: see `plait check {path}`, and restore a backup with `plait restore`"
    if "not a database" in str(error):
        return (
            "file is not a database, or its first page was overwritten: name another file, "
            "or restore a backup with `plait restore`"
        )
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "full" in str(error):
        return "the disk is full: free some space"
    return _explain_rights(error, path, folder)


def _explain_rights(error: Exception, path: Path, folder: Path) -> str:
    is_refused = isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EROFS
    if not (is_refused or isinstance(error, sqlite3.OperationalError)):
        return str(error)
    if not path.exists() and not os.access(folder, os.W_OK):
        return f"the folder {folder} is read-only for this user: allow writing to it (chmod, chown), or name another"
    if path.exists() and not os.access(path, os.R_OK):
        return "this user may not read it: allow reading it (chmod, chown), or serve as its owner"
    if path.exists() and not os.access(path, os.W_OK):
        return "it is read-only for this user: allow writing to it (chmod, chown), or serve as its owner"
    if not os.access(folder, os.W_OK):
        return f"the folder {folder} is read-only for this user: plait writes other files next to it (chmod, chown)"
    for sibling in (path.with_name(path.name + suffix) for suffix in (".lock", "-wal", "-shm")):
        if sibling.exists() and not os.access(sibling, os.W_OK):
            return f"{sibling} is read-only for this user: allow writing to it (chmod, chown), or serve as its owner"
    return str(error)
