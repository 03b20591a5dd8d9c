"""The SQL statements that list threads, and mark them as idle."""

from collections.abc import Callable
from typing import Any, Final

from plait.store.postgres.engine import Db
from plait.store.postgres.reads import END
from plait.store.postgres.schema import Tables
from plait.store.protocol import INCOMPLETE, DueThread, IdleThread, Order, ThreadKey, ThreadRow

__all__ = ["load_due", "load_idle", "load_threads", "mark_idle"]

_IDLE: Final = """
SELECT idle_since, name FROM {threads}
WHERE kind = $1 AND idle_since IS NOT NULL AND idle_since <= $2 AND (idle_since, name) > ($3, $4)
ORDER BY idle_since, name LIMIT $5
"""
_DUE: Final = """
SELECT due, kind, name FROM {threads} WHERE due > 0 AND due <= $1 AND (due, kind, name) > ($2, $3, $4)
ORDER BY due, kind, name LIMIT $5
"""
_NOT_IDLE: Final = """
SELECT id, fence, name FROM {threads}
WHERE kind = $1 AND idle_since IS NULL AND created_at IS NOT NULL AND id > $2 ORDER BY id LIMIT $3
"""
# A thread that was claimed since it was read has another fence.
_MARK_IDLE: Final = """
UPDATE {threads} t SET idle_since = $1 FROM (
    SELECT t.id FROM {threads} t JOIN unnest($2::bigint[], $3::bigint[]) w (id, fence)
    ON t.id = w.id AND t.fence = w.fence WHERE t.idle_since IS NULL ORDER BY t.id FOR UPDATE OF t
) locked WHERE t.id = locked.id
"""
_MARKED_AT_ONCE: Final = 10_000


async def load_threads(
    db: Db,
    tables: Tables,
    *,
    kind: str | None,
    prefix: str,
    user: str | None,
    order: Order,
    after: ThreadRow | None,
    limit: int,
) -> list[ThreadRow]:
    """Return the stored threads of a kind and a user, with a prefix, in an order, after a row."""
    where, values = ["created_at IS NOT NULL", f"due <> {INCOMPLETE}"], list[Any]()

    def add(condition: str, *found: Any) -> None:
        places = [f"${len(values) + number}" for number in range(1, len(found) + 1)]
        where.append(condition.format(", ".join(places)))
        values.extend(found)

    columns = ["name"] if kind is not None else ["kind", "name"]
    if order != "name":
        columns.insert(0, f"{order}_at")
    direction, sign = ("", ">") if order == "name" else (" DESC", "<")
    if kind is not None:
        add("kind = {}", kind.encode())
    if user is not None:
        add("user_id = {}", user.encode())
    if prefix:
        add("name >= {}", prefix.encode())
        add("name < {}", prefix.encode() + END)
    if after is not None:
        if kind is not None and after.key.kind != kind:
            columns.insert(len(columns) - 1, "kind")
        place = {"kind": after.key.kind.encode(), "name": after.key.name.encode()}
        place |= {"created_at": after.created_at, "changed_at": after.changed_at}  # type: ignore[dict-item]
        add(f"({', '.join(columns)}) {sign} ({{}})", *(place[column] for column in columns))
    places = ", ".join(f"{column}{direction}" for column in columns)
    sql = f"""
    SELECT kind, name, version, created_at, changed_at, user_id FROM {{threads}}
    WHERE {" AND ".join(where)} ORDER BY {places} LIMIT {int(limit)}
    """
    rows = await db.fetch(tables.fill(sql), *values)
    return [
        ThreadRow(ThreadKey(kind.decode(), name.decode()), version, created_at, changed_at, user and user.decode())
        for kind, name, version, created_at, changed_at, user in rows
    ]


async def load_due(db: Db, tables: Tables, *, until: int, after: DueThread | None, limit: int) -> list[DueThread]:
    """Return the threads that are due at `until` or before, the earliest first."""
    first = (0, b"", b"") if after is None else (after.due, *(each.encode() for each in after.key))
    rows = await db.fetch(tables.fill(_DUE), until, *first, limit)
    return [DueThread(due, ThreadKey(kind.decode(), name.decode())) for due, kind, name in rows]


async def load_idle(
    db: Db, tables: Tables, kind: str, *, until: int, after: IdleThread | None, limit: int
) -> list[IdleThread]:
    """Return the threads of a kind that have been idle since `until` or before, the longest idle ones first."""
    since, name = after or (-(2**63), "")
    rows = await db.fetch(tables.fill(_IDLE), kind.encode(), until, since, name.encode(), limit)
    return [IdleThread(since, name.decode()) for since, name in rows]


async def mark_idle(db: Db, tables: Tables, kind: str, at: int, may_mark: Callable[[ThreadKey], bool] | None) -> None:
    """Set the idle time of the threads of a kind that have none, and that `may_mark` accepts."""
    last = 0
    while rows := await db.fetch(tables.fill(_NOT_IDLE), kind.encode(), last, _MARKED_AT_ONCE):
        found = [
            (id, fence) for id, fence, name in rows if may_mark is None or may_mark(ThreadKey(kind, name.decode()))
        ]
        if found:
            await db.execute(tables.fill(_MARK_IDLE), at, [id for id, _ in found], [fence for _, fence in found])
        last = rows[-1]["id"]
