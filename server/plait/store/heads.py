"""The newest versions of stored threads: what the rows come to, and what is stored beside them to notice a loss."""

import sqlite3
from collections.abc import Mapping
from typing import Final

from plait.store.lock import Mark

__all__ = ["LAST", "has_write", "save_heads"]

LAST: Final = """max(
    coalesce((SELECT max(version) FROM snapshots WHERE thread = t.id), 0),
    coalesce((SELECT max(version) FROM changes WHERE thread = t.id), 0))
"""
"""The newest version that the rows of the thread `t` come to, in SQL."""


def save_heads(db: sqlite3.Connection, versions: Mapping[int, int]) -> None:
    """Store the versions that threads have come to, by their row ids, in a transaction of its own."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.executemany("UPDATE threads SET head = ? WHERE id = ?", [(head, id) for id, head in versions.items()])
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def has_write(db: sqlite3.Connection, mark: Mark) -> bool:
    """Whether the marked write is in the file."""
    found = db.execute(f"SELECT t.id, {LAST}, t.epoch FROM threads t WHERE t.id = ?", (mark.thread,)).fetchone()
    return found is not None and found[1] >= mark.version and Mark.of(*found).epoch == mark.epoch
