"""Decides which statements may run on the tables of a thread, and notes the tables that each one reads and writes."""

import sqlite3
from typing import Final, NamedTuple

__all__ = ["ANYTHING", "Access", "Authorizer"]

_READING: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
_ROWS: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
# The actions that change the schema.
_DEFINING: Final = frozenset(
    {
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TRIGGER,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_DROP_VTABLE,
        sqlite3.SQLITE_REINDEX,
        sqlite3.SQLITE_ANALYZE,
    }
)
# This pragma holds until the end of the transaction, so setting it is a step of a transaction, as a write is.
_DEFER: Final = "defer_foreign_keys"
_PRAGMAS: Final = frozenset(
    {
        "data_version",  # FTS5 runs it.
        _DEFER,
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
# Written by each statement that changes the schema, which is an action of its own, and to open a virtual table.
_SCHEMAS: Final = frozenset({"sqlite_master", "sqlite_temp_master"})
# Other modules compile statements that write to their own tables when a statement reads them.
_MODULES: Final = frozenset({"fts5"})
_REFUSED_FUNCTIONS: Final = frozenset({"load_extension", "fts3_tokenizer"})
_NAMES: Final = {
    getattr(sqlite3, f"SQLITE_{name}"): name.replace("_", " ").lower()
    for name in ("ATTACH", "DETACH", "SAVEPOINT", "TRANSACTION")
}


ANYTHING: Final = "*"
"""Stands for all names: what else a statement reads is not known, or it changes the schema."""


class Access(NamedTuple):
    """The tables that a statement reads and writes, in lower case as far as SQLite does."""

    reads: frozenset[str]
    writes: frozenset[str]


class Authorizer:
    """SQLite calls it while it compiles a statement, once for each thing that the statement does.

    While `is_off`, everything is allowed: plait's own statements run then.
    """

    def __init__(self, *, may_write: bool) -> None:
        self._may_write = may_write
        self.is_off = True
        # Why the last statement was refused; empty if it was not.
        self.refusal = ""
        self._reads: set[str] = set()
        self._writes: set[str] = set()
        self._is_asked = False

    def begin(self) -> None:
        """Forget the notes of the statement before."""
        self.refusal = ""
        self._reads, self._writes, self._is_asked = set(), set(), False

    def find_access(self) -> Access | None:
        """Return the notes since `begin`; None if nothing was compiled."""
        return Access(frozenset(self._reads), frozenset(self._writes)) if self._is_asked else None

    def __call__(
        self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
    ) -> int:
        if self.is_off:
            return sqlite3.SQLITE_OK
        self._is_asked = True
        self.refusal = self.refusal or self._check(action, first or "", second or "", database)
        return sqlite3.SQLITE_DENY if self.refusal else sqlite3.SQLITE_OK

    def _check(self, action: int, first: str, second: str, database: str | None) -> str:
        """Return why an action is refused, or note it and return nothing."""
        if action == sqlite3.SQLITE_READ:
            # Schemas are not written by name.
            self._reads.add(ANYTHING if first.startswith(("sqlite_", "pragma_")) else first)
        elif action == sqlite3.SQLITE_INSERT and database == "temp":
            return "something temporary"  # Each temporary table, view and trigger is a row of a schema.
        elif action in _READING or (action in _ROWS and first in _SCHEMAS):
            pass
        elif action == sqlite3.SQLITE_FUNCTION:
            return f"the function {second}" if second.lower() in _REFUSED_FUNCTIONS else ""
        elif action == sqlite3.SQLITE_PRAGMA and first.lower() not in _PRAGMAS:
            return f"PRAGMA {first}"
        elif action == sqlite3.SQLITE_PRAGMA and not (second and first.lower() == _DEFER):
            self._reads.add(ANYTHING)
        elif not self._may_write:
            return "a statement that writes"
        elif action in _ROWS or action == sqlite3.SQLITE_PRAGMA:
            self._writes.add(first)
        elif action in _DEFINING or (action == sqlite3.SQLITE_CREATE_VTABLE and second.lower() in _MODULES):
            # A statement that reads a view may not be noted to read it, but the tables that the view reads.
            self._writes.add(ANYTHING)
        else:
            return _NAMES.get(action, f"the module {second}" if second else "this")
        return ""
