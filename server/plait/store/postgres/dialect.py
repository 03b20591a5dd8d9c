"""The dialect of PostgreSQL: each statement is prepared, and has rows as arrays."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import asyncpg
import msgspec

from plait.errors import StoreError
from plait.store.postgres.engine import DRIVER_ERRORS, TIMELINE, Connection, Engine, explain, is_lost, was_sent
from plait.store.postgres.schema import prepare
from plait.store.postgres.url import PostgresUrl
from plait.store.postgres.writes import DELETE_RECORDS, PLAIN, columns, make_upsert
from plait.store.protocol import StoredThread, ThreadKey, Write
from plait.store.sql.db import Db
from plait.store.sql.dialect import Claim
from plait.store.sql.reads import CLAIMED, join_load, load, range_values, read_thread
from plait.store.sql.rows import ClaimedHead, Rows, StoredRow, change_rows, client_rows, encode
from plait.store.sql.tables import CHANGES, CLIENTS, THREADS, Table, Tables
from plait.store.thread_rows import RecordRange

__all__ = ["PostgresDialect"]

# A number is above those before it, on any server and timeline: the sequence goes back only if a failover has lost
# writes, and a dump that is restored may be on an earlier timeline.
# A thread that was claimed on another timeline gets a new epoch, as clients may have seen changes that are lost. If no
# failover loses any, it gets one only on another server.
_CLAIM: Final = f"""
INSERT INTO {{threads}} AS t (kind, name, fence, origin)
VALUES ($1, $2, ({TIMELINE} << 40) + nextval('{{fences}}'), $3)
ON CONFLICT (kind, name) DO UPDATE SET fence = greatest(t.fence + 1, excluded.fence), origin = excluded.origin,
    epoch = CASE WHEN t.origin = excluded.origin OR t.epoch IS NULL
        OR $4 AND split_part(t.origin, ':', 1) = split_part(excluded.origin, ':', 1) THEN t.epoch ELSE $5 END
RETURNING t.id, t.epoch, t.version, t.fence, t.writes, {TIMELINE} AS timeline
"""
# A connection that is lost must not keep its locks for as long as the server takes to notice that.
_BEGIN: Final = "BEGIN; SET LOCAL {}; SET LOCAL idle_in_transaction_session_timeout TO '3s'"
_LOCK: Final = f"""
SELECT {", ".join(f"t.{name}" for name in THREADS.columns)} FROM {{threads}} t
JOIN unnest($1::bytea[], $2::bytea[]) k (kind, name) ON t.kind = k.kind AND t.name = k.name
ORDER BY t.id FOR UPDATE OF t
"""
_NEXT_IDS: Final = "SELECT nextval('{ids}') FROM generate_series(1, $1)"
_REMOVE: Final = """
DELETE FROM {%s} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {%s} WHERE thread = ANY ($1) LIMIT $2))
"""
_EACH: Final = """
SELECT r.value FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY k (kind, name, place)
LEFT JOIN {threads} t ON t.kind = k.kind AND t.name = k.name AND t.created_at IS NOT NULL
LEFT JOIN {records} r ON r.thread = t.id AND r.part = $3 AND r.key = $4 ORDER BY k.place
"""


class PostgresDialect(Engine):
    """The dialect of the server of a URL."""

    errors: tuple[type[Exception], ...] = DRIVER_ERRORS
    begin_view = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    is_lost = staticmethod(is_lost)
    was_sent = staticmethod(was_sent)
    explain = staticmethod(explain)

    def __init__(self, url: PostgresUrl, on_loss: Callable[[], None] | None = None) -> None:
        super().__init__(url, on_loss)
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

    async def prepare(self, db: Db, *, readonly: bool) -> None:
        connection = cast(Connection, db)
        await self.check_session(connection)
        await prepare(connection, self.tables, readonly=readonly)

    # Claims

    async def claim(self, db: Db, key: ThreadKey, ranges: Sequence[RecordRange] | None) -> Claim:
        fresh = secrets.token_hex(8).encode()
        values = (*encode(key), self.origin, self.url.has_standby, fresh)
        if ranges is None:
            ((*head, timeline),) = await db.fetch(self.tables.fill(_CLAIM), *values)
            return (ClaimedHead.read(head) if timeline == self.timeline else None), None
        directions = tuple(each.reverse for each in ranges)
        sql = join_load(_CLAIM, directions, first=len(values) + 1, to="(SELECT version FROM h)")
        rows = await db.fetch(self.tables.fill(sql), *values, *range_values(ranges))
        ((_, version, _, epoch, _, id, _, _, fence, writes, timeline),) = [row for row in rows if row[0] == CLAIMED]
        if timeline != self.timeline:  # A pooler may have switched the connection to another server.
            return None, None
        head = ClaimedHead.read((id, epoch, version, fence, writes))
        return head, await self._read_claimed(db, key, head, rows, ranges)

    async def _read_claimed(
        self, db: Db, key: ThreadKey, head: ClaimedHead, rows: Sequence[Any], ranges: Sequence[RecordRange]
    ) -> StoredThread | None:
        (seen,) = [row[9] for row in rows if row[0] == 0] or [None]
        if (head.version is None) != (seen is None) or (seen is not None and seen != head.writes):
            # The statement has waited for a write of the earlier owner, which it sees only in the row that it locks.
            return await load(db, self.tables, key, None, ranges)
        thread = read_thread(key, rows, None, ranges)
        if thread is not None and head.epoch is not None:
            thread = msgspec.structs.replace(thread, epoch=head.epoch)
        return thread

    # Writes

    async def lock(self, db: Db, keys: Sequence[tuple[bytes, bytes]]) -> list[StoredRow]:
        await self._begin(db)
        return [StoredRow(*row) for row in await self._fetch(db, _LOCK, *columns(keys, 2))]

    async def make_ids(self, db: Db, count: int) -> list[int]:
        return [id for (id,) in await self._fetch(db, _NEXT_IDS, count)]

    async def write(self, db: Db, rows: Rows) -> None:
        for table, values in rows.upserts:
            await self.upsert(db, table, values)
        if rows.dropped:
            await self._execute(db, DELETE_RECORDS, *columns(rows.dropped, 3))
        prunes: dict[str, list[Sequence[Any]]] = {}
        for sql, values in rows.prunes:
            prunes.setdefault(sql, []).append(values)
        for sql, each in prunes.items():
            await self.run_each(db, sql, each)
        await self._commit(db)

    async def write_plain(
        self, db: Db, heads: Sequence[ClaimedHead], versions: Sequence[int], writes: Sequence[tuple[int, Write]]
    ) -> set[int]:
        if not self.url.has_session:
            await self._begin(db)
        before = [(each.id, (each.epoch or "").encode(), each.version, each.fence, each.writes) for each in heads]
        changes = columns(change_rows(writes), len(CHANGES.columns))
        clients = columns(client_rows(writes), len(CLIENTS.columns))
        stored = await self._fetch(db, PLAIN, *columns(before, 5), versions, *changes, *clients)
        if not self.url.has_session:
            await self._commit(db)
        return {id for (id,) in stored}

    async def upsert(self, db: Db, table: Table, rows: Sequence[Sequence[Any]]) -> None:
        await self._execute(db, make_upsert(table), *columns(rows, 0))

    async def run_each(self, db: Db, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        await cast(Connection, db).executemany(self.tables.fill(sql), rows)

    async def remove(self, db: Db, table: str, threads: Sequence[int], limit: int) -> int:
        return int((await self._execute(db, _REMOVE.replace("%s", table), threads, limit)).split()[-1])

    async def load_each(self, db: Db, keys: Sequence[ThreadKey], part: str, name: str) -> Sequence[Any]:
        kinds, names = [key.kind.encode() for key in keys], [key.name.encode() for key in keys]
        return await self._fetch(db, _EACH, kinds, names, part.encode(), name.encode())

    # Inside

    async def _begin(self, db: Db) -> None:
        await db.execute(_BEGIN.format(self.commit_setting))

    async def _commit(self, db: Db) -> None:
        ended = await db.execute("COMMIT")
        assert ended == "COMMIT", ended

    async def _fetch(self, db: Db, sql: str, *values: Any) -> Sequence[Any]:
        return await db.fetch(self.tables.fill(sql), *values)

    async def _execute(self, db: Db, sql: str, *values: Any) -> str:
        done: str = await db.execute(self.tables.fill(sql), *values)
        return done
