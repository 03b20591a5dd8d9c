"""Backs up a SQLite store, even while a server has it open, and restores backups."""

import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from plait.errors import StoreError
from plait.store.rows.engine import ReadPlan
from plait.store.rows.parts import REMOVED
from plait.store.rows.reads import renew_epochs
from plait.store.rows.running import run_reads
from plait.store.sqlite import table
from plait.store.sqlite.failures import explain
from plait.store.sqlite.file_identity import is_foreign_log, make_log_path, set_log_aside
from plait.store.sqlite.inspection import connect
from plait.store.sqlite.lock import StoreLock
from plait.store.sqlite.schema import HEADS

__all__ = ["back_up", "check_restore", "free_name", "restore"]

# The rows of deleted threads, and the marks of these threads. A mark may be damaged, and name the space of a thread.
_REMOVE_REST: Final = f"""
DELETE FROM rows WHERE thread IN (SELECT key FROM rows WHERE thread = 0 AND part = ?) AND thread NOT IN (
    SELECT json_extract(value, '$.space') FROM rows WHERE {HEADS} AND json_valid(value))
"""
_REMOVE_MARKS: Final = "DELETE FROM rows WHERE thread = 0 AND part = ?"


def back_up(store: Path, target: Path) -> int:
    """Copy a store, which a server may have open, to a new file, and return the number of threads.

    Raises StoreError.
    """
    if target.exists():
        raise StoreError(f"{target} exists: name another file, or remove this one")
    with closing(connect(store)) as source:
        partial = target.with_name(target.name + ".partial")
        try:
            threads = _copy(source, partial, rights_of=store, new_epochs=False)
            partial.rename(target)
            _sync(target.absolute().parent)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise StoreError(f"cannot back up to {target}: {explain(error, target)}") from error
        finally:
            partial.unlink(missing_ok=True)
    return threads


def check_restore(pairs: Iterable[tuple[Path, Path]]) -> None:
    """Check that each backup is intact, and that no server has the file open that it replaces. Raises StoreError."""
    for backup, store in pairs:
        if store.exists() and backup.exists() and store.samefile(backup):
            raise StoreError(f"{backup} is the store itself: name a backup of it")
        with closing(connect(backup)) as source:
            try:
                intact = source.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
            except (sqlite3.Error, UnicodeDecodeError):
                intact = False
        if not intact:
            raise StoreError(f"{backup} is damaged: use another backup; `plait check {backup}` lists the damage")
        _lock(store).close()


def restore(backup: Path, store: Path) -> tuple[int, Path | None]:
    """Replace a file that no server has open with a backup, and give all its threads new epochs.

    Returns the number of threads, and the path to which the replaced file was moved. Raises StoreError.
    """
    check_restore([(backup, store)])
    with closing(connect(backup)) as source:
        lock = _lock(store)
        restored = store.with_name(store.name + ".restored")
        try:
            threads = _copy(source, restored, rights_of=store if store.exists() else backup, new_epochs=True)
            kept = _put_in_place(restored, store)
            lock.clear()
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise StoreError(f"cannot restore {store}: {explain(error, store)}") from error
        finally:
            restored.unlink(missing_ok=True)
            lock.close()
    return threads, kept


def _copy(source: sqlite3.Connection, target: Path, *, rights_of: Path, new_epochs: bool) -> int:
    """Copy a store to one file, sync it to the disk, and return the number of threads."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    # Other users must not read the copy before it has the permissions of the store.
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        source.backup(copy)
        # In WAL mode the copy would consist of more than one file.
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute(_REMOVE_REST, (REMOVED,))
        copy.execute(_REMOVE_MARKS, (REMOVED,))
        # A server detects a copy without a stamp if it replaces the server's open file.
        copy.execute("DELETE FROM stamp")
        if new_epochs:
            _renew_epochs(copy)
        threads: int = copy.execute(f"SELECT count(*) FROM rows WHERE {HEADS}").fetchone()[0]
    status = rights_of.stat()
    target.chmod(status.st_mode & 0o777)
    with suppress(PermissionError):
        os.chown(target, status.st_uid, status.st_gid)
    _sync(target)
    return threads


def _renew_epochs(db: sqlite3.Connection) -> None:
    table.open_reader(db)
    rows = [table.make_values(row) for row in table.read(db, partial(run_reads, ReadPlan(renew_epochs)))]
    db.execute("BEGIN IMMEDIATE")
    table.write(db, rows)
    db.execute("COMMIT")


def _lock(store: Path) -> StoreLock:
    try:
        return StoreLock(store)
    except (StoreError, OSError) as error:
        raise StoreError(f"cannot restore {store}: {explain(error, store)}") from error


def _put_in_place(restored: Path, store: Path) -> Path | None:
    """Replace a store by a file. The old file is kept next to it, even if the process is killed halfway."""
    kept = None
    log = make_log_path(store)
    if log.exists() and (not store.exists() or is_foreign_log(store)):
        set_log_aside(store)
    if store.exists():
        kept = free_name(store)
        _keep(store, kept)
        if log.exists():
            _keep(log, make_log_path(kept))
    # The log belongs to the old file, and SQLite would apply it to the restored one.
    for path in (log, store.with_name(store.name + "-shm")):
        path.unlink(missing_ok=True)
    restored.replace(store)
    _sync(store.absolute().parent)
    return kept


def free_name(store: Path) -> Path:
    """Return the path to which a store is moved when a backup replaces it."""
    names = (f"{store.name}.before-restore{'' if n == 1 else f'-{n}'}" for n in range(1, 10_000))
    return next(path for name in names if not (path := store.with_name(name)).exists())


def _keep(path: Path, kept: Path) -> None:
    try:
        os.link(path, kept)
    except OSError:  # Some file systems have no hard links.
        shutil.copy2(path, kept)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
