"""The table of rows in an SQLite file. Runs in the OS threads of the connections."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, TypeVar
from zlib import crc32

from plait.store.page import take_page
from plait.store.rows.engine import Key, Range, Row, Span
from plait.store.rows.parts import CHANGE
from plait.store.sqlite.schema import check, load_stamp

__all__ = ["Values", "begin_view", "make_row", "make_values", "open_reader", "read", "write", "write_one"]

T = TypeVar("T")

Values = tuple[int, str, Key, str | bytearray, int]
"""A row as it is stored: its space, part, key, value and checksum."""

# A change is never written again: without file locks, as on Windows, another server may have written it.
_ADD: Final = "INSERT INTO rows (thread, part, key, value, checksum) VALUES (?, ?, ?, ?, ?)"
_PUT: Final = f"{_ADD} ON CONFLICT DO UPDATE SET value = excluded.value, checksum = excluded.checksum"
_REMOVE: Final = "DELETE FROM rows WHERE thread = ? AND part = ? AND key >= ? AND key < ?"
_REMOVE_SPACE: Final = "DELETE FROM rows WHERE thread = ?"
_BEGIN: Final = "BEGIN"

# Reading


def open_reader(db: sqlite3.Connection) -> None:
    """Prepare a connection for `read`. Raises StoreError if this plait cannot read the file."""
    check(db)
    db.text_factory = bytes


def begin_view(db: sqlite3.Connection) -> None:
    """Begin a transaction, so that all that is read is of one moment."""
    open_reader(db)
    db.execute(_BEGIN)
    load_stamp(db)


def read(db: sqlite3.Connection, run: Callable[[Callable[[Sequence[Span]], list[list[Row]]]], T]) -> T:
    """Run reads, which get the rows of spans, in one transaction, unless one has begun."""
    if db.in_transaction:
        return run(partial(_read_spans, db))
    db.execute(_BEGIN)
    try:
        return run(partial(_read_spans, db))
    finally:
        if db.in_transaction:  # SQLite ends it by itself after some errors.
            db.execute("COMMIT")


def make_row(space: int, values: Any) -> Row:
    """Return a row from its part, key, value and checksum, with text as bytes."""
    part, key = _make_key(*values[:2])
    value, checksum = values[2:]
    is_sound = type(value) is bytes and _make_checksum(space, part, key, value) == checksum
    return part, key, value if is_sound else None


def _make_key(part: bytes, key: int | bytes) -> tuple[str, Key]:
    # Damaged text has another checksum.
    return part.decode(errors="replace"), key if isinstance(key, int) else key.decode(errors="replace")


def _read_spans(db: sqlite3.Connection, spans: Sequence[Span]) -> list[list[Row]]:
    return [_read_span(db, span) for span in spans]


def _read_span(db: sqlite3.Connection, span: Span) -> list[Row]:
    (first, *start), (last, *end) = span.start, span.end
    order = "DESC" if span.reverse else "ASC"
    if last == first or (last == first + "\0" and not end):
        where = f"part = ? {'AND key >= ?' if start else ''} {'AND key < ?' if end else ''} ORDER BY key {order}"
        values = [first, *start, *end]
    else:
        since, until = "(part, key) >= (?, ?)" if start else "part >= ?", "(part, key) < (?, ?)" if end else "part < ?"
        where, values = f"{since} AND {until} ORDER BY part {order}, key {order}", [*span.start, *span.end]
    what = "part, key" if span.keys_only else "part, key, value, checksum"
    statement = f"SELECT {what} FROM rows WHERE thread = ? AND {where} LIMIT ?"
    with closing(db.execute(statement, (span.number, *values, span.limit))) as found:
        if span.keys_only:
            return [(*_make_key(*row), b"") for row in found]
        rows = take_page(found, lambda row: len(row[2]), span.size)
    return [make_row(span.number, row) for row in rows]


def _make_checksum(space: int, part: str, key: Key, value: bytes) -> int:
    return crc32(value, crc32(f"{space} {part} {key}".encode()))


# Writing


def make_values(row: tuple[int, str, Key, bytes]) -> Values:
    """Return a row as it is stored."""
    space, part, key, value = row
    checksum = crc32(value, crc32(f"{space} {part} {key}".encode()))
    try:
        return space, part, key, value.decode(), checksum
    except UnicodeDecodeError:
        return space, part, key, bytearray(value), checksum


def write_one(db: sqlite3.Connection, row: Values) -> None:
    """Write a row."""
    db.execute(_ADD if row[1] == CHANGE else _PUT, row)


def write(
    db: sqlite3.Connection, rows: Sequence[Values], gone: Sequence[Range] = (), spaces: Sequence[int] = ()
) -> None:
    """Write rows, and remove others and all rows of spaces afterwards."""
    if changes := [row for row in rows if row[1] == CHANGE]:
        db.executemany(_ADD, changes)
    if len(changes) < len(rows):
        db.executemany(_PUT, [row for row in rows if row[1] != CHANGE] if changes else rows)
    if gone:
        db.executemany(_REMOVE, gone)
    if spaces:
        db.executemany(_REMOVE_SPACE, [(space,) for space in spaces])
