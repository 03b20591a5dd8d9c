"""The cells of a cluster's directory in PostgreSQL, in a table beside those of the store."""

import secrets
from types import TracebackType
from typing import Any, Final, Self

import asyncpg

from plait.errors import StoreError
from plait.store.cells import Cell, Reading
from plait.store.postgres.engine import DRIVER_ERRORS, TIMELINE, Connection, Engine, explain
from plait.store.postgres.url import PostgresUrl
from plait.store.sql.tables import Tables

__all__ = ["PostgresCells"]

# The table has the name of one that earlier versions made, and other columns, so that neither they nor this one start
# beside the other: there would be two directories, and two owners of each shard.
_CREATE: Final = """
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{nodes}', 1));
    CREATE TABLE IF NOT EXISTS {nodes} (cell text PRIMARY KEY, revision bigint NOT NULL, value bytea NOT NULL)
    WITH (fillfactor = 50);
END $$
"""
_ORIGIN: Final = f"({TIMELINE} << 40)"
_READ: Final = f"""
SELECT origin, cell, revision, value FROM (SELECT {_ORIGIN} AS origin) o
LEFT JOIN {{nodes}} ON revision <> ALL ($1::bigint[])
"""
_MAKE: Final = f"""
INSERT INTO {{nodes}} (cell, revision, value) SELECT $1, $3::bigint, $4::bytea WHERE {_ORIGIN} = $2
ON CONFLICT DO NOTHING RETURNING 1
"""
_REPLACE: Final = f"""
UPDATE {{nodes}} SET revision = $3, value = $4 WHERE cell = $1 AND {_ORIGIN} = $2 AND revision = $5 RETURNING 1
"""
_FORGET: Final = f"DELETE FROM {{nodes}} WHERE cell = $1 AND {_ORIGIN} = $2 AND revision = $3 RETURNING 1"


class PostgresCells:
    """The cells over a connection that is replaced when it is lost."""

    def __init__(self, url: PostgresUrl) -> None:
        self._tables = Tables(url.prefix, url.schema)
        self._engine = Engine(url, lambda: None)
        self._db: Connection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    async def read(self, former: Reading | None = None) -> Reading:
        cells = {} if former is None else dict(former.cells)
        rows = await self._fetch(_READ, [each.revision for each in cells.values()])
        if not rows:
            return Reading(0, {})
        timeline = rows[0]["origin"]
        if former is not None and timeline != former.timeline:
            return await self.read()
        changed = {row["cell"]: Cell(row["revision"], row["value"]) for row in rows if row["cell"] is not None}
        return Reading(timeline, cells | changed)

    async def swap(self, cell: str, revision: int, value: bytes | None, *, timeline: int) -> int | None:
        if timeline == 0:
            await self._fetch(_CREATE)
            return None
        new = secrets.randbits(62) + 1  # None that a failover has lost is given out again.
        if value is None:
            rows = await self._fetch(_FORGET, cell, timeline, revision)
        elif revision == 0:
            rows = await self._fetch(_MAKE, cell, timeline, new, value)
        else:
            rows = await self._fetch(_REPLACE, cell, timeline, new, value, revision)
        return new if rows else None

    # Inside

    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        """Return rows; none if the table is not there, as no node has joined yet."""
        try:
            if self._db is None or self._db.is_closed():
                self._db = await self._engine.connect()
            return list(await self._db.fetch(self._tables.fill(sql), *values))
        except asyncpg.UndefinedTableError:
            return []
        except asyncpg.UndefinedColumnError as error:
            tables = self._tables.fill("{nodes} and {shards}")
            raise StoreError(
                f"{tables} are tables of an earlier plait: stop all servers of the store, then drop them"
            ) from error
        except BaseException as error:
            self._drop()  # A statement may be under way.
            if isinstance(error, DRIVER_ERRORS):
                raise StoreError(explain(error)) from error
            raise

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.terminate()
