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
        count, of_thread = 0, f"FROM {table} WHERE thread = ?"
        with closing(db.execute(f"SELECT length({value}) {of_thread} ORDER BY {key}", (thread,))) as rows:
            for (length,) in rows:
                count, size = count + 1, max(0, size - length - _ROW)
                if not size:
                    break
        # By number, as a damaged key may be no text.
        first = f"SELECT {key} {of_thread} ORDER BY {key} LIMIT ?"
        db.execute(f"DELETE {of_thread} AND ({key}) IN ({first})", (thread, thread, count))
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
