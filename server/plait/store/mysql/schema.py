"""Creates the tables of a store in MariaDB or MySQL."""

from collections.abc import Sequence
from typing import Any, Final

from asyncmy.errors import MySQLError

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.mysql.connection import MysqlDb, get_code
from plait.store.sql.tables import TABLES, Tables

__all__ = ["NO_TABLE", "prepare"]

NO_TABLE: Final = 1146
"""The number of the error of a table that is not there."""

_NO_COLUMN: Final = 1054
_FORMAT: Final = 1
# See `tables.py`. All names fit into the 3,072 bytes of an index.
#
# - timeline: the server on which the data is, and how often it has been another one. It is copied with the data, so
#   that a replica which is promoted has the former server in it.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS {threads} (
    id bigint AUTO_INCREMENT PRIMARY KEY, kind varbinary(255) NOT NULL, name varbinary(1024) NOT NULL,
    fence bigint NOT NULL, origin varbinary(255) NOT NULL, writes bigint NOT NULL DEFAULT 0,
    epoch varbinary(255), version bigint, state_version integer, secret varbinary(255), stateless boolean,
    due bigint, created_at bigint, changed_at bigint, user_id varbinary(1024),
    UNIQUE KEY (kind, name), KEY (kind, created_at, name), KEY (kind, changed_at, name), KEY (user_id, kind, name),
    KEY (due, kind, name)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {changes} (
    thread bigint, version bigint, ops longblob NOT NULL, source varbinary(1024) NOT NULL, at bigint NOT NULL,
    PRIMARY KEY (thread, version)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {snapshots} (
    thread bigint, version bigint, state longblob NOT NULL, PRIMARY KEY (thread, version)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {clients} (
    thread bigint, client varbinary(255), ref bigint NOT NULL, refused longblob NOT NULL, at bigint NOT NULL,
    PRIMARY KEY (thread, client)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {records} (
    thread bigint, part varbinary(255), "key" varbinary(1024), value longblob NOT NULL,
    PRIMARY KEY (thread, part, "key")
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {schemas} (
    kind varbinary(255), hash varbinary(255), "schema" longblob NOT NULL, PRIMARY KEY (kind, hash)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {removed} (thread bigint PRIMARY KEY) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {timeline} (
    one boolean PRIMARY KEY, number bigint NOT NULL, server varbinary(128) NOT NULL
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS {format} (one boolean PRIMARY KEY, format integer NOT NULL) ENGINE = InnoDB
"""


async def prepare(db: MysqlDb, tables: Tables, *, readonly: bool) -> None:
    """Create the tables, unless another process does. Raises StoreError."""
    sql = tables.fill("SELECT format FROM {format}")
    rows: Sequence[Any] = ()
    try:
        rows = await db.fetch(sql)
    except MySQLError as error:
        if get_code(error) != NO_TABLE:
            raise
    if not rows:
        if readonly:
            raise StoreError("the database has no tables of this plait; start a server with it first") from None
        await db.run(*tables.fill(_SCHEMA).split(";\n"))
        await _check_columns(db, tables)
        await db.execute(tables.fill("INSERT IGNORE INTO {format} VALUES (1, $1)"), _FORMAT)
        rows = await db.fetch(sql)
    check_format(rows[0][0], _FORMAT)


async def _check_columns(db: MysqlDb, tables: Tables) -> None:
    """Raise StoreError if a table was there before that is not of plait."""
    for table in TABLES:
        columns = ", ".join(f'"{name}"' for name in table.columns)
        try:
            await db.execute(tables.fill(f"SELECT {columns} FROM {{{table.name}}} LIMIT 0"))
        except MySQLError as error:
            if get_code(error) != _NO_COLUMN:
                raise
            name = tables.fill(f"{{{table.name}}}").strip('"')
            raise StoreError(f"the table {name} has other columns: give the store another prefix") from None
