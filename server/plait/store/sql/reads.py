"""The SQL statements that read a thread. Each is one round trip, and sees one moment."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from typing import Any, Final

from plait.errors import CorruptThread, StoreError
from plait.store.base import EngineStore
from plait.store.outcomes import Unreachable
from plait.store.page import take_page
from plait.store.protocol import (
    ALL_THREADS,
    DueThread,
    StoredThread,
    ThreadHeader,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    ThreadView,
)
from plait.store.sql.db import Queries
from plait.store.sql.dialect import Dialect
from plait.store.sql.pool import Readers
from plait.store.sql.rows import ClaimedHead, encode
from plait.store.sql.tables import Tables
from plait.store.thread_rows import INCOMPLETE, KNOWN_CLIENTS, ChangeRow, ClientRow, Record, RecordRange
from plait.store.upkeep import HeadUpkeep
from plait.store.whole import StoredSchema

__all__ = ["CLAIMED", "Reads", "join_load", "load", "make_load", "range_values", "read_thread"]

# After all text in UTF-8; with a prefix before it, after all text with this prefix.
_END: Final = b"\xff"

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
_CLIENT: Final = f"SELECT ref, refused, at FROM {{clients}} WHERE thread = {_ID} AND client = $3"
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
_SCHEMA: Final = 'SELECT "schema" FROM {schemas} WHERE kind = $1 AND hash = $2'
_DUE: Final = """
SELECT due, kind, name FROM {threads} WHERE due > 0 AND due <= $1 AND %(after)s
ORDER BY due, kind, name LIMIT $5
"""
_ALL: Final = 2**62


class Reads(EngineStore):
    """The methods of a store that read and list its threads."""

    _dialect: Dialect
    # Those of the driver and of odd values.
    _errors: tuple[type[Exception], ...]
    _readers: Readers
    _upkeep: HeadUpkeep[ClaimedHead, Any]

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        with self._telling(key):
            return await self._readers.run(lambda db: load(db, self._dialect.tables, key, version, records))

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        with self._telling(key):
            if not (rows := await self._fetch(_FIND, *encode(key))):
                return None
            epoch, version, created_at, user, due, changed_at = rows[0]
            return ThreadHeader(epoch.decode(), version, created_at, _decode(user), due, changed_at)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        with self._telling(key):
            rows = await self._fetch(_CLIENT, *encode(key), client.encode())
            return next((ClientRow(client, *row) for row in rows), None)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        with self._telling(key):
            rows = await self._fetch(_RECORD, *encode(key), part.encode(), name.encode())
            return next((value for (value,) in rows), None)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        with self._telling(key):
            size = _ALL if wanted.size is None else max(wanted.size, 1)
            sql = _REVERSE if wanted.reverse else _FORWARD
            rows = await self._fetch(sql, *encode(key), *range_values((wanted,)), size)
            return take_page(
                (Record(wanted.part, name.decode(), value) for name, value in rows), _value_size, wanted.size
            )

    async def record_of_each(self, keys: Sequence[ThreadKey], part: str, name: str) -> list[bytes | None]:
        with self._telling("records"):
            rows = await self._readers.run(lambda db: self._dialect.load_each(db, keys, part, name))
            return [value for (value,) in rows]

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        async with self._readers.view() as db:
            with self._telling(key):
                stored = await load(db, self._dialect.tables, key, None)
            yield None if stored is None else ThreadView(stored, partial(self._list_records, key, db=db))

    async def schema(self, kind: str, hash: str) -> bytes | None:
        with self._telling("a schema"):
            rows = await self._fetch(_SCHEMA, kind.encode(), hash.encode())
            return next((schema for (schema,) in rows), None)

    async def schemas(self) -> list[StoredSchema]:
        with self._telling("the schemas"):
            rows = await self._fetch('SELECT kind, hash, "schema" FROM {schemas} ORDER BY kind, hash')
            return [(kind.decode(), hash.decode(), schema) for kind, hash, schema in rows]

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        with self._telling("the list of threads"):
            await self._upkeep.save()
            sql, values = self._make_list(query)
            return [
                ThreadRow(
                    ThreadKey(kind.decode(), name.decode()), version, created_at, changed_at, user and user.decode()
                )
                for kind, name, version, created_at, changed_at, user in await self._fetch(sql, *values)
            ]

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        with self._telling("the list of due threads"):
            first = (0, b"", b"") if after is None else (after.due, *(each.encode() for each in after.key))
            condition = self._dialect.tables.compare(("due", "kind", "name"), ">", ("$2", "$3", "$4"))
            rows = await self._fetch(_DUE.replace("%(after)s", condition), until, *first, limit)
            return [DueThread(due, ThreadKey(kind.decode(), name.decode())) for due, kind, name in rows]

    # Inside

    async def _changes(
        self, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
    ) -> list[ChangeRow]:
        with self._telling(key):
            most = _ALL if size is None else max(size, 1)
            rows = await self._fetch(_BEFORE if is_reverse else _AFTER, *encode(key), version, limit, most)
            found = (ChangeRow(version, ops, source.decode(), at) for version, ops, source, at in rows)
            return take_page(found, lambda row: len(row.ops), size)

    async def _list_snapshots(self, key: ThreadKey) -> list[int]:
        with self._telling(key):
            rows = await self._fetch(f"SELECT version FROM {{snapshots}} WHERE thread = {_ID}", *encode(key))
            return [version for (version,) in rows]

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        with self._telling(key):
            rows = await self._fetch(_CLIENTS, *encode(key), after.encode(), limit)
            return [ClientRow(client.decode(), *rest) for client, *rest in rows]

    async def _list_records(
        self, key: ThreadKey, after: tuple[str, str], limit: int, size: int, *, db: Queries | None = None
    ) -> list[Record]:
        """Return records, with the connection of a view if one is given."""
        with self._telling(key):
            condition = self._dialect.tables.compare(("part", '"key"'), ">", ("$3", "$4"))
            values = *encode(key), *(each.encode() for each in after), limit, max(size, 1)
            rows = await self._fetch(_PAGE.replace("%(after)s", condition), *values, db=db)
            found = (Record(part.decode(), name.decode(), value) for part, name, value in rows)
            return take_page(found, _value_size, size)

    def _make_list(self, query: ThreadQuery) -> tuple[str, list[Any]]:
        """Return the statement that lists threads, and its values."""
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
            where.append(f"name < {place(prefix.encode() + _END)}")
        if after is not None:
            if kind is not None and after.key.kind != kind:
                columns.insert(len(columns) - 1, "kind")
            last: dict[str, Any] = {"kind": after.key.kind.encode(), "name": after.key.name.encode()}
            last |= {"created_at": after.created_at, "changed_at": after.changed_at}
            where.append(self._dialect.tables.compare(columns, sign, [place(last[column]) for column in columns]))
        places = ", ".join(f"{column}{direction}" for column in columns)
        sql = f"""
        SELECT kind, name, version, created_at, changed_at, user_id FROM {{threads}}
        WHERE {" AND ".join(where)} ORDER BY {places} LIMIT {int(query.limit)}
        """
        return sql, values

    async def _fetch(self, sql: str, *values: Any, db: Queries | None = None) -> Sequence[Any]:
        """Return the rows that a statement finds. Raises StoreError, and what the driver raises."""
        filled = self._dialect.tables.fill(sql)
        if db is not None:
            return await db.fetch(filled, *values)
        return await self._readers.run(lambda db: db.fetch(filled, *values))

    @contextmanager
    def _telling(self, what: object, failure: str = "cannot be read") -> Iterator[None]:
        """Make other errors StoreErrors that say what has failed."""
        try:
            yield
        except Unreachable as error:
            raise Unreachable(f"{what} {failure}: {error}") from error
        except self._errors as error:
            raise StoreError(f"{what} {failure}: {self._dialect.explain(error)}") from error


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
    prefix, end = wanted.prefix.encode(), wanted.prefix.encode() + _END
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


def _decode(text: bytes | None) -> str | None:
    return None if text is None else text.decode()


def _value_size(record: Record) -> int:
    return len(record.value or b"")
