"""Opens connections to a PostgreSQL server, and notices when it may have lost durable writes."""

import asyncio
from typing import Any, Final, TypeAlias

import asyncpg
from asyncpg.connect_utils import SessionAttribute

from plait.clock import CLOCK
from plait.errors import StoreError
from plait.store.origins import OriginWatch
from plait.store.outcomes import Unreachable, describe
from plait.store.postgres.url import PostgresUrl
from plait.store.sql.db import Db
from plait.store.sql.hosts import connect_first

__all__ = ["DRIVER_ERRORS", "TIMELINE", "Connection", "Engine", "explain", "is_lost", "was_sent"]

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""The errors of the driver, apart from those of arguments."""

Connection: TypeAlias = "asyncpg.Connection[Any]"

TIMELINE: Final = "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint"
"""SQL for the number of the server's timeline, which a promoted standby increments."""

# Statistics are reset when a server recovers from a crash, which without synchronous commits may have lost some.
_IDENTIFY: Final = f"""
SELECT (SELECT system_identifier FROM pg_control_system()) AS server, {TIMELINE} AS timeline,
    (SELECT stats_reset::text FROM pg_stat_bgwriter) AS recovered,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, current_setting('fsync') = 'on' AS syncs,
    current_setting('synchronous_standby_names') <> '' AS has_standby
"""
# The errors of the driver before it sends a statement, when the connection has just been closed.
_NOT_SENT: Final = ("cannot perform operation", "cannot switch to state")
_SESSION: Final = "SELECT pg_backend_pid()"
# Another client may use the server process of the first connection at the moment that the second one asks.
_PROBES: Final = 10


class Engine(OriginWatch):
    """Opens connections to the server of a URL.

    The origin is the server, its timeline and, without synchronous commits, its last crash.
    """

    def __init__(self, url: PostgresUrl) -> None:
        super().__init__(url)
        self.url = url
        self.timeline = 0
        # Whether the server waits for the disk at all.
        self.syncs = True

    @property
    def commit_setting(self) -> str:
        """The setting of a session or a transaction that says what a commit waits for."""
        return f"synchronous_commit TO {'on' if self.url.is_synchronous else 'off'}"

    async def connect(self) -> Connection:
        """Return a new connection to the first server of the URL that can be written. Raises Unreachable."""
        return await connect_first(self.url.dsns, self._connect, errors=DRIVER_ERRORS, explain=explain)

    async def check_session(self, db: Connection) -> None:
        """Raise StoreError if a pooler gives each transaction another server process, and the URL does not say so.

        A pooler answers the login itself, with a process id of its own. In transactions of two connections, one that
        pools transactions then shows the process of the first one to the second one, or moves the first one.
        """
        if not self.url.has_session or (process := await db.fetchval(_SESSION)) == db.get_server_pid():
            return
        other = await self.connect()
        try:
            for _ in range(_PROBES):
                async with other.transaction():
                    is_shared = await other.fetchval(_SESSION) == process or await db.fetchval(_SESSION) != process
                if is_shared:
                    raise StoreError(
                        "a pooler, such as PgBouncer, gives each transaction another connection: "
                        "add statement_cache_size=0 to the URL"
                    )
        finally:
            other.terminate()

    async def identify(self, db: Db) -> None:
        """Check which server a connection leads to, and whether it keeps what the URL promises. Raises Unreachable."""
        asked = CLOCK.read_steady()
        (found,) = await db.fetch(_IDENTIFY)
        CLOCK.follow(found["now"], asked)
        if self.url.has_standby and not found["has_standby"]:
            raise Unreachable("the URL has standby=synchronous, but the server's synchronous_standby_names is empty")
        origin = f"{found['server']}:{found['timeline']}"
        if not self.url.is_synchronous:
            origin += f":{found['recovered']}"
        is_same = self.origin.startswith(f"{found['server']}:")
        self.note(origin, db, is_older=is_same and found["timeline"] < self.timeline)
        self.timeline, self.syncs = found["timeline"], found["syncs"]

    # Inside

    async def _connect(self, dsn: str) -> Connection:
        db: Connection = await asyncpg.connect(
            dsn,
            user=self.url.user,
            password=self.url.password,
            statement_cache_size=100 if self.url.has_session else 0,
            target_session_attrs=SessionAttribute.primary,
        )
        try:
            await self.identify(db)
            if self.url.has_session:
                # All statements find a few rows by their keys: to plan each one again takes longer than to run it.
                await db.execute(f"SET {self.commit_setting}; SET plan_cache_mode TO force_generic_plan")
        except BaseException:
            db.terminate()
            raise
        return db


def is_lost(error: BaseException, *, is_closed: bool = False) -> bool:
    """Whether an error means that the outcome of a statement is not known; `is_closed` tells of the connection."""
    if isinstance(error, asyncpg.PostgresError):
        return is_closed or error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "XX")
    if isinstance(error, ValueError):  # The driver's errors of arguments are InterfaceErrors, too.
        return False
    return isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError | asyncio.TimeoutError)


def was_sent(error: BaseException) -> bool:
    """Whether a statement that has failed with a lost connection may have reached the server."""
    is_internal = isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError)
    return not (is_internal and str(error).startswith(_NOT_SENT))


def explain(error: BaseException) -> str:
    """Return in one line what an error of the driver means."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "the server is a standby, which cannot be written"
    return describe(error)
