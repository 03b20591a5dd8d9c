"""Checks a SQLite store's file: reads every row and compares it with its checksum."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from plait.errors import PlaitError, StoreError, operator_message
from plait.spelling import count as spell_count
from plait.store.outcomes import describe
from plait.store.protocol import StoredThread
from plait.store.rows import reads
from plait.store.rows.engine import INDEX, Head, ReadPlan, Row
from plait.store.rows.layout import check_value, decode_head, find_places, read_changes, read_clients
from plait.store.rows.parts import CHANGE, CLIENT, REMOVED, SNAPSHOT, THREAD
from plait.store.rows.running import run_reads
from plait.store.shards import find_file
from plait.store.sqlite import schema, table
from plait.store.sqlite.failures import explain
from plait.store.sqlite.file_identity import check_log
from plait.store.sqlite.file_place import ONLY_FILE, read_place
from plait.store.thread_rows import ThreadKey

__all__ = ["Inspection", "connect"]

_HEAD: Final = f"SELECT part, key, value, checksum FROM rows WHERE rowid = ? AND {schema.HEADS}"
_ROWS: Final = "SELECT part, key, value, checksum FROM rows WHERE thread = ? ORDER BY part, key"
_INDEX: Final = f"SELECT part, key, value, checksum FROM rows NOT INDEXED WHERE thread = 0 AND NOT ({schema.HEADS})"
_PLACE: Final = "SELECT 1 FROM rows WHERE thread = 0 AND part = ? AND key = ?"
# The rows of deleted threads are removed later.
_STRAYS: Final = f"""
SELECT count(*) FROM rows WHERE thread > 0 AND thread NOT IN (
    SELECT json_extract(value, '$.space') FROM rows WHERE {schema.HEADS} AND json_valid(value)
    UNION ALL SELECT key FROM rows WHERE thread = 0 AND part = '{REMOVED}')
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open a store's file for reading; a server may have it open. Raises StoreError."""
    db: sqlite3.Connection | None = None
    try:
        if not path.is_file():
            raise StoreError("there is no such file")
        check_log(path)
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5.0)
        schema.check(db)
    except (StoreError, sqlite3.Error, OSError, UnicodeDecodeError) as error:
        if db is not None:
            db.close()
        raise StoreError(f"cannot open the store {path}: {explain(error, path)}") from error
    return db


class Inspection:
    """Checks every row of a store, and counts the threads and changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = ONLY_FILE
        self.threads = 0
        self.changes = 0

    def run(self) -> Iterator[str]:
        """Yield a line for each damaged place. Raises StoreError when the file cannot be opened."""
        with closing(connect(self._path)) as db:
            yield from _inspect_file(db)
            try:
                self._place = read_place(db)
                db.text_factory = bytes
                heads = [id for (id,) in db.execute(f"SELECT rowid FROM rows NOT INDEXED WHERE {schema.HEADS}")]
                for id in heads:
                    yield from self._inspect_thread(db, id)
                yield from _inspect_index(db)
            except sqlite3.Error as error:
                yield f"some threads cannot be read: {error}"

    # For subclasses

    def replay(self, key: ThreadKey, stored: StoredThread) -> None:
        """Raise PlaitError if a stored thread cannot be read."""
        raise NotImplementedError

    def decode(self, key: ThreadKey, ops: bytes) -> None:
        """Raise PlaitError if the operations of a change cannot be read."""
        raise NotImplementedError

    # Inside

    def _inspect_thread(self, db: sqlite3.Connection, id: int) -> Iterator[str]:
        """Yield a line for each damaged row of a thread, including rows that its current state does not need."""
        # One transaction a thread: a server may write at the same time, and its log would grow during a longer one.
        db.execute("BEGIN")
        try:
            if (found := db.execute(_HEAD, (id,)).fetchone()) is None:
                return
            self.threads += 1
            row = table.make_row(INDEX, found)
            key = ThreadKey(row[0].removeprefix(THREAD), str(row[1]))
            if (number := find_file(key, self._place.count)) != self._place.number:
                yield f"{key} is not found by servers: it belongs to file {number} of the store"
            problems = 0
            for problem in self._inspect_rows(db, key, row, found[2]):
                problems += 1
                yield problem
            if not problems:
                yield from self._inspect_whole(db, key)
        finally:
            if db.in_transaction:
                db.execute("COMMIT")

    def _inspect_rows(self, db: sqlite3.Connection, key: ThreadKey, row: Row, value: bytes) -> Iterator[str]:
        head: Head | None = None
        try:
            head = decode_head(key, [row])
        except (PlaitError, ValueError) as error:
            yield _explain(key, error)
            try:
                head = decode_head(key, [(*row[:2], value)])
            except (ValueError, TypeError):
                return
        assert head is not None
        if row[2] is not None:
            for place in find_places(key, head):
                if db.execute(_PLACE, place).fetchone() is None:
                    yield f"{key} is missing in {place[0]}"
        last: int | None = None
        for values in db.execute(_ROWS, (head.space,)):
            found = table.make_row(head.space, values)
            if found[0] == CHANGE and isinstance(found[1], int):
                before, last = last, found[1]
                if before is not None and last != before + 1:
                    yield f"{key} cannot be read: changes are missing between versions {before} and {last}"
            try:
                self._inspect_row(key, found)
            except (PlaitError, ValueError) as error:
                yield _explain(key, error)

    def _inspect_row(self, key: ThreadKey, row: Row) -> None:
        part = row[0]
        if part == CHANGE:
            self.changes += 1
            self.decode(key, read_changes(key, [row])[0].ops)
        elif part == SNAPSHOT:
            self.replay(key, StoredThread("", int(row[1]), check_value(key, row), (), 1))
        elif part == CLIENT:
            read_clients(key, [row])
        else:
            check_value(key, row)

    def _inspect_whole(self, db: sqlite3.Connection, key: ThreadKey) -> Iterator[str]:
        """Load a thread without damaged rows as servers do."""
        try:
            found = table.read(db, partial(run_reads, ReadPlan(reads.load, key, None)))
            if found is None:
                yield f"{key} cannot be found by its name"
            else:
                self.replay(key, found[0])
        except (PlaitError, ValueError) as error:
            yield _explain(key, error)
        except sqlite3.Error as error:
            yield f"{key} cannot be read: {error}"


def _inspect_file(db: sqlite3.Connection) -> Iterator[str]:
    try:
        for (line,) in db.execute("PRAGMA integrity_check"):
            if line != "ok":
                yield f"SQLite: {line}"
    except (sqlite3.Error, UnicodeDecodeError) as error:
        yield f"SQLite: {error}"


def _inspect_index(db: sqlite3.Connection) -> Iterator[str]:
    """Yield a line for each damaged row of the index but those of threads, and one for rows without a thread."""
    for values in db.execute(_INDEX):
        part, key, value = table.make_row(INDEX, values)
        if value is None:
            yield f"the row {key!r} of {part} is damaged"
    ((count,),) = db.execute(_STRAYS)
    if count:
        yield f"{spell_count(count, 'row')} belong{'s' if count == 1 else ''} to no thread"


def _explain(key: ThreadKey, error: Exception) -> str:
    return operator_message(error) if isinstance(error, PlaitError) else f"{key} cannot be read: {describe(error)}"
