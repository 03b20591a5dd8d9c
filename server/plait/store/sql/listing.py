"""The SQL statements that list threads."""

from typing import Any, Final

from plait.store.protocol import DueThread, ThreadKey, ThreadQuery, ThreadRow
from plait.store.sql.db import Queries
from plait.store.sql.reads import END
from plait.store.sql.tables import Tables
from plait.store.thread_rows import INCOMPLETE

__all__ = ["load_due", "load_threads"]

_DUE: Final = """
SELECT due, kind, name FROM {threads} WHERE due > 0 AND due <= $1 AND %(after)s
ORDER BY due, kind, name LIMIT $5
"""


async def load_threads(db: Queries, tables: Tables, query: ThreadQuery) -> list[ThreadRow]:
    """Return the rows of `Store.threads`."""
    kind, prefix, user, order, after = query.kind, query.prefix, query.user, query.order, query.after
    where, values = ["created_at IS NOT NULL", f"due <> {INCOMPLETE}"], list[Any]()

    def place(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    columns = ["name"] if kind is not None else ["kind", "name"]
    if order != "name":
        columns.insert(0, f"{order}_at")
    direction, sign = ("", ">") if order == "name" else (" DESC", "<")
    if kind is not None:
        where.append(f"kind = {place(kind.encode())}")
    if user is not None:
        where.append(f"user_id = {place(user.encode())}")
    if prefix:
        where.append(f"name >= {place(prefix.encode())}")
        where.append(f"name < {place(prefix.encode() + END)}")
    if after is not None:
        if kind is not None and after.key.kind != kind:
            columns.insert(len(columns) - 1, "kind")
        last: dict[str, Any] = {"kind": after.key.kind.encode(), "name": after.key.name.encode()}
        last |= {"created_at": after.created_at, "changed_at": after.changed_at}
        where.append(tables.compare(columns, sign, [place(last[column]) for column in columns]))
    places = ", ".join(f"{column}{direction}" for column in columns)
    sql = f"""
    SELECT kind, name, version, created_at, changed_at, user_id FROM {{threads}}
    WHERE {" AND ".join(where)} ORDER BY {places} LIMIT {int(query.limit)}
    """
    rows = await db.fetch(tables.fill(sql), *values)
    return [
        ThreadRow(ThreadKey(kind.decode(), name.decode()), version, created_at, changed_at, user and user.decode())
        for kind, name, version, created_at, changed_at, user in rows
    ]


async def load_due(db: Queries, tables: Tables, *, until: int, after: DueThread | None, limit: int) -> list[DueThread]:
    """Return the threads that are due at `until` or before, the earliest first."""
    first = (0, b"", b"") if after is None else (after.due, *(each.encode() for each in after.key))
    sql = _DUE.replace("%(after)s", tables.compare(("due", "kind", "name"), ">", ("$2", "$3", "$4")))
    rows = await db.fetch(tables.fill(sql), until, *first, limit)
    return [DueThread(due, ThreadKey(kind.decode(), name.decode())) for due, kind, name in rows]
