"""Checks a SQLite store's file: reads every row and compares it with its checksum."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from plait.errors import PlaitError, StoreError, operator_message
from plait.store.protocol import StoredThread, ThreadKey
from plait.store.shards import find_file
from plait.store.sqlite import reads, schema
from plait.store.sqlite.checksums import read_change, read_client, read_records, read_snapshot, read_thread
from plait.store.sqlite.failures import explain
from plait.store.sqlite.file_identity import check_log
from plait.store.sqlite.file_place import ONLY_FILE, read_place

__all__ = ["Inspection", "connect"]

_COLUMNS: Final = {
    "changes": "version, ops, source, at, checksum",
    "snapshots": "version, state, checksum",
    "clients": "client, ref, refused, at, checksum",
    "records": "part, key, value, checksum",
}


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
    """Checks every row of a store, and counts the threads and changes.

    `replay` is called with each stored thread and `decode` with the operations of each change; both raise PlaitError
    for data that they cannot read.
    """

    def __init__(
        self,
        path: Path,
        *,
        replay: Callable[[ThreadKey, StoredThread], object],
        decode: Callable[[ThreadKey, bytes], object],
    ) -> None:
        self._path = path
        self._place = ONLY_FILE
        self._replay = replay
        self._decode = decode
        self.threads = 0
        self.changes = 0

    def run(self) -> Iterator[str]:
        """Yield a line for each damaged place. Raises StoreError when the file cannot be opened."""
        with closing(connect(self._path)) as db:
            yield from self._inspect_file(db)
            try:
                self._place = read_place(db)
                ids = [id for (id,) in db.execute("SELECT id FROM threads NOT INDEXED ORDER BY id")]
                for id in ids:
                    with reads.read_transaction(db):
                        yield from self._inspect_thread(db, id)
                for table in _COLUMNS:
                    yield from _find_strays(db, table)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                yield f"some threads cannot be read: {error}"

    def _inspect_file(self, db: sqlite3.Connection) -> Iterator[str]:
        try:
            for (line,) in db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    yield f"SQLite: {line}"
        except (sqlite3.Error, UnicodeDecodeError) as error:
            yield f"SQLite: {error}"

    def _inspect_thread(self, db: sqlite3.Connection, id: int) -> Iterator[str]:
        found = db.execute(
            "SELECT CAST(kind AS BLOB), CAST(name AS BLOB), head, state_version, secret, stateless, created_at,"
            " CAST(user AS BLOB), checksum FROM threads WHERE id = ?",
            (id,),
        ).fetchone()
        if found is None:
            return
        self.threads += 1
        key = ThreadKey(*(str(part, errors="replace") for part in found[:2]))
        if (number := find_file(key, self._place.count)) != self._place.number:
            yield f"{key} is not found by servers: it belongs to file {number} of the store"
        *thread, user, checksum = found[2:]
        thread += [None if user is None else str(user, errors="replace"), checksum]
        problems = 0
        for problem in self._inspect_rows(db, key, id, thread):
            problems += 1
            yield problem
        if problems:
            return
        try:
            stored = reads.load(db, key, None)
            if stored is None:
                yield f"{key} cannot be found by its name"
            else:
                self._replay(key, stored)
        except PlaitError as error:
            yield operator_message(error)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            yield f"{key} cannot be read: {error}"

    def _inspect_rows(self, db: sqlite3.Connection, key: ThreadKey, id: int, thread: Sequence[Any]) -> Iterator[str]:
        """Yield a line for each damaged row of a thread, including rows that its current state does not need."""
        last: int | None = None

        def check_change(row: Any) -> None:
            nonlocal last
            before, last = last, row[0]
            self.changes += 1
            self._decode(key, read_change(key, id, row).ops)
            if before is not None and row[0] != before + 1:
                raise StoreError(f"{key} cannot be read: changes are missing between versions {before} and {row[0]}")

        def check_snapshot(row: Any) -> None:
            self._replay(key, StoredThread("", row[0], read_snapshot(key, id, row), (), 1))

        def check_record(row: Any) -> None:
            read_records(key, id, row[0], [row[1:]])

        try:
            read_thread(key, thread)
        except PlaitError as error:
            yield str(error)
        yield from _check_each(db, key, id, "changes", check_change)
        yield from _check_each(db, key, id, "snapshots", check_snapshot)
        yield from _check_each(db, key, id, "clients", partial(read_client, key, id))
        yield from _check_each(db, key, id, "records", check_record)


def _check_each(
    db: sqlite3.Connection, key: ThreadKey, id: int, table: str, check: Callable[[Any], object]
) -> Iterator[str]:
    try:
        for row in db.execute(f"SELECT {_COLUMNS[table]} FROM {table} WHERE thread = ? ORDER BY 1", (id,)):
            try:
                check(row)
            except PlaitError as error:
                yield operator_message(error)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        yield f"{key} cannot be read: {table}: {error}"


def _find_strays(db: sqlite3.Connection, table: str) -> Iterator[str]:
    where = "thread NOT IN (SELECT id FROM threads) AND thread NOT IN (SELECT thread FROM removed)"
    (count,) = db.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()
    if count:
        yield f"{count} {table} belong to threads that do not exist"
