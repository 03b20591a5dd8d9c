"""The SQL statements that read a thread. Each is one round trip, and sees one moment."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from plait.errors import CorruptThread
from plait.store.page import take_page
from plait.store.protocol import StoredThread, ThreadHeader, ThreadKey
from plait.store.sql.db import Queries
from plait.store.sql.rows import encode
from plait.store.sql.tables import Tables
from plait.store.thread_rows import KNOWN_CLIENTS, ChangeRow, ClientRow, Record, RecordRange

__all__ = [
    "CLAIMED",
    "END",
    "find",
    "join_load",
    "list_snapshots",
    "load",
    "load_changes",
    "load_client",
    "load_clients",
    "load_page",
    "load_record",
    "load_records",
    "load_schema",
    "load_schemas",
    "make_load",
    "range_values",
    "read_thread",
]

END: Final = b"\xff"
"""After all text in UTF-8; with a prefix before it, after all text with this prefix."""

_FIND: Final = """
SELECT epoch, version, created_at, user_id, due, changed_at FROM {threads}
WHERE kind = $1 AND name = $2 AND created_at IS NOT NULL
"""
_ID: Final = "(SELECT id FROM {threads} WHERE kind = $1 AND name = $2)"
# The rows of a thread have these columns: what it is, two numbers, two values, and more numbers of the thread.
_LOAD: Final = f"""
SELECT 0 AS what, version AS n, created_at AS at, epoch AS a, secret AS b, id, state_version,
    CASE WHEN stateless THEN 1 ELSE 0 END AS stateless, due, writes, coalesce(
        (SELECT min(version) FROM {{snapshots}} s WHERE s.thread = h.id), 0) AS oldest FROM h
UNION ALL
SELECT 1, 0, 0, user_id, NULL, 0, 0, 0, 0, 0, 0 FROM h WHERE user_id IS NOT NULL
UNION ALL
SELECT 2, version, 0, state, NULL, 0, 0, 0, 0, 0, 0 FROM {{snapshots}}
WHERE thread = (SELECT id FROM h) AND version = (SELECT version FROM since)
UNION ALL
SELECT 3, version, at, ops, source, 0, 0, 0, 0, 0, 0 FROM {{changes}} WHERE thread = (SELECT id FROM h)
    AND version > coalesce((SELECT version FROM since), 0) AND version <= %(to)s
UNION ALL
(SELECT 4, 0, 0, client, NULL, 0, 0, 0, 0, 0, 0 FROM {{clients}} WHERE thread = (SELECT id FROM h)
LIMIT {KNOWN_CLIENTS + 1})
"""
_WITH: Final = """
h AS (SELECT * FROM {threads} WHERE kind = $1 AND name = $2 AND created_at IS NOT NULL), since AS (
    SELECT version FROM {snapshots} WHERE thread = (SELECT id FROM h) AND version <= %(to)s
    ORDER BY version DESC LIMIT 1
)
"""
_RANGE: Final = """
UNION ALL
(SELECT {what}, 0, 0, "key", value, 0, 0, 0, 0, 0, 0 FROM {{records}}
WHERE thread = (SELECT id FROM h) AND part = ${part} AND "key" >= ${start} AND "key" < ${end}
ORDER BY "key"{direction} LIMIT ${limit})
"""
CLAIMED: Final = 5
"""The first column of the row that a claim adds to those of a thread; then come those of its head."""

_FIRST_RANGE: Final = 6
# One change or record more than those that are asked for by size is never read.
_CHANGES: Final = f"""
SELECT version, ops, source, at FROM (
    SELECT *, sum(length(ops)) OVER (ORDER BY version %(direction)s) - length(ops) AS seen FROM (
        SELECT version, ops, source, at FROM {{changes}}
        WHERE thread = {_ID} AND version %(sign)s $3 ORDER BY version %(direction)s LIMIT $4) c
) c WHERE seen < $5 ORDER BY version %(direction)s
"""
_AFTER: Final = _CHANGES % {"sign": ">", "direction": "ASC"}
_BEFORE: Final = _CHANGES % {"sign": "<", "direction": "DESC"}
_CLIENT: Final = f"SELECT client, ref, refused, at FROM {{clients}} WHERE thread = {_ID} AND client = $3"
_CLIENTS: Final = f"""
SELECT client, ref, refused, at FROM {{clients}} WHERE thread = {_ID} AND client > $3 ORDER BY client LIMIT $4
"""
_RECORD: Final = f'SELECT value FROM {{records}} WHERE thread = {_ID} AND part = $3 AND "key" = $4'
_RECORDS: Final = f"""
SELECT "key", value FROM (
    SELECT *, sum(length(value)) OVER (ORDER BY "key" %(direction)s) - length(value) AS seen FROM (
        SELECT "key", value FROM {{records}} WHERE thread = {_ID} AND part = $3
        AND "key" >= $4 AND "key" < $5 ORDER BY "key" %(direction)s LIMIT $6) r
) r WHERE seen < $7 ORDER BY "key" %(direction)s
"""
_FORWARD: Final = _RECORDS % {"direction": "ASC"}
_REVERSE: Final = _RECORDS % {"direction": "DESC"}
_PAGE: Final = f"""
SELECT part, "key", value FROM (
    SELECT *, sum(length(value)) OVER (ORDER BY part, "key") - length(value) AS seen FROM (
        SELECT part, "key", value FROM {{records}} WHERE thread = {_ID} AND %(after)s
        ORDER BY part, "key" LIMIT $5) r
) r WHERE seen < $6 ORDER BY part, "key"
"""
_ALL: Final = 2**62


async def find(db: Queries, tables: Tables, key: ThreadKey) -> ThreadHeader | None:
    """Return the header of a thread; None if there is none."""
    if not (rows := await db.fetch(tables.fill(_FIND), *encode(key))):
        return None
    epoch, version, created_at, user, due, changed_at = rows[0]
    return ThreadHeader(epoch.decode(), version, created_at, _decode(user), due, changed_at)


async def load(
    db: Queries, tables: Tables, key: ThreadKey, version: int | None, ranges: Sequence[RecordRange] = ()
) -> StoredThread | None:
    """Return a thread, at `version` if one is given, with the records of ranges. Raises CorruptThread."""
    sql, values = make_load(key, version, ranges)
    return read_thread(key, await db.fetch(tables.fill(sql), *values), version, ranges)


def make_load(key: ThreadKey, version: int | None, ranges: Sequence[RecordRange]) -> tuple[str, list[Any]]:
    """Return the statement of `load` and its values. `read_thread` reads what it finds."""
    sql = join_load("", tuple(each.reverse for each in ranges), first=4, to="coalesce($3, (SELECT version FROM h))")
    return sql, [*encode(key), version, *range_values(ranges)]


@cache
def join_load(claim: str, directions: tuple[bool, ...], *, first: int, to: str) -> str:
    """Return the statement that loads a thread up to a version with ranges of records.

    `$1` and `$2` are the kind and the name, and the values of the ranges are from place `first`. A `claim` is SQL that
    comes before it; what it finds is one row more, `CLAIMED`.
    """
    parts = [f"WITH {f'claimed AS ({claim}),' if claim else ''} {_WITH}", _LOAD]
    if claim:
        parts.append(
            f"UNION ALL SELECT {CLAIMED}, version, 0, epoch, NULL, id, 0, 0, fence, writes, timeline FROM claimed"
        )
    for index, is_reverse in enumerate(directions):
        part, start, end, limit = range(first + 4 * index, first + 4 * index + 4)
        direction = " DESC" if is_reverse else ""
        what = _FIRST_RANGE + index
        parts.append(_RANGE.format(what=what, part=part, start=start, end=end, limit=limit, direction=direction))
    return "".join(parts).replace("%(to)s", to)


def range_values(ranges: Sequence[RecordRange]) -> list[Any]:
    """Return the values of ranges in a statement."""
    return [value for each in ranges for value in _range_values(each)]


def _range_values(wanted: RecordRange) -> tuple[bytes, bytes, bytes, int]:
    """Return the part, the first key, the key after the last one, and the limit."""
    prefix, end = wanted.prefix.encode(), wanted.prefix.encode() + END
    start = max(prefix, wanted.after.encode() + b"\0") if wanted.after else prefix
    return wanted.part.encode(), start, end if wanted.before is None else min(wanted.before.encode(), end), wanted.limit


def read_thread(
    key: ThreadKey, rows: Sequence[Any], version: int | None, ranges: Sequence[RecordRange]
) -> StoredThread | None:
    """Return the thread of the rows of a `_LOAD`. Raises CorruptThread."""
    heads, users, snapshots, changes, clients = ([row for row in rows if row[0] == what] for what in range(5))
    if not heads:
        return None
    _, last, created_at, epoch, secret, _, state_version, is_stateless, due, _, oldest = heads[0]
    to = last if version is None else version
    if not oldest <= to <= last:
        return None
    _, since, _, state, *_ = snapshots[0] if snapshots else (2, 0, 0, None)
    found = sorted((ChangeRow(n, a, b.decode(), at) for _, n, at, a, b, *_ in changes), key=lambda row: row.version)
    if not snapshots and not found and not (is_stateless and to == 0):
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are stored")
    if [row.version for row in found] != list(range(since + 1, to + 1)):
        raise CorruptThread(f"{key} cannot be read: changes are missing between versions {since} and {to}")
    ids = frozenset(row[3].decode() for row in clients) if version is None and len(clients) <= KNOWN_CLIENTS else None
    return StoredThread(
        *(epoch.decode(), to, state, found, state_version, secret, ids, due),
        *(created_at, _decode(users[0][3] if users else None)),
        tuple(_read_range(rows, index, each) for index, each in enumerate(ranges)),
    )


def _read_range(rows: Sequence[Any], index: int, wanted: RecordRange) -> list[Record]:
    found = [Record(wanted.part, row[3].decode(), row[4]) for row in rows if row[0] == _FIRST_RANGE + index]
    found.sort(key=lambda record: record.key, reverse=wanted.reverse)
    return take_page(found, _value_size, wanted.size)


async def load_changes(
    db: Queries, tables: Tables, key: ThreadKey, version: int, *, limit: int, size: int | None, before: bool = False
) -> list[ChangeRow]:
    """Return changes after a version, in order, or those before it, newest first."""
    sql, most = tables.fill(_BEFORE if before else _AFTER), _ALL if size is None else max(size, 1)
    rows = await db.fetch(sql, *encode(key), version, limit, most)
    found = (ChangeRow(version, ops, source.decode(), at) for version, ops, source, at in rows)
    return take_page(found, lambda row: len(row.ops), size)


async def load_client(db: Queries, tables: Tables, key: ThreadKey, client: str) -> ClientRow | None:
    """Return the row of a client; None if there is none."""
    rows = await db.fetch(tables.fill(_CLIENT), *encode(key), client.encode())
    return ClientRow(rows[0][0].decode(), *rows[0][1:]) if rows else None


async def load_clients(db: Queries, tables: Tables, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
    """Return the rows of a thread's clients after one."""
    rows = await db.fetch(tables.fill(_CLIENTS), *encode(key), after.encode(), limit)
    return [ClientRow(client.decode(), *rest) for client, *rest in rows]


async def list_snapshots(db: Queries, tables: Tables, key: ThreadKey) -> list[int]:
    """Return the versions of a thread's snapshots."""
    rows = await db.fetch(tables.fill(f"SELECT version FROM {{snapshots}} WHERE thread = {_ID}"), *encode(key))
    return [version for (version,) in rows]


async def load_record(db: Queries, tables: Tables, key: ThreadKey, part: str, name: str) -> bytes | None:
    """Return the value of a record; None if there is none."""
    rows = await db.fetch(tables.fill(_RECORD), *encode(key), part.encode(), name.encode())
    return next((value for (value,) in rows), None)


async def load_records(db: Queries, tables: Tables, key: ThreadKey, wanted: RecordRange) -> list[Record]:
    """Return the records of a range."""
    size = _ALL if wanted.size is None else max(wanted.size, 1)
    sql = tables.fill(_REVERSE if wanted.reverse else _FORWARD)
    rows = await db.fetch(sql, *encode(key), *range_values((wanted,)), size)
    return take_page((Record(wanted.part, name.decode(), value) for name, value in rows), _value_size, wanted.size)


async def load_page(
    db: Queries, tables: Tables, key: ThreadKey, *, after: tuple[str, str], limit: int, size: int
) -> list[Record]:
    """Return records of all parts after a part and a key."""
    values = (*(each.encode() for each in after), limit, max(size, 1))
    sql = _PAGE.replace("%(after)s", tables.compare(("part", '"key"'), ">", ("$3", "$4")))
    rows = await db.fetch(tables.fill(sql), *encode(key), *values)
    return take_page((Record(part.decode(), name.decode(), value) for part, name, value in rows), _value_size, size)


async def load_schema(db: Queries, tables: Tables, kind: str, hash: str) -> bytes | None:
    """Return a stored schema; None if there is none."""
    sql = 'SELECT "schema" FROM {schemas} WHERE kind = $1 AND hash = $2'
    rows = await db.fetch(tables.fill(sql), kind.encode(), hash.encode())
    return next((schema for (schema,) in rows), None)


async def load_schemas(db: Queries, tables: Tables) -> list[tuple[str, str, bytes]]:
    """Return all stored schemas, each with its kind and hash."""
    rows = await db.fetch(tables.fill('SELECT kind, hash, "schema" FROM {schemas} ORDER BY kind, hash'))
    return [(kind.decode(), hash.decode(), schema) for kind, hash, schema in rows]


def _decode(text: bytes | None) -> str | None:
    return None if text is None else text.decode()


def _value_size(record: Record) -> int:
    return len(record.value or b"")
