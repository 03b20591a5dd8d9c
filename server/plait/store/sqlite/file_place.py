"""The place of a file among the files of a SQLite store."""

import sqlite3
from typing import Final

import msgspec

__all__ = ["ONLY_FILE", "FilePlace", "read_place"]


class FilePlace(msgspec.Struct, frozen=True):
    """The number of a file among the files of a store, and their count."""

    number: int
    count: int


ONLY_FILE: Final = FilePlace(0, 1)
"""The place of a store's only file."""


def read_place(db: sqlite3.Connection) -> FilePlace:
    """Return the place that a file has stored."""
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'place'").fetchone() is None:
        return ONLY_FILE
    return FilePlace(*db.execute("SELECT number, count FROM place").fetchone())
