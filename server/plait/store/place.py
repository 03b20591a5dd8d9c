"""The place of a file among the files of a SQLite store."""

import sqlite3
from typing import Final

import msgspec

__all__ = ["ALONE", "Place", "read_place"]


class Place(msgspec.Struct, frozen=True):
    """The number of a file among the files of a store, and their count."""

    number: int
    count: int


ALONE: Final = Place(0, 1)
"""The place of a store's only file."""


def read_place(db: sqlite3.Connection) -> Place:
    """Return the place that a file has stored."""
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'place'").fetchone() is None:
        return ALONE
    return Place(*db.execute("SELECT number, count FROM place").fetchone())
