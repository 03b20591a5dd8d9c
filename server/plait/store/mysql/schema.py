"""Creates the tables of a store in MariaDB or MySQL."""

from collections.abc import Sequence
from typing import Any, Final

from asyncmy.errors import MySQLError

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.mysql.connection import MysqlDb, get_code
from plait.store.sql.tables import Tables

__all__ = ["NO_TABLE", "prepare"]

NO_TABLE: Final = 1146
"""The number of the error of a table that is not there."""

_NO_COLUMN: Final = 1054
_FORMAT: Final = 2
# For the rows, see `spans.py`. The longest part names a user and a kind, and the longest key a time, a kind and a name.
# Both fit into the 3,072 bytes of an index.
#
# - timeline: the server on which the data is, and how often it has been another one. It is copied with the data, so
#   that a replica which is promoted has the former server in it.
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS {rows} (
    thread bigint NOT NULL, part varbinary(1600) NOT NULL, number bigint NOT NULL, "key" varbinary(1400) NOT NULL,
    value longblob NOT NULL, PRIMARY KEY (thread, part, number, "key")
) ENGINE = InnoDB;
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
    """Raise StoreError if the table of rows was there before and is not of plait."""
    try:
        await db.execute(tables.fill('SELECT thread, part, number, "key", value FROM {rows} LIMIT 0'))
    except MySQLError as error:
        if get_code(error) != _NO_COLUMN:
            raise
        name = tables.fill("{rows}").strip('"')
        raise StoreError(f"the table {name} has other columns: give the store another prefix") from None
