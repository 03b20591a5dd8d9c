"""The tables of a store in PostgreSQL."""

import re
from typing import Final

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.postgres.engine import Db
from plait.store.postgres.url import PostgresUrl

__all__ = ["Tables", "prepare"]

_FORMAT: Final = 2
# Text is stored as bytes of UTF-8: they are ordered by code point in any database, whatever its encoding is, and may
# have zeros.
#
# - threads has a row for each thread that was claimed; `created_at` is NULL if none is stored. Only claims insert rows.
# - threads.id: all other rows of a thread have it. A thread that is deleted leaves them, and its row gets another id.
# - threads.fence: the number of the owner. The sequence is part of it, so that no number is given out twice even if the
#   row was removed in between.
# - threads.origin: the server and timeline on which the thread was claimed last.
# - threads.writes: see `ClaimedHead` in `heads.py`.
# - threads.version is in no index and no condition of one, so that a change need not touch the indexes.
# - threads.due: 0 for never; odd if the thread expires then.
# - threads.changed_at: saved a second after a change.
# - removed: the ids of deleted threads that still have rows.
_SCHEMA: Final = """
CREATE TABLE {format} (format integer NOT NULL);
CREATE SEQUENCE {fences};
CREATE SEQUENCE {ids};
CREATE TABLE {threads} (
    id bigint PRIMARY KEY DEFAULT nextval('{ids}'), kind bytea NOT NULL, name bytea NOT NULL,
    fence bigint NOT NULL, origin text NOT NULL, writes bigint NOT NULL DEFAULT 0,
    epoch bytea, version bigint, state_version integer, secret bytea, stateless boolean,
    due bigint, created_at bigint, changed_at bigint, user_id bytea,
    UNIQUE (kind, name)
) WITH (fillfactor = 70);
CREATE INDEX ON {threads} (kind, created_at, name) WHERE created_at IS NOT NULL;
CREATE INDEX ON {threads} (kind, changed_at, name) WHERE created_at IS NOT NULL;
CREATE INDEX ON {threads} (user_id, kind, name) WHERE user_id IS NOT NULL;
CREATE INDEX ON {threads} (due, kind, name) WHERE due > 0;
CREATE TABLE {changes} (
    thread bigint, version bigint, ops bytea NOT NULL, source bytea NOT NULL, at bigint NOT NULL,
    PRIMARY KEY (thread, version)
);
CREATE TABLE {snapshots} (thread bigint, version bigint, state bytea NOT NULL, PRIMARY KEY (thread, version));
CREATE TABLE {clients} (
    thread bigint, client bytea, ref bigint NOT NULL, refused bytea NOT NULL, at bigint NOT NULL,
    PRIMARY KEY (thread, client)
);
CREATE TABLE {records} (
    thread bigint, part bytea, key bytea, value bytea NOT NULL, PRIMARY KEY (thread, part, key)
);
CREATE TABLE {schemas} (kind bytea, hash bytea, schema bytea NOT NULL, PRIMARY KEY (kind, hash));
CREATE TABLE {removed} (thread bigint PRIMARY KEY);
"""
_FIND_FORMAT: Final = """
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2
"""
_NAME: Final = re.compile(r"\{([a-z]+)\}")


class Tables:
    """The names of a store's tables, for its SQL."""

    def __init__(self, url: PostgresUrl) -> None:
        self.schema = url.schema
        self.prefix = url.prefix
        self._filled: dict[str, str] = {}

    def fill(self, sql: str) -> str:
        """Return SQL with the names of tables instead of `{threads}` and so on."""
        if (filled := self._filled.get(sql)) is None:
            filled = self._filled[sql] = _NAME.sub(lambda found: f'"{self.schema}"."{self.prefix}{found[1]}"', sql)
        return filled


async def prepare(db: Db, tables: Tables, *, readonly: bool) -> None:
    """Create the tables, unless another process does. Raises StoreError."""
    if await _has_tables(db, tables):
        return
    if readonly:
        raise StoreError(f"the schema {tables.schema} has no tables of this plait; start a server with it first")
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", tables.fill("{format}"))
        if await _has_tables(db, tables):
            return
        if await db.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", tables.schema) is None:
            await db.execute(f'CREATE SCHEMA "{tables.schema}"')
        await db.execute(tables.fill(_SCHEMA))
        await db.execute(tables.fill("INSERT INTO {format} VALUES ($1)"), _FORMAT)


async def _has_tables(db: Db, tables: Tables) -> bool:
    """Whether there are tables of this format. Raises StoreError for those of another one."""
    # Not with to_regclass: in the transaction that has waited for the lock, it would answer from a cache.
    if await db.fetchval(_FIND_FORMAT, tables.schema, f"{tables.prefix}format") is None:
        return False
    check_format(await db.fetchval(tables.fill("SELECT format FROM {format}")), _FORMAT)
    return True
