"""Creates the tables of a store in PostgreSQL."""

from typing import Final

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.postgres.engine import Connection
from plait.store.sql.tables import Tables

__all__ = ["prepare"]

_FORMAT: Final = 2
# See `tables.py`. The number of a thread's owner has a number of the sequence in it.
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


async def prepare(db: Connection, tables: Tables, *, readonly: bool) -> None:
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


async def _has_tables(db: Connection, tables: Tables) -> bool:
    """Whether there are tables of this format. Raises StoreError for those of another one."""
    # Not with to_regclass: in the transaction that has waited for the lock, it would answer from a cache.
    if await db.fetchval(_FIND_FORMAT, tables.schema, f"{tables.prefix}format") is None:
        return False
    check_format(await db.fetchval(tables.fill("SELECT format FROM {format}")), _FORMAT)
    return True
