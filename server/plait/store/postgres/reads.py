"""The SQL statements that read a thread. Each is one round trip, and sees one moment."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec

from plait.errors import CorruptThread
from plait.store.page import take_page
from plait.store.postgres.engine import Db
from plait.store.postgres.heads import CLAIM, ClaimedHead
from plait.store.postgres.schema import Tables
from plait.store.protocol import StoredThread, ThreadHeader, ThreadKey
from plait.store.thread_rows import KNOWN_CLIENTS, ChangeRow, ClientRow, Record, RecordRange

__all__ = [
    "END",
    "claim_and_load",
    "encode",
    "find",
    "load",
    "load_changes",
    "load_changes_before",
    "load_client",
    "load_page",
    "load_record",
    "load_record_of_each",
    "load_records",
    "load_schema",
    "load_schemas",
]

END: Final = b"\xff"
"""After all text in UTF-8; with a prefix before it, after all text with this prefix."""

_THREAD: Final = "SELECT * FROM {threads} WHERE kind = $1 AND name = $2 AND created_at IS NOT NULL"
_FIND: Final = f"SELECT epoch, version, created_at, user_id, due, changed_at FROM ({_THREAD}) t"
_ID: Final = "(SELECT id FROM {threads} WHERE kind = $1 AND name = $2)"
# The rows of a thread have these columns: what it is, two numbers, two values, and more numbers.
_LOAD: Final = f"""
SELECT 0 AS what, version AS n, created_at AS at, epoch AS a, secret AS b,
    ARRAY[id, state_version, stateless::int, due, writes, coalesce(
        (SELECT min(version) FROM {{snapshots}} s WHERE s.thread = h.id), 0)] AS more FROM h
UNION ALL
SELECT 1, 0, 0, user_id, NULL, NULL FROM h WHERE user_id IS NOT NULL
UNION ALL
SELECT 2, version, 0, state, NULL, NULL FROM since
UNION ALL
SELECT 3, version, at, ops, source, NULL FROM {{changes}} WHERE thread = (SELECT id FROM h)
    AND version > coalesce((SELECT version FROM since), 0) AND version <= %(to)s
UNION ALL
(SELECT 4, 0, 0, client, NULL, NULL FROM {{clients}} WHERE thread = (SELECT id FROM h) LIMIT {KNOWN_CLIENTS + 1})
"""
_WITH: Final = f"""
h AS MATERIALIZED ({_THREAD}), since AS MATERIALIZED (
    SELECT version, state FROM {{snapshots}} WHERE thread = (SELECT id FROM h) AND version <= %(to)s
    ORDER BY version DESC LIMIT 1
)
"""
_RANGE: Final = """
UNION ALL
(SELECT {what}, 0, 0, key, value, NULL FROM {{records}} WHERE thread = (SELECT id FROM h) AND part = ${part}
AND key >= ${start} AND key < ${end} ORDER BY key{direction} LIMIT ${limit})
"""
_HEAD: Final = 5
_FIRST_RANGE: Final = 6
# One change or record more than those that are asked for by size is never read.
_CHANGES: Final = f"""
SELECT version, ops, source, at FROM (
    SELECT *, sum(length(ops)) OVER (ORDER BY version %(direction)s) - length(ops) AS before FROM (
        SELECT version, ops, source, at FROM {{changes}}
        WHERE thread = {_ID} AND version %(sign)s $3 ORDER BY version %(direction)s LIMIT $4) c
) c WHERE before < $5 ORDER BY version %(direction)s
"""
_AFTER: Final = _CHANGES % {"sign": ">", "direction": "ASC"}
_BEFORE: Final = _CHANGES % {"sign": "<", "direction": "DESC"}
_CLIENT: Final = f"SELECT client, ref, refused, at FROM {{clients}} WHERE thread = {_ID} AND client = $3"
_RECORD: Final = f"SELECT value FROM {{records}} WHERE thread = {_ID} AND part = $3 AND key = $4"
_RECORD_OF_EACH: Final = """
SELECT r.value FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY k (kind, name, place)
LEFT JOIN {threads} t ON t.kind = k.kind AND t.name = k.name AND t.created_at IS NOT NULL
LEFT JOIN {records} r ON r.thread = t.id AND r.part = $3 AND r.key = $4 ORDER BY k.place
"""
_RECORDS: Final = f"""
SELECT key, value FROM (
    SELECT *, sum(length(value)) OVER (ORDER BY key %(direction)s) - length(value) AS before FROM (
        SELECT key, value FROM {{records}} WHERE thread = {_ID} AND part = $3
        AND key >= $4 AND key < $5 ORDER BY key %(direction)s LIMIT $6) r
) r WHERE before < $7 ORDER BY key %(direction)s
"""
_FORWARD: Final = _RECORDS % {"direction": "ASC"}
_REVERSE: Final = _RECORDS % {"direction": "DESC"}
_PAGE: Final = f"""
SELECT part, key, value FROM (
    SELECT *, sum(length(value)) OVER (ORDER BY part, key) - length(value) AS before FROM (
        SELECT part, key, value FROM {{records}} WHERE thread = {_ID} AND (part, key) > ($3, $4)
        ORDER BY part, key LIMIT $5) r
) r WHERE before < $6 ORDER BY part, key
"""
_ALL: Final = 2**62


async def find(db: Db, tables: Tables, key: ThreadKey) -> ThreadHeader | None:
    """Return the header of a thread; None if there is none."""
    row = await db.fetchrow(tables.fill(_FIND), *encode(key))
    if row is None:
        return None
    epoch, version, created_at, user, due, changed_at = row
    return ThreadHeader(epoch.decode(), version, created_at, _decode(user), due, changed_at)


async def load(
    db: Db, tables: Tables, key: ThreadKey, version: int | None, ranges: Sequence[RecordRange] = ()
) -> StoredThread | None:
    """Return a thread, at `version` if one is given, with the records of ranges. Raises CorruptThread."""
    sql = _make_load(tuple(each.reverse for each in ranges), is_claim=False)
    rows = await db.fetch(tables.fill(sql), *encode(key), version, *_values(ranges))
    return _read(key, rows, version, ranges)


async def claim_and_load(
    db: Db, tables: Tables, key: ThreadKey, claim: tuple[Any, ...], ranges: Sequence[RecordRange]
) -> tuple[ClaimedHead, int, StoredThread | None]:
    """Become the owner of a thread, and return its head, the server's timeline, and the thread.

    `claim` has the values of `CLAIM`. Raises CorruptThread.
    """
    sql = _make_load(tuple(each.reverse for each in ranges), is_claim=True)
    rows = await db.fetch(tables.fill(sql), *claim, *_values(ranges))
    (row,) = (each for each in rows if each["what"] == _HEAD)
    id, version, fence, writes, timeline = row["more"]
    head = ClaimedHead.read((id, row["a"], version, fence, writes))
    (seen,) = [each["more"][4] for each in rows if each["what"] == 0] or [None]
    if (version is None) != (seen is None) or (seen is not None and seen != writes):
        # The statement has waited for a write of the earlier owner, which it sees only in the row that it locks.
        return head, timeline, await load(db, tables, key, None, ranges)
    thread = _read(key, rows, None, ranges)
    if thread is not None and head.epoch is not None:
        thread = msgspec.structs.replace(thread, epoch=head.epoch)
    return head, timeline, thread


@cache
def _make_load(directions: tuple[bool, ...], *, is_claim: bool) -> str:
    """Return the statement that loads a thread with ranges of records, which are read in these directions."""
    first = 6 if is_claim else 4
    to = "(SELECT version FROM h)" if is_claim else "coalesce($3, (SELECT version FROM h))"
    parts = [f"WITH {f'claimed AS ({CLAIM}),' if is_claim else ''} {_WITH}", _LOAD]
    if is_claim:
        claimed = "ARRAY[id, version, fence, writes, timeline]"
        parts.append(f"UNION ALL SELECT {_HEAD}, 0, 0, epoch, NULL, {claimed} FROM claimed")
    for index, is_reverse in enumerate(directions):
        part, start, end, limit = range(first + 4 * index, first + 4 * index + 4)
        direction = " DESC" if is_reverse else ""
        what = _FIRST_RANGE + index
        parts.append(_RANGE.format(what=what, part=part, start=start, end=end, limit=limit, direction=direction))
    return "".join(parts).replace("%(to)s", to)


def _values(ranges: Sequence[RecordRange]) -> list[Any]:
    return [value for each in ranges for value in _range_values(each)]


def _range_values(wanted: RecordRange) -> tuple[bytes, bytes, bytes, int]:
    """Return the part, the first key, the key after the last one, and the limit."""
    prefix, end = wanted.prefix.encode(), wanted.prefix.encode() + END
    start = max(prefix, wanted.after.encode() + b"\0") if wanted.after else prefix
    return wanted.part.encode(), start, end if wanted.before is None else min(wanted.before.encode(), end), wanted.limit


def _read(
    key: ThreadKey, rows: Sequence[Any], version: int | None, ranges: Sequence[RecordRange]
) -> StoredThread | None:
    """Return the thread of the rows of a `_LOAD`. Raises CorruptThread."""
    heads, users, snapshots, changes, clients = ([row for row in rows if row["what"] == what] for what in range(5))
    if not heads:
        return None
    (head,) = heads
    _, state_version, is_stateless, due, _, oldest = head["more"]
    to = head["n"] if version is None else version
    if not oldest <= to <= head["n"]:
        return None
    since = snapshots[0]["n"] if snapshots else 0
    found = sorted((ChangeRow(n, a, b.decode(), at) for _, n, at, a, b, _ in changes), key=lambda row: row.version)
    if not snapshots and not found and not (is_stateless and to == 0):
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are stored")
    if [row.version for row in found] != list(range(since + 1, to + 1)):
        raise CorruptThread(f"{key} cannot be read: changes are missing between versions {since} and {to}")
    ids = frozenset(row["a"].decode() for row in clients) if version is None and len(clients) <= KNOWN_CLIENTS else None
    return StoredThread(
        *(head["a"].decode(), to, snapshots[0]["a"] if snapshots else None, found, state_version, head["b"], ids, due),
        *(head["at"], _decode(users[0]["a"] if users else None)),
        tuple(_read_range(rows, index, each) for index, each in enumerate(ranges)),
    )


def _read_range(rows: Sequence[Any], index: int, wanted: RecordRange) -> list[Record]:
    found = [Record(wanted.part, row["a"].decode(), row["b"]) for row in rows if row["what"] == _FIRST_RANGE + index]
    found.sort(key=lambda record: record.key, reverse=wanted.reverse)
    return take_page(found, _value_size, wanted.size)


async def load_changes(
    db: Db, tables: Tables, key: ThreadKey, *, after: int, limit: int, size: int | None
) -> list[ChangeRow]:
    """Return changes after a version, in order."""
    return await _load_some(db, tables.fill(_AFTER), key, version=after, limit=limit, size=size)


async def load_changes_before(
    db: Db, tables: Tables, key: ThreadKey, *, version: int, limit: int, size: int | None
) -> list[ChangeRow]:
    """Return changes before a version, newest first."""
    return await _load_some(db, tables.fill(_BEFORE), key, version=version, limit=limit, size=size)


async def _load_some(
    db: Db, sql: str, key: ThreadKey, *, version: int, limit: int, size: int | None
) -> list[ChangeRow]:
    rows = await db.fetch(sql, *encode(key), version, limit, _ALL if size is None else max(size, 1))
    found = (ChangeRow(version, ops, source.decode(), at) for version, ops, source, at in rows)
    return take_page(found, lambda row: len(row.ops), size)


async def load_client(db: Db, tables: Tables, key: ThreadKey, client: str) -> ClientRow | None:
    """Return the row of a client; None if there is none."""
    row = await db.fetchrow(tables.fill(_CLIENT), *encode(key), client.encode())
    return None if row is None else ClientRow(row["client"].decode(), row["ref"], row["refused"], row["at"])


async def load_record(db: Db, tables: Tables, key: ThreadKey, part: str, name: str) -> bytes | None:
    """Return the value of a record; None if there is none."""
    found: bytes | None = await db.fetchval(tables.fill(_RECORD), *encode(key), part.encode(), name.encode())
    return found


async def load_record_of_each(
    db: Db, tables: Tables, keys: Sequence[ThreadKey], part: str, name: str
) -> list[bytes | None]:
    """Return the values of one record of several threads; None for one that is missing."""
    kinds, names = [key.kind.encode() for key in keys], [key.name.encode() for key in keys]
    rows = await db.fetch(tables.fill(_RECORD_OF_EACH), kinds, names, part.encode(), name.encode())
    return [value for (value,) in rows]


async def load_records(db: Db, tables: Tables, key: ThreadKey, wanted: RecordRange) -> list[Record]:
    """Return the records of a range."""
    size = _ALL if wanted.size is None else max(wanted.size, 1)
    sql = tables.fill(_REVERSE if wanted.reverse else _FORWARD)
    rows = await db.fetch(sql, *encode(key), *_range_values(wanted), size)
    return take_page((Record(wanted.part, name.decode(), value) for name, value in rows), _value_size, wanted.size)


async def load_page(
    db: Db, tables: Tables, key: ThreadKey, *, after: tuple[str, str], limit: int, size: int
) -> list[Record]:
    """Return records of all parts after a part and a key."""
    values = (*(each.encode() for each in after), limit, max(size, 1))
    rows = await db.fetch(tables.fill(_PAGE), *encode(key), *values)
    return take_page((Record(part.decode(), name.decode(), value) for part, name, value in rows), _value_size, size)


async def load_schema(db: Db, tables: Tables, kind: str, hash: str) -> bytes | None:
    """Return a stored schema; None if there is none."""
    sql = "SELECT schema FROM {schemas} WHERE kind = $1 AND hash = $2"
    found: bytes | None = await db.fetchval(tables.fill(sql), kind.encode(), hash.encode())
    return found


async def load_schemas(db: Db, tables: Tables) -> list[tuple[str, str, bytes]]:
    """Return all stored schemas, each with its kind and hash."""
    rows = await db.fetch(tables.fill("SELECT kind, hash, schema FROM {schemas} ORDER BY kind, hash"))
    return [(kind.decode(), hash.decode(), schema) for kind, hash, schema in rows]


def encode(key: ThreadKey) -> tuple[bytes, bytes]:
    """Return the kind and the name as they are stored. Raises UnicodeEncodeError."""
    return key.kind.encode(), key.name.encode()


def _decode(text: bytes | None) -> str | None:
    return None if text is None else text.decode()


def _value_size(record: Record) -> int:
    return len(record.value or b"")
