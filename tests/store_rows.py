"""Reads the rows in the file of a SQLite store, past the store."""

import sqlite3
from contextlib import closing
from pathlib import Path

__all__ = ["HEADS", "count_strays", "find_space", "load_changes"]

HEADS = "thread = 0 AND part >= '~thread/' AND part < '~thread0'"
"""The SQL that selects the rows of threads."""

_CHANGES = "SELECT key, json_extract(value, '$.ops') FROM rows WHERE thread = ? AND part = '~c' ORDER BY key"
_STRAYS = f"""
SELECT count(*) FROM rows WHERE thread > 0 AND thread NOT IN (
    SELECT json_extract(value, '$.space') FROM rows WHERE {HEADS})
"""


def find_space(db: sqlite3.Connection, name: str) -> int | None:
    """Return the number of the space of a thread; None if there is none with this name."""
    found = db.execute(f"SELECT json_extract(value, '$.space') FROM rows WHERE {HEADS} AND key = ?", (name,)).fetchone()
    return found and int(found[0])


def load_changes(path: Path, name: str) -> list[tuple[int, str]]:
    """Return the versions of a thread's stored changes, and their operations as JSON."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return db.execute(_CHANGES, (find_space(db, name),)).fetchall()


def count_strays(path: Path) -> int:
    """Return the number of rows of threads that do not exist, such as those of deleted threads."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        ((found,),) = db.execute(_STRAYS)
    return int(found)
