"""The cells of a cluster's directory in MariaDB or MySQL."""

from collections.abc import Sequence
from typing import Any, Final

from plait.store.mysql.connection import get_code
from plait.store.mysql.dialect import MysqlDialect
from plait.store.mysql.schema import NO_TABLE
from plait.store.mysql.url import MysqlUrl
from plait.store.sql.cells import SqlCells
from plait.store.sql.db import Db

__all__ = ["MysqlCells"]

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {nodes} (cell varbinary(1024) PRIMARY KEY, revision bigint NOT NULL, value longblob NOT NULL)
ENGINE = InnoDB
"""
# Nothing is found on another server, and after a failover, until the timeline has been set.
_TIMELINE: Final = "{timeline} t ON t.number << 40 = $2 AND t.server = %s"
_READ: Final = """
SELECT t.number << 40, (SELECT count(*) FROM {nodes}), CONVERT(c.cell USING utf8mb4), c.revision, c.value
FROM {timeline} t LEFT JOIN {nodes} c ON c.revision NOT IN (%s) WHERE t.server = %s
"""
_MAKE: Final = """
INSERT INTO {nodes} (cell, revision, value) SELECT $1, $3, $4 FROM {timeline} t
WHERE t.number << 40 = $2 AND t.server = %s ON DUPLICATE KEY UPDATE revision = revision
"""
_REPLACE: Final = f"""
UPDATE {{nodes}} c JOIN {_TIMELINE} SET c.revision = $3, c.value = $4 WHERE c.cell = $1 AND c.revision = $5
"""
_REMOVE: Final = f"DELETE c FROM {{nodes}} c JOIN {_TIMELINE} WHERE c.cell = $1 AND c.revision = $3"


class MysqlCells(SqlCells):
    """The cells of a URL."""

    _make, _replace, _remove = _MAKE, _REPLACE, _REMOVE

    _dialect: MysqlDialect

    def __init__(self, url: MysqlUrl, engine: MysqlDialect | None = None) -> None:
        super().__init__(engine or MysqlDialect(url))

    async def _create(self, db: Db) -> None:
        await self._dialect.prepare(db, readonly=False)
        await db.execute(self._dialect.tables.fill(_CREATE))

    async def _read(self, db: Db, known: Sequence[int]) -> Sequence[Any]:
        sql = self._dialect.tables.fill(_READ) % (",".join(map(str, known or (0,))), self._dialect.identity)
        while not (rows := await db.fetch(sql)):
            await self._dialect.identify(db)
        return rows

    async def _swap(self, db: Db, sql: str, values: Sequence[Any]) -> bool:
        changed: int = await db.execute(self._dialect.tables.fill(sql).replace("%s", self._dialect.identity), *values)
        return changed > 0

    def _is_missing(self, error: Exception) -> bool:
        return get_code(error) == NO_TABLE
