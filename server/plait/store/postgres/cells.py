"""The cells of a cluster's directory in PostgreSQL."""

from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from plait.errors import StoreError
from plait.store.postgres.dialect import PostgresDialect
from plait.store.postgres.engine import TIMELINE
from plait.store.postgres.url import PostgresUrl
from plait.store.sql.cells import SqlCells
from plait.store.sql.db import Db
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
SELECT origin, total, cell, revision, value
FROM (SELECT {_ORIGIN} AS origin, (SELECT count(*) FROM {{nodes}}) AS total) o
LEFT JOIN {{nodes}} ON revision <> ALL ($1::bigint[])
"""
_MAKE: Final = f"""
INSERT INTO {{nodes}} (cell, revision, value) SELECT $1, $3::bigint, $4::bytea WHERE {_ORIGIN} = $2
ON CONFLICT DO NOTHING RETURNING 1
"""
_REPLACE: Final = f"""
UPDATE {{nodes}} SET revision = $3, value = $4 WHERE cell = $1 AND {_ORIGIN} = $2 AND revision = $5 RETURNING 1
"""
_REMOVE: Final = f"DELETE FROM {{nodes}} WHERE cell = $1 AND {_ORIGIN} = $2 AND revision = $3 RETURNING 1"


class PostgresCells(SqlCells):
    """The cells of a URL."""

    _make, _replace, _remove = _MAKE, _REPLACE, _REMOVE

    def __init__(self, url: PostgresUrl, engine: PostgresDialect | None = None) -> None:
        self._tables = Tables(url.prefix, url.schema)
        self._has_session = url.has_session
        super().__init__(engine or PostgresDialect(url))

    async def _begin(self, db: Db) -> None:
        if self._has_session:  # After a crash that loses a move, a shard would have two owners for a while.
            await db.execute("SET synchronous_commit TO on")

    async def _create(self, db: Db) -> None:
        await db.execute(self._tables.fill(_CREATE))

    async def _read(self, db: Db, known: Sequence[int]) -> Sequence[Any]:
        return await db.fetch(self._tables.fill(_READ), known)

    async def _swap(self, db: Db, sql: str, values: Sequence[Any]) -> bool:
        return bool(await db.fetch(self._tables.fill(sql), *values))

    def _is_missing(self, error: Exception) -> bool:
        if isinstance(error, asyncpg.UndefinedColumnError):
            tables = self._tables.fill("{nodes} and {shards}")
            raise StoreError(
                f"{tables} are tables of an earlier plait: stop all servers of the store, then drop them"
            ) from error
        return isinstance(error, asyncpg.UndefinedTableError)
