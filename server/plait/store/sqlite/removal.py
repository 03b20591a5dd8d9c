"""Removes old changes, and the rows of deleted threads in steps. Runs in the writer's OS thread."""

import sqlite3
from contextlib import closing
from typing import Final

from plait.clock import read_wall_clock
from plait.store.thread_rows import CLIENT_DAYS, DAY, Prune

__all__ = ["STEP", "has_removed", "prune_log", "remove_all", "remove_rows", "remove_step"]

STEP: Final = 1024 * 1024
"""The bytes that one transaction removes, as the writes of all threads wait for it."""

# The bytes that a row takes in addition to its value.
_ROW: Final = 256
# Maximum number of threads that one transaction removes.
_THREADS: Final = 1000
# By table: the columns that order the rows of a thread, and the column of the value.
_TABLES: Final = {
    "changes": ("version", "ops"),
    "snapshots": ("version", "state"),
    "clients": ("client", "refused"),
    "records": ("part, key", "value"),
}

# The clock may have been wrong: times in the future are ignored, and no change after a recent one is too old.
_PAST_AGE: Final = """
SELECT max(version) FROM changes WHERE thread = :thread AND at < :at AND version < coalesce(
    (SELECT min(version) FROM changes WHERE thread = :thread AND at BETWEEN :at AND :now), 9223372036854775807)
"""
_PAST_BYTES: Final = """
SELECT max(version) FROM (
    SELECT version, sum(length(ops)) OVER (ORDER BY version DESC) AS size FROM changes WHERE thread = ?
) WHERE size > ?
"""
# A wrong clock must not expire clients: keep each until other clients have pushed on as many different days.
_FORGET_CLIENTS: Final = """
DELETE FROM clients WHERE thread = :thread AND at < :now - :day * :days AND at / :day < (
    SELECT min(day) FROM (
        SELECT DISTINCT at / :day AS day FROM clients WHERE thread = :thread AND at <= :now
        ORDER BY day DESC LIMIT :days))
"""


def prune_log(db: sqlite3.Connection, thread: int, prune: Prune) -> None:
    """Remove everything older than the newest snapshot outside a bound, and clients that have not pushed for long."""
    bounds, now = [prune.version], read_wall_clock()
    if prune.at:
        bounds += db.execute(_PAST_AGE, {"thread": thread, "at": prune.at, "now": now}).fetchone()
    if prune.bytes is not None:
        bounds += db.execute(_PAST_BYTES, (thread, prune.bytes)).fetchone()
    bound = max(each or 0 for each in bounds)
    (oldest,) = db.execute(
        "SELECT max(version) FROM snapshots WHERE thread = ? AND version <= ?", (thread, bound)
    ).fetchone()
    if oldest is not None:
        db.execute("DELETE FROM changes WHERE thread = ? AND version <= ?", (thread, oldest))
        db.execute("DELETE FROM snapshots WHERE thread = ? AND version < ?", (thread, oldest))
    db.execute(_FORGET_CLIENTS, {"thread": thread, "now": now, "day": DAY, "days": CLIENT_DAYS})


def remove_rows(db: sqlite3.Connection, thread: int, size: int) -> int:
    """Remove rows of a thread until they reach `size` bytes, and return how many bytes were not needed.

    If that is more than 0, the thread has no more rows.
    """
    for table, (key, value) in _TABLES.items():
        count, of_thread = 0, f"FROM {table} WHERE thread = ?"
        with closing(db.execute(f"SELECT length({value}) {of_thread} ORDER BY {key}", (thread,))) as rows:
            for (length,) in rows:
                count, size = count + 1, max(0, size - length - _ROW)
                if not size:
                    break
        # Select by position, because a damaged key may not be text.
        first = f"SELECT {key} {of_thread} ORDER BY {key} LIMIT ?"
        db.execute(f"DELETE {of_thread} AND ({key}) IN ({first})", (thread, thread, count))
        if not size:
            break
    return size


def remove_step(db: sqlite3.Connection) -> bool:
    """Remove about 1 MiB of the rows of deleted threads, in one transaction, and return whether more are left."""
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
    """Remove all rows of deleted threads."""
    while remove_step(db):
        pass


def has_removed(db: sqlite3.Connection) -> bool:
    """Whether deleted threads have rows left."""
    return db.execute("SELECT 1 FROM removed LIMIT 1").fetchone() is not None
