"""The dialect of MariaDB and MySQL: its SQL is text, and a batch takes two round trips."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast

from asyncmy.errors import MySQLError

from plait.clock import CLOCK
from plait.errors import StoreError
from plait.store.mysql.connection import (
    DRIVER_ERRORS,
    Found,
    MysqlDb,
    connect,
    explain,
    fill,
    get_code,
    is_lost,
    make_list,
    make_lists,
    was_sent,
)
from plait.store.mysql.schema import NO_TABLE, prepare
from plait.store.mysql.url import MysqlUrl
from plait.store.origins import OriginWatch
from plait.store.outcomes import Unreachable
from plait.store.protocol import ThreadKey
from plait.store.sql.db import Db
from plait.store.sql.dialect import Claim
from plait.store.sql.hosts import connect_first
from plait.store.sql.reads import make_load, read_thread
from plait.store.sql.rows import ClaimedHead, Rows, StoredRow, encode
from plait.store.sql.tables import THREADS, Table, Tables
from plait.store.thread_rows import RecordRange

__all__ = ["MysqlDialect"]

T = TypeVar("T")

_NOW: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_SERVER: Final = f"""
SELECT {_NOW}, VERSION(), @@global.read_only, @@global.innodb_flush_log_at_trx_commit, @@global.log_bin,
    @@global.sync_binlog
"""
# A transaction whose connection is lost must not keep its locks for as long as the server takes to notice that.
_BEGIN: Final = "SET SESSION wait_timeout = 3", "BEGIN"
_END: Final = "SET SESSION wait_timeout = DEFAULT"
# Microseconds since the epoch: a number is above those before it, also after a failover that has lost writes.
_FENCE: Final = f"(number << 52) + {_NOW}"
# It finds nothing on another server, and after a failover, until the timeline has been set. In the order of the
# assignments, `origin` is still the former one where the epoch is chosen.
_CLAIM: Final = f"""
INSERT INTO {{threads}} (kind, name, fence, origin)
SELECT $1, $2, {_FENCE}, $3 FROM {{timeline}} WHERE number = $4 AND server = %s
ON DUPLICATE KEY UPDATE fence = GREATEST(fence + 1, VALUES(fence)),
    epoch = IF(origin = VALUES(origin) OR epoch IS NULL, epoch, $5), origin = VALUES(origin)
"""
_HEAD: Final = "SELECT id, epoch, version, fence, writes FROM {threads} WHERE kind = $1 AND name = $2"
# All lock by the index of names first, as claims do: in another order there are deadlocks.
_LOCK: Final = f"""
SELECT {", ".join(THREADS.columns)} FROM {{threads}} FORCE INDEX (kind) WHERE (kind, name) IN (%s) FOR UPDATE
"""
# An id that is given to a new row is not given again after it.
_NEXT_ID: Final = (
    "INSERT INTO {threads} (kind, name, fence, origin) VALUES ('', $1, 0, '')",
    "DELETE FROM {threads} WHERE id = LAST_INSERT_ID()",
    "SELECT LAST_INSERT_ID()",
)
_RAISE: Final = (
    "INSERT IGNORE INTO {timeline} VALUES (1, 0, '')",
    "UPDATE {timeline} SET number = number + 1, server = %s WHERE server <> %s",
    "SELECT number, server FROM {timeline}",
)
# It is empty after each start of the server, as it is in memory.
_NOTE_RUN: Final = (
    "CREATE TABLE IF NOT EXISTS {run} (one boolean PRIMARY KEY, token varbinary(16) NOT NULL) ENGINE = MEMORY",
    "INSERT IGNORE INTO {run} VALUES (1, $1)",
    "SELECT token FROM {run}",
)
_DELETE_RECORDS: Final = 'DELETE FROM {records} WHERE (thread, part, "key") IN (%s)'
_DEADLOCK: Final = 1213
_TRIES: Final = 5
# Statements in one transaction that each have a row of values.
_AT_ONCE: Final = 1000


class MysqlDialect(OriginWatch):
    """The dialect of the servers of a URL.

    The origin is the number of the timeline, its server and, if the server does not sync each commit, its last start.
    """

    errors: tuple[type[Exception], ...] = DRIVER_ERRORS
    begin_view = (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
    )
    is_lost = staticmethod(is_lost)
    was_sent = staticmethod(was_sent)
    explain = staticmethod(explain)
    write_plain = None

    def __init__(self, url: MysqlUrl, on_loss: Callable[[], None] | None = None) -> None:
        super().__init__(url, on_loss)
        self.url = url
        self.tables = Tables(url.prefix, compares_rows=False)
        # SQL for the identity of a server: MySQL's and MariaDB's differ.
        self.identity = ""
        self._number, self._server = 0, b""
        self._syncs = True

    @property
    def durability(self) -> str:
        if not self._syncs:
            return (
                "changes survive a crash of the process; a crash of the database server may lose those of about the "
                "last second (innodb_flush_log_at_trx_commit or, with a binary log, sync_binlog is not 1)"
            )
        return "changes survive crashes of the processes and machines, but a failover may lose the last ones"

    def is_trouble(self, error: BaseException, /) -> bool:
        return isinstance(error, StoreError) or is_lost(error) or get_code(error) in (1021, 1114, 1040, 1203)

    # Connections

    async def connect(self) -> MysqlDb:
        return await connect_first(self.url.hosts, self._connect, errors=DRIVER_ERRORS, explain=explain)

    async def identify(self, db: Db) -> None:
        asked = CLOCK.read_steady()
        ((now, version, is_readonly, flushes, has_binlog, syncs_binlog),) = await db.fetch(_SERVER)
        CLOCK.follow(now, asked)
        if str(is_readonly) not in ("0", "OFF"):  # It is a word in later versions of MariaDB.
            raise Unreachable("the server is a replica, which cannot be written (read_only)")
        self.identity = f"CONCAT(@@{'server_uid' if 'MariaDB' in version else 'server_uuid'}, '/', @@server_id)"
        self._syncs = int(flushes) == 1 and (not int(has_binlog) or int(syncs_binlog) == 1)
        try:
            *_, (((number, server),), _) = await _run(
                db, *(self._fill(sql).replace("%s", self.identity) for sql in _RAISE)
            )
            origin = f"{number}:{server.decode()}"
            if not self._syncs:
                token = secrets.token_bytes(16)
                *_, (((run,),), _) = await _run(db, *(self._fill(sql, token) for sql in _NOTE_RUN))
                origin += f":{run.hex()}"
        except MySQLError as error:
            if get_code(error) != NO_TABLE:
                raise
            return  # `prepare` comes next.
        self.note(origin, db, is_older=number < self._number and server != self._server)
        self._number, self._server = number, server

    async def prepare(self, db: Db, *, readonly: bool) -> None:
        await prepare(cast(MysqlDb, db), self.tables, readonly=readonly)
        if not self.origin:
            await self.identify(db)

    # Claims

    async def claim(self, db: Db, key: ThreadKey, ranges: Sequence[RecordRange] | None) -> Claim:
        names, fresh = encode(key), secrets.token_hex(8)
        claim = self._fill(_CLAIM.replace("%s", self.identity), *names, self.origin, self._number, fresh)
        statements = ["BEGIN", claim, self._fill(_HEAD, *names), "COMMIT"]
        if ranges is not None:
            sql, values = make_load(key, None, ranges)
            statements.insert(3, self._fill(sql, *values))
        _, claimed, (heads, _), *loaded, _ = await _retry(lambda: _run(db, *statements))
        if not claimed.changed:
            return None, None
        head = ClaimedHead.read(heads[0])
        return head, None if ranges is None else read_thread(key, loaded[0].rows, None, ranges)

    # Writes

    async def lock(self, db: Db, keys: Sequence[tuple[bytes, bytes]]) -> list[StoredRow]:
        sql = self._fill(_LOCK) % make_list(keys)
        *_, (rows, _) = await _retry(lambda: _run(db, *_BEGIN, sql))
        return [StoredRow(*row) for row in rows]

    async def make_ids(self, db: Db, count: int) -> list[int]:
        statements = [self._fill(sql, secrets.token_bytes(16)) for _ in range(count) for sql in _NEXT_ID]
        return [rows[0][0] for rows, _ in (await _run(db, *statements))[2::3]]

    async def write(self, db: Db, rows: Rows) -> None:
        statements = [
            self._fill(_make_upsert(table)) % literals
            for table, values in rows.upserts
            for literals in make_lists(values)
        ]
        statements += [self._fill(_DELETE_RECORDS) % literals for literals in make_lists(rows.dropped)]
        statements += [self._fill(sql, *values) for sql, values in rows.prunes]
        await _run(db, *statements, "COMMIT", _END)

    async def upsert(self, db: Db, table: Table, rows: Sequence[Sequence[Any]]) -> None:
        await _run(db, self._fill(_make_upsert(table)) % make_list(rows))

    async def run_each(self, db: Db, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        statements = [self._fill(sql, *row) for row in rows]
        begin, end = ((), ()) if db.is_in_transaction() else (("BEGIN",), ("COMMIT",))
        for start in range(0, len(statements), _AT_ONCE):
            await _run(db, *begin, *statements[start : start + _AT_ONCE], *end)

    async def remove(self, db: Db, table: str, threads: Sequence[int], limit: int) -> int:
        sql = f"DELETE FROM {{{table}}} WHERE thread IN ({','.join(map(str, threads))}) LIMIT {limit}"
        return (await _run(db, self._fill(sql)))[0].changed

    async def load_each(self, db: Db, keys: Sequence[ThreadKey], part: str, name: str) -> Sequence[Any]:
        sql = """
        SELECT (SELECT r.value FROM {threads} t JOIN {records} r ON r.thread = t.id AND r.part = $3 AND r."key" = $4
        WHERE t.kind = $1 AND t.name = $2 AND t.created_at IS NOT NULL)
        """
        found = await _run(db, *(self._fill(sql, *encode(key), part, name) for key in keys))
        return [rows[0] for rows, _ in found]

    # Inside

    async def _connect(self, host: tuple[str, int]) -> MysqlDb:
        db = await connect(self.url, *host)
        try:
            await self.identify(db)
        except BaseException:
            db.terminate()
            raise
        return db

    def _fill(self, sql: str, *values: Any) -> str:
        return fill(self.tables.fill(sql), *values)


async def _run(db: Db, *statements: str) -> list[Found]:
    return await cast(MysqlDb, db).run(*statements)


async def _retry(work: Callable[[], Awaitable[T]]) -> T:
    """Do a transaction again that was rolled back because of a deadlock."""
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except MySQLError as error:
            if get_code(error) != _DEADLOCK:
                raise
    return await work()


@cache
def _make_upsert(table: Table) -> str:
    """Return the statement that inserts rows, whose literals are to come, or replaces those with the same key."""
    names = ",".join(f'"{name}"' for name in table.columns)
    changed = [f'"{name}" = VALUES("{name}")' for name in table.columns if table.key and name not in table.key]
    end = f" ON DUPLICATE KEY UPDATE {','.join(changed)}" if changed else ""
    return f"INSERT INTO {{{table.name}}} ({names}) VALUES %s{end}"
