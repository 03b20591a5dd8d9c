"""The removal of the rows of deleted threads, a part at a time. Runs in the OS thread of the writer."""

import sqlite3
from contextlib import closing
from typing import Final

__all__ = ["STEP", "has_removed", "remove_all", "remove_rows", "remove_step"]

STEP: Final = 1024 * 1024
"""Bytes that are removed in one transaction; the writes of all threads wait for it."""

# Bytes that a row counts beside its value, and threads without rows in one transaction.
_ROW: Final = 256
_THREADS: Final = 1000
# By table: what its rows are ordered by in a thread, and what is large in them.
_TABLES: Final = {
    "changes": ("version", "ops"),
    "snapshots": ("version", "state"),
    "clients": ("client", "refused"),
    "records": ("part, key", "value"),
}


def remove_rows(db: sqlite3.Connection, thread: int, size: int) -> int:
    """Remove rows of a thread up to the one at which they reach `size` bytes, and return how many bytes are left.

    None of the thread's rows is left unless that is 0.
    """
    for table, (key, value) in _TABLES.items():
        last: tuple[object, ...] = ()
        query = f"SELECT length({value}), {key} FROM {table} WHERE thread = ? ORDER BY {key}"
        with closing(db.execute(query, (thread,))) as rows:
            for length, *found in rows:
                last, size = tuple(found), max(0, size - length - _ROW)
                if not size:
                    break
        if last:
            marks = ", ".join("?" * len(last))
            db.execute(f"DELETE FROM {table} WHERE thread = ? AND ({key}) <= ({marks})", (thread, *last))
        if not size:
            break
    return size


def remove_step(db: sqlite3.Connection) -> bool:
    """Remove about 1 MiB of what deleted threads have left, in a transaction, and return whether more is left."""
    db.execute("BEGIN IMMEDIATE")
    try:
        left = STEP
        for (thread,) in db.execute("SELECT thread FROM removed LIMIT ?", (_THREADS,)).fetchall():
            left = remove_rows(db, thread, left)
            if not left:
                break
            db.execute("DELETE FROM removed WHERE thread = ?", (thread,))
        has_rest = has_removed(db)
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return has_rest


def remove_all(db: sqlite3.Connection) -> None:
    """Remove all that deleted threads have left."""
    while remove_step(db):
        pass


def has_removed(db: sqlite3.Connection) -> bool:
    """Whether deleted threads have left any rows."""
    return db.execute("SELECT 1 FROM removed LIMIT 1").fetchone() is not None
