"""Everything in a SQLite store's file, read and compared with its checksums."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from plait.errors import PlaitError, StoreError, operator_message
from plait.store import rows, schema
from plait.store.checksums import read_change, read_client, read_snapshot, read_thread
from plait.store.health import explain
from plait.store.protocol import Stored, ThreadKey

__all__ = ["Inspection", "connect"]

_COLUMNS: Final = {
    "changes": "version, ops, source, at, checksum",
    "snapshots": "version, state, checksum",
    "clients": "client, ref, refused, at, checksum",
}


def connect(path: Path, *, may_be_older: bool = False) -> sqlite3.Connection:
    """Open a store's file to read it, which a server may have open. Raises StoreError."""
    db: sqlite3.Connection | None = None
    try:
        if not path.is_file():
            raise StoreError("there is no such file")
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5.0)
        schema.check(db, may_be_older=may_be_older)
    except (StoreError, sqlite3.Error, UnicodeDecodeError) as error:
        if db is not None:
            db.close()
        raise StoreError(f"cannot open the store {path}: {explain(error, path)}") from error
    return db


class Inspection:
    """Looks at every row of a store, and counts the threads and changes that it has seen.

    `decode` is given what is loaded of a thread, and each change's operations; it raises PlaitError if it cannot read
    them.
    """

    def __init__(
        self, path: Path, *, replay: Callable[[ThreadKey, Stored], object], decode: Callable[[ThreadKey, bytes], object]
    ) -> None:
        self._path = path
        self._replay = replay
        self._decode = decode
        self.threads = 0
        self.changes = 0

    def run(self) -> Iterator[str]:
        """Yield what is damaged, a line each. Raises StoreError when the file cannot be opened."""
        with closing(connect(self._path)) as db:
            yield from self._inspect_file(db)
            try:
                ids = [id for (id,) in db.execute("SELECT id FROM threads NOT INDEXED ORDER BY id")]
                for id in ids:
                    yield from self._inspect_thread(db, id)
                for table in _COLUMNS:
                    yield from _find_strays(db, table)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                yield f"the threads cannot all be read: {error}"

    def _inspect_file(self, db: sqlite3.Connection) -> Iterator[str]:
        try:
            for (line,) in db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    yield f"SQLite: {line}"
        except (sqlite3.Error, UnicodeDecodeError) as error:
            yield f"SQLite: {error}"

    def _inspect_thread(self, db: sqlite3.Connection, id: int) -> Iterator[str]:
        found = db.execute(
            "SELECT CAST(kind AS BLOB), CAST(name AS BLOB), head, state_version, secret, checksum FROM threads"
            " WHERE id = ?",
            (id,),
        ).fetchone()
        if found is None:
            return
        self.threads += 1
        key = ThreadKey(*(str(part, errors="replace") for part in found[:2]))
        problems = 0
        for problem in self._inspect_rows(db, key, id, found[2:]):
            problems += 1
            yield problem
        if problems:
            return
        try:
            stored = rows.load(db, key, None)
            if stored is None:
                yield f"{key} cannot be found by its name"
            else:
                self._replay(key, stored)
        except PlaitError as error:
            yield operator_message(error)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            yield f"{key} cannot be read: {error}"

    def _inspect_rows(self, db: sqlite3.Connection, key: ThreadKey, id: int, thread: tuple[Any, ...]) -> Iterator[str]:
        """Yield what is damaged of the rows of a thread, also of those that its state does not need."""
        last: int | None = None

        def look_at_change(row: Any) -> None:
            nonlocal last
            before, last = last, row[0]
            self.changes += 1
            self._decode(key, read_change(key, id, row).ops)
            if before is not None and row[0] != before + 1:
                raise StoreError(f"{key} cannot be read: changes are missing between versions {before} and {row[0]}")

        def look_at_snapshot(row: Any) -> None:
            self._replay(key, Stored("", row[0], read_snapshot(key, id, row), (), 1))

        try:
            read_thread(key, thread)
        except PlaitError as error:
            yield str(error)
        look_at_client = partial(read_client, key, id)
        yield from _look_at_each(db, key, id, "changes", look_at_change)
        yield from _look_at_each(db, key, id, "snapshots", look_at_snapshot)
        yield from _look_at_each(db, key, id, "clients", look_at_client)


def _look_at_each(
    db: sqlite3.Connection, key: ThreadKey, id: int, table: str, look: Callable[[Any], object]
) -> Iterator[str]:
    try:
        for row in db.execute(f"SELECT {_COLUMNS[table]} FROM {table} WHERE thread = ? ORDER BY 1", (id,)):
            try:
                look(row)
            except PlaitError as error:
                yield operator_message(error)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        yield f"{key} cannot be read: {table}: {error}"


def _find_strays(db: sqlite3.Connection, table: str) -> Iterator[str]:
    (count,) = db.execute(f"SELECT count(*) FROM {table} WHERE thread NOT IN (SELECT id FROM threads)").fetchone()
    if count:
        yield f"{count} {table} are of threads that are not there"
