"""The SQL statements that list threads. Runs in the OS threads of the connections."""

import sqlite3
from contextlib import closing
from typing import Final

from plait.store.protocol import DueThread, ThreadKey, ThreadQuery, ThreadRow
from plait.store.sqlite.reads import find_end, read_transaction
from plait.store.sqlite.schema import LAST_VERSION
from plait.store.thread_rows import INCOMPLETE

__all__ = ["load_due", "load_threads"]

_DUE: Final = """
SELECT due, kind, name FROM threads WHERE due > 0 AND due <= ? AND (due, kind, name) > (?, ?, ?)
ORDER BY due, kind, name LIMIT ?
"""
_VERSION: Final = f"SELECT {LAST_VERSION} FROM threads t WHERE t.id = ?"


def load_threads(db: sqlite3.Connection, query: ThreadQuery) -> list[ThreadRow]:
    """Return the rows of `Store.threads`."""
    kind, prefix, user, order, after = query.kind, query.prefix, query.user, query.order, query.after
    where, values, index = [f"due <> {INCOMPLETE}"], list[str | int](), ""
    if kind is not None:
        where, values = [*where, "kind = ?"], [*values, kind]
    if user is not None:
        where, values, index = [*where, "user = ?"], [*values, user], "INDEXED BY threads_user"
    columns = ["kind", "name"] if kind is None or (after is not None and after.key.kind != kind) else ["name"]
    if order != "name":
        # Threads with a prefix are next to each other by name only: find them by name, and sort them.
        columns.insert(0, f"+{order}_at" if prefix else f"{order}_at")
    direction, sign = ("", ">") if order == "name" else (" DESC", "<")
    if after is not None:
        at = {"name": [], "created": [after.created_at], "changed": [after.changed_at]}[order]
        names = after.key if "kind" in columns else [after.key.name]
        where.append(f"({', '.join(columns)}) {sign} ({', '.join('?' * len(columns))})")
        values += [*at, *names]
    # With two lower bounds of the name, SQLite would search by one of them and scan the rows below the other.
    if prefix and (columns != ["name"] or after is None or after.key.name < prefix):
        where, values = [*where, "name >= ?"], [*values, prefix]
    if (end := find_end(prefix)) is not None:
        where, values = [*where, "name < ?"], [*values, end]
    places = ", ".join(f"{column}{direction}" for column in columns)
    which = f"""
    SELECT id, kind, name, created_at, changed_at, user FROM threads {index}
    WHERE {" AND ".join(where)} ORDER BY {places} LIMIT ?
    """
    with read_transaction(db):
        with closing(db.execute(which, (*values, query.limit))) as rows:
            found = rows.fetchall()
        versions = [db.execute(_VERSION, (id,)).fetchone()[0] for id, *_ in found]
    return [
        ThreadRow(ThreadKey(kind, name), version, *rest)
        for (_, kind, name, *rest), version in zip(found, versions, strict=True)
    ]


def load_due(db: sqlite3.Connection, until: int, after: DueThread | None, limit: int) -> list[DueThread]:
    """Return the threads that are due at `until` or before, the earliest first."""
    first = (0, "", "") if after is None else (after.due, *after.key)
    return [DueThread(due, ThreadKey(kind, name)) for due, kind, name in db.execute(_DUE, (until, *first, limit))]
