"""The rows of a store in PostgreSQL: a batch of changes is mostly one statement, and each statement is prepared."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, cast

import asyncpg

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.postgres.engine import DRIVER_ERRORS, TIMELINE, Connection, Engine, explain, is_lost, was_sent
from plait.store.postgres.url import PostgresUrl
from plait.store.rows.engine import INDEX, Key, Span
from plait.store.rows.parts import CHANGE
from plait.store.rows.server import Guarded, owner_row
from plait.store.sql.db import Db
from plait.store.sql.spans import TEXT, SpanSql, locate
from plait.store.sql.tables import Tables
from plait.store.thread_rows import ThreadKey

__all__ = ["PostgresDialect"]

_FORMAT: Final = 3
# See `spans.py`. Changes have a table of their own: between them, the other rows would not be replaced in place.
_COLUMNS: Final = """(
    thread bigint NOT NULL, part bytea NOT NULL, number bigint NOT NULL, "key" bytea NOT NULL, value bytea NOT NULL,
    PRIMARY KEY (thread, part, number, "key")
)"""
_SCHEMA: Final = f"""
CREATE TABLE {{format}} (format integer NOT NULL);
CREATE TABLE {{rows}} {_COLUMNS} WITH (fillfactor = 60);
CREATE TABLE {{changes}} {_COLUMNS};
"""
_FIND_FORMAT: Final = """
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
"""
# Not as JSON, as a damaged row would be an error of the statement.
_SPACE: Final = """substring(encode(value, 'escape') from '"space":([0-9]+)')::bigint"""
_CLAIM: Final = f"""
INSERT INTO {{rows}} (thread, part, number, "key", value) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (thread, part, number, "key") DO UPDATE SET value = excluded.value RETURNING {TIMELINE}
"""
# A connection that is lost must not keep its locks for as long as the server takes to notice that.
_BEGIN: Final = "BEGIN; SET LOCAL {}; SET LOCAL idle_in_transaction_session_timeout TO '3s'"
_CHANGE: Final = CHANGE.encode()
# Changes with an owner are numbered from 1 on; those without one have this number.
_UNGUARDED: Final = 0
# Rows of owners are locked in the order of their keys, so that two stores that write the same threads do not wait for
# each other. Each is found by itself: for a join, PostgreSQL would read all rows of the table, as it does not know how
# few are needed. A change is never written again.
_WRITE: Final = f"""
WITH locked AS MATERIALIZED (
    SELECT e.change, e.after, r.place FROM (
        SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[])
            WITH ORDINALITY e (part, "key", before, after, change)
        ORDER BY part, "key"
    ) e CROSS JOIN LATERAL (
        SELECT r.ctid AS place FROM {{rows}} r WHERE r.thread = {INDEX} AND r.part = e.part AND r.number = {TEXT}
            AND r."key" = e."key" AND r.value = e.before FOR NO KEY UPDATE
    ) r
), owned AS (
    UPDATE {{rows}} r
    SET value = (ARRAY(SELECT after FROM locked))[array_position(ARRAY(SELECT place FROM locked), r.ctid)]
    WHERE r.ctid = ANY (ARRAY(SELECT place FROM locked WHERE after IS NOT NULL))
), made AS MATERIALIZED (
    SELECT change FROM locked UNION ALL SELECT {_UNGUARDED}
), changed AS (
    INSERT INTO {{changes}} (thread, part, number, "key", value)
    SELECT c.thread, '{CHANGE}', c.number, '', c.value
    FROM unnest($5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[]) c (change, thread, number, value)
    WHERE c.change = ANY (ARRAY(SELECT change FROM made))
)"""
_AND_PUT: Final = """, put AS (
    INSERT INTO {rows} (thread, part, number, "key", value)
    SELECT w.thread, w.part, w.number, w."key", w.value
    FROM unnest($9::bigint[], $10::bigint[], $11::bytea[], $12::bigint[], $13::bytea[], $14::bytea[])
        w (change, thread, part, number, "key", value)
    WHERE w.change = ANY (ARRAY(SELECT change FROM made))
    ON CONFLICT (thread, part, number, "key") DO UPDATE SET value = excluded.value
)"""
_REMOVE: Final = """
DELETE FROM {%s} r
USING unnest(%s::bigint[], %s::bigint[], %s::bytea[], %s::bigint[], %s::bytea[], %s::bigint[], %s::bytea[])
    g (change, thread, part, first, since, last, until)
WHERE r.thread = g.thread AND r.part = g.part AND (r.number, r."key") >= (g.first, g.since)
    AND (r.number, r."key") < (g.last, g.until)
"""
_REMOVE_ALSO: Final = (
    _REMOVE % ("rows", *(f"${n}" for n in range(15, 22))) + " AND g.change = ANY (ARRAY(SELECT change FROM made))"
)
_OWNED: Final = " SELECT change FROM locked"
_WRITE_CHANGES: Final = f"{_WRITE}{_OWNED}"
_WRITE_ALL: Final = f"{_WRITE}{_AND_PUT}{_OWNED}"
_WRITE_AND_REMOVE: Final = f"{_WRITE}{_AND_PUT}, removed AS ({_REMOVE_ALSO}){_OWNED}"
_TABLES: Final = ("rows", "changes")
_REMOVE_SPACES: Final = [f"DELETE FROM {{{table}}} WHERE thread = ANY ($1::bigint[])" for table in _TABLES]
_REMOVE_ONLY: Final = [_REMOVE % (table, *(f"${n}" for n in range(1, 8))) for table in _TABLES]


class PostgresDialect(Engine):
    """The SQL of rows, on the server of a URL."""

    errors: tuple[type[Exception], ...] = DRIVER_ERRORS
    begin_view = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    is_lost = staticmethod(is_lost)
    was_sent = staticmethod(was_sent)
    explain = staticmethod(explain)

    def __init__(self, url: PostgresUrl) -> None:
        super().__init__(url)
        self.tables = Tables(url.prefix, url.schema)

    @property
    def durability(self) -> str:
        if not self.syncs:
            return "changes survive a crash of the process, but not of PostgreSQL's machine (its fsync is off)"
        if not self.url.is_synchronous:
            return (
                "changes survive a crash of the process; a crash of PostgreSQL loses those of about the last second "
                "(synchronous_commit=off)"
            )
        if not self.url.has_standby:
            return "changes survive crashes of the processes and machines, but a failover may lose the last ones"
        return "changes survive crashes of the processes and machines, and a failover (standby=synchronous)"

    def is_trouble(self, error: BaseException, /) -> bool:
        if isinstance(error, asyncpg.PostgresError):
            return (error.sqlstate or "")[:2] in ("08", "25", "53", "57", "58")
        return isinstance(error, StoreError) or is_lost(error)

    def may_have_lost(self, origin: str, /) -> bool:
        server = self.origin.partition(":")[0]
        return origin != self.origin and not (self.url.has_standby and origin.partition(":")[0] == server)

    async def prepare(self, db: Db, *, readonly: bool) -> None:
        connection = cast(Connection, db)
        await self.check_session(connection)
        if await self._has_table(db):
            return
        if readonly:
            raise StoreError(
                f"the schema {self.tables.schema} has no tables of this plait; start a server with it first"
            )
        async with connection.transaction():
            await db.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", self.tables.fill("{format}"))
            if await self._has_table(db):
                return
            if not await db.fetch("SELECT 1 FROM pg_namespace WHERE nspname = $1", self.tables.schema):
                await db.execute(f'CREATE SCHEMA "{self.tables.schema}"')
            await db.execute(self.tables.fill(_SCHEMA))
            await db.execute(self.tables.fill("INSERT INTO {format} VALUES ($1)"), _FORMAT)

    async def probe(self, db: Db, *, writes: bool) -> None:
        await db.execute(self.tables.fill("UPDATE {format} SET format = format") if writes else "SELECT 1")

    def select(self, spans: Sequence[Span]) -> SpanSql:
        found = SpanSql(spans, space=_SPACE, empty="''::bytea", compares_rows=True, log="{changes}")
        found.sql = self.tables.fill(found.sql)
        return found

    async def claim(self, db: Db, key: ThreadKey, value: bytes) -> bool:
        thread, part, name, value = owner_row(key, value)
        rows = await db.fetch(self.tables.fill(_CLAIM), thread, *locate(part, name), value)
        timeline: int = rows[0][0]
        return timeline == self.timeline  # A pooler may have switched the connection to another server.

    async def commit(self, db: Db, changes: Sequence[Guarded]) -> Sequence[bool]:
        batch = _Batch(changes)
        is_split = bool(batch.spaces) or batch.removes_changes or batch.has_overlap
        if is_split or not self.url.has_session:
            await db.execute(_BEGIN.format(self.commit_setting))
        values = [*_columns(batch.owners, 4), *_columns(batch.changes, 4)]
        puts = [(number, *place, value) for place, (number, value) in batch.puts.items()]
        if batch.gone and not is_split:
            owned = await self._fetch(db, _WRITE_AND_REMOVE, *values, *_columns(puts, 6), *_columns(batch.gone, 7))
        elif puts:
            owned = await self._fetch(db, _WRITE_ALL, *values, *_columns(puts, 6))
        else:
            owned = await self._fetch(db, _WRITE_CHANGES, *values)
        made = {_UNGUARDED, *(number for (number,) in owned)}
        if is_split:
            left = [each for each in batch.gone if each[0] in made]
            for sql in _REMOVE_ONLY:
                await self._fetch(db, sql, *_columns(left, 7))
            for sql in _REMOVE_SPACES if batch.spaces else ():
                await self._fetch(db, sql, batch.spaces)
        if is_split or not self.url.has_session:
            ended = await db.execute("COMMIT")
            assert ended == "COMMIT", ended
        return [number in made for number in batch.numbers]

    # Inside

    async def _has_table(self, db: Db) -> bool:
        """Whether there is a table of this format. Raises StoreError for that of another one."""
        # Not with to_regclass: in the transaction that has waited for the lock, it would answer from a cache.
        if not await db.fetch(_FIND_FORMAT, self.tables.schema, f"{self.tables.prefix}format"):
            return False
        ((found,),) = await self._fetch(db, "SELECT format FROM {format}")
        check_format(found, _FORMAT)
        return True

    async def _fetch(self, db: Db, sql: str, *values: Any) -> Sequence[Any]:
        return await db.fetch(self.tables.fill(sql), *values)


class _Batch:
    """The values of changes for the statements, each with the number of its change. Raises UnicodeEncodeError."""

    def __init__(self, changes: Sequence[Guarded]) -> None:
        self.numbers: list[int] = []
        # Part, key, and the values before and afterwards; None if the row is removed.
        self.owners: list[tuple[bytes, bytes, bytes, bytes | None]] = []
        # Thread, version and value.
        self.changes: list[tuple[int, int, Key, bytes]] = []
        self.puts: dict[tuple[int, bytes, int, bytes], tuple[int, bytes]] = {}
        self.gone: list[tuple[int, int, bytes, int, bytes, int, bytes]] = []
        self.spaces: list[int] = []
        for change in changes:
            self._add(change)

    def _add(self, change: Guarded) -> None:
        rows, number = change.rows, _UNGUARDED
        if change.guard is not None:
            part, name, before = change.guard
            after = None
            if rows and rows[-1][1] == part:
                after, rows = rows[-1][3], rows[:-1]
            self.owners.append((part.encode(), name.encode(), before, after))
            number = len(self.owners)
        self.numbers.append(number)
        for space, part, key, value in rows:
            if part == CHANGE:
                self.changes.append((number, space, key, value))
            else:
                self.puts[space, *locate(part, key)] = number, value
        for space, part, start, end in change.gone:
            self.gone.append((number, space, *locate(part, start), *locate(part, end)[1:]))
        if change.guard is None:
            self.spaces += change.spaces

    @property
    def removes_changes(self) -> bool:
        """Whether changes are removed, which the batch may have written before."""
        return any(part == _CHANGE for _, _, part, *_ in self.gone)

    @property
    def has_overlap(self) -> bool:
        """Whether other rows are written that are removed afterwards."""
        if not self.gone:
            return False
        places = sorted(self.puts)
        for _, space, part, first, since, last, until in self.gone:
            at = bisect_left(places, (space, part, first, since))
            if at < len(places) and places[at] < (space, part, last, until):
                return True
        return False


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    """Return rows as columns, and `count` empty ones if there are no rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * count
