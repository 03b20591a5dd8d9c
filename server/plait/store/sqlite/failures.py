"""The meaning of SQLite's errors, and messages that tell an operator what to do."""

import errno
import os
import sqlite3
from pathlib import Path

from plait.errors import StoreError

__all__ = ["explain", "is_trouble", "may_be_in_log"]


def is_trouble(cause: BaseException) -> bool:
    """Whether the cause of a failed write concerns the whole file, such as a full disk."""
    return isinstance(cause, sqlite3.OperationalError)


def may_be_in_log(error: Exception) -> bool:
    """Whether a statement that failed may have written a commit to the log, where a restart would find it.

    The commit is written last, so it is in the log only if the sync after it failed, not if the write itself failed.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_IOERR and code != sqlite3.SQLITE_IOERR_WRITE


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
