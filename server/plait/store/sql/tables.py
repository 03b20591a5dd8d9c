"""The tables of a store in an SQL database, apart from the types and indexes of an engine."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

__all__ = ["CHANGES", "CLIENTS", "RECORDS", "REMOVED", "SCHEMAS", "SNAPSHOTS", "TABLES", "THREADS", "Table", "Tables"]

_NAME: Final = re.compile(r"\{([a-z]+)\}")


class Table(msgspec.Struct, frozen=True, eq=False):
    """A table: its columns, with PostgreSQL's names of their types."""

    name: str
    columns: Mapping[str, str]
    # If a new row has the same values in these columns as an old one, it replaces that.
    key: Sequence[str] = ()


# Text is stored as bytes of UTF-8: they are ordered by code point in any database, whatever its encoding is, and may
# have zeros.
#
# - threads has a row for each thread that was claimed; `created_at` is NULL if none is stored. Only claims insert rows.
# - threads.id: all other rows of a thread have it. A thread that is deleted leaves them, and its row gets another id.
# - threads.fence: the number of the owner. It is above those before it even if the row was removed in between.
# - threads.origin: the server and timeline on which the thread was claimed last.
# - threads.writes: see `ClaimedHead` in `rows.py`.
# - threads.version is in no index and no condition of one, so that a change need not touch the indexes.
# - threads.due: 0 for never; odd if the thread expires then.
# - threads.changed_at: saved a second after a change.
# - removed: the ids of deleted threads that still have rows.
THREADS: Final = Table(
    "threads",
    {
        "id": "bigint",
        "kind": "bytea",
        "name": "bytea",
        "fence": "bigint",
        "origin": "text",
        "writes": "bigint",
        "epoch": "bytea",
        "version": "bigint",
        "state_version": "integer",
        "secret": "bytea",
        "stateless": "boolean",
        "due": "bigint",
        "created_at": "bigint",
        "changed_at": "bigint",
        "user_id": "bytea",
    },
    ("kind", "name"),
)
CHANGES: Final = Table(
    "changes", {"thread": "bigint", "version": "bigint", "ops": "bytea", "source": "bytea", "at": "bigint"}
)
SNAPSHOTS: Final = Table(
    "snapshots", {"thread": "bigint", "version": "bigint", "state": "bytea"}, ("thread", "version")
)
CLIENTS: Final = Table(
    "clients",
    {"thread": "bigint", "client": "bytea", "ref": "bigint", "refused": "bytea", "at": "bigint"},
    ("thread", "client"),
)
RECORDS: Final = Table(
    "records",
    {"thread": "bigint", "part": "bytea", "key": "bytea", "value": "bytea"},
    ("thread", "part", "key"),
)
SCHEMAS: Final = Table("schemas", {"kind": "bytea", "hash": "bytea", "schema": "bytea"}, ("kind", "hash"))
REMOVED: Final = Table("removed", {"thread": "bigint"})
TABLES: Final = (THREADS, CHANGES, SNAPSHOTS, CLIENTS, RECORDS, SCHEMAS, REMOVED)


class Tables:
    """The names of a store's tables, for its SQL. Those in a `schema` are qualified with it.

    With `compares_rows`, an index serves the comparison of several columns at once.
    """

    def __init__(self, prefix: str, schema: str = "", *, compares_rows: bool = True) -> None:
        self.schema = schema
        self.prefix = prefix
        self._compares_rows = compares_rows
        self._qualifier = f'"{schema}".' if schema else ""
        self._filled: dict[str, str] = {}

    def fill(self, sql: str) -> str:
        """Return SQL with the names of tables instead of `{threads}` and so on."""
        if (filled := self._filled.get(sql)) is None:
            filled = self._filled[sql] = _NAME.sub(lambda found: f'{self._qualifier}"{self.prefix}{found[1]}"', sql)
        return filled

    def compare(self, columns: Sequence[str], sign: str, values: Sequence[str]) -> str:
        """Return the condition that columns are before (`<`) or after (`>`) values, in their order."""
        if self._compares_rows:
            return f"({', '.join(columns)}) {sign} ({', '.join(values)})"
        column, value = columns[0], values[0]
        if len(columns) == 1:
            return f"{column} {sign} {value}"
        return f"({column} {sign} {value} OR {column} = {value} AND {self.compare(columns[1:], sign, values[1:])})"
