"""The rows of a store in MariaDB or MySQL: the SQL is text, and a batch of changes takes two round trips."""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
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
from plait.store.rows.engine import INDEX, Range, Span
from plait.store.rows.layout import only
from plait.store.rows.server import Guarded, owner_row
from plait.store.sql.db import Db
from plait.store.sql.hosts import connect_first
from plait.store.sql.spans import TEXT, SpanSql, locate
from plait.store.sql.tables import Tables
from plait.store.thread_rows import ThreadKey

__all__ = ["MysqlDialect"]

T = TypeVar("T")

_SERVER: Final = """
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), VERSION(), @@global.read_only,
    @@global.innodb_flush_log_at_trx_commit, @@global.log_bin, @@global.sync_binlog
"""
# A transaction whose connection is lost must not keep its locks for as long as the server takes to notice that.
_BEGIN: Final = "SET SESSION wait_timeout = 3", "BEGIN"
_END: Final = "COMMIT", "SET SESSION wait_timeout = DEFAULT"
_SPACE: Final = "CAST(JSON_EXTRACT(CONVERT(value USING utf8mb4), '$.space') AS SIGNED)"
# It finds nothing on another server, and after a failover, until the timeline has been set.
_TIMELINE: Final = "{timeline} t WHERE t.number = $6 AND t.server = %s"
_CLAIM: Final = f"""
INSERT INTO {{rows}} (thread, part, number, "key", value) SELECT $1, $2, $3, $4, $5 FROM {_TIMELINE}
ON DUPLICATE KEY UPDATE value = VALUES(value)
"""
# Not the count of the rows that are changed: there are none if the claim was made by an attempt whose answer was lost.
_CLAIMED: Final = f"""
SELECT 1 FROM {{rows}} r, {_TIMELINE}
    AND r.thread = $1 AND r.part = $2 AND r.number = $3 AND r."key" = $4 AND r.value = $5
"""
_PLACE: Final = '(thread, part, number, "key")'
# Rows are found, and so locked, in the order of their keys: two stores that write the same threads do not wait for each
# other.
_LOCK: Final = f'SELECT part, "key", value FROM {{rows}} WHERE {_PLACE} IN (%s) FOR UPDATE'
_WRITE: Final = """
INSERT INTO {rows} (thread, part, number, "key", value) VALUES %s ON DUPLICATE KEY UPDATE value = VALUES(value)
"""
# The first row is never there. With a list of one row, MariaDB locks the row after it, too, whose owner is another one.
_REMOVE: Final = f"DELETE FROM {{rows}} WHERE {_PLACE} IN ((-1, '', 0, ''), %s)"
_REMOVE_NUMBERS: Final = "DELETE FROM {rows} WHERE thread = $1 AND part = $2 AND number >= $3 AND number < $4"
_REMOVE_KEYS: Final = f"""
DELETE FROM {{rows}} WHERE thread = $1 AND part = $2 AND number = {TEXT} AND "key" >= $3 AND "key" < $4
"""
_REMOVE_SPACE: Final = "DELETE FROM {rows} WHERE thread = $1"
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
_DEADLOCK: Final = 1213
_TRIES: Final = 5


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

    def __init__(self, url: MysqlUrl) -> None:
        super().__init__(url)
        self.url = url
        self.tables = Tables(url.prefix)
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

    def may_have_lost(self, origin: str, /) -> bool:
        return origin != self.origin

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

    # Rows

    async def prepare(self, db: Db, *, readonly: bool) -> None:
        await prepare(cast(MysqlDb, db), self.tables, readonly=readonly)
        if not self.origin:
            await self.identify(db)

    async def probe(self, db: Db, *, writes: bool) -> None:
        await db.execute(self.tables.fill("UPDATE {format} SET format = format") if writes else "SELECT 1")

    def select(self, spans: Sequence[Span]) -> SpanSql:
        found = SpanSql(spans, space=_SPACE, empty="x''", compares_rows=False)
        found.sql = self.tables.fill(found.sql)
        return found

    async def claim(self, db: Db, key: ThreadKey, value: bytes) -> bool:
        thread, part, name, value = owner_row(key, value)
        row = thread, *locate(part, name), value, self._number
        claim, claimed = [self._fill(sql.replace("%s", self.identity), *row) for sql in (_CLAIM, _CLAIMED)]
        _, _, (found, _), _ = await _retry(lambda: _run(db, "BEGIN", claim, claimed, "COMMIT"))
        return len(found) > 0

    async def commit(self, db: Db, changes: Sequence[Guarded]) -> Sequence[bool]:
        return await _retry(lambda: self._commit(db, changes))

    # Inside

    async def _commit(self, db: Db, changes: Sequence[Guarded]) -> Sequence[bool]:
        guards = [each.guard for each in changes if each.guard is not None]
        owners = await self._lock(db, [(part, key) for part, key, _ in guards]) if guards else {}
        made = [each.guard is None or owners.get(each.guard[:2]) == each.guard[2] for each in changes]
        accepted = [each for each, is_made in zip(changes, made, strict=True) if is_made]
        rows = [(space, *locate(part, key), value) for each in accepted for space, part, key, value in each.rows]
        statements = [self._fill(_WRITE) % literals for literals in make_lists(rows)]
        statements += self._remove([each for change in accepted for each in change.gone])
        statements += [self._fill(_REMOVE_SPACE, space) for change in accepted for space in change.spaces]
        await _run(db, *(() if guards else _BEGIN), *statements, *_END)
        return made

    async def _lock(self, db: Db, owners: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], bytes]:
        """Begin a transaction, and return the values of the rows of owners, which no other may change until its end."""
        places = make_list([(INDEX, *locate(part, key)) for part, key in owners])
        *_, (rows, _) = await _run(db, *_BEGIN, self._fill(_LOCK) % places)
        return {(part.decode(), key.decode()): value for part, key, value in rows}

    def _remove(self, gone: Sequence[Range]) -> Iterable[str]:
        """Return the statements that remove ranges."""
        single = [each for each in gone if each == only(*each[:3])]
        for places in make_lists([(space, *locate(part, key)) for space, part, key, _ in single]):
            yield self._fill(_REMOVE) % places
        for space, part, start, end in gone:
            if (space, part, start, end) != only(space, part, start):
                sql = _REMOVE_NUMBERS if isinstance(start, int) else _REMOVE_KEYS
                yield self._fill(sql, space, part, start, end)

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
