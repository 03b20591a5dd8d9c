"""One open local SQLite file: runs the author's statements, inside of savepoints of plait."""

import re
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from enum import Enum
from math import inf, isnan
from threading import Event
from time import thread_time
from typing import Any, Final
from urllib.parse import quote

from plait.errors import SqlError
from plait.parts.sql.authorizer import ANYTHING, Access, Authorizer
from plait.parts.sql.wal import PAGE_SIZE

__all__ = ["Database", "Row", "make_error", "read_arguments"]

Row = dict[str, Any]

# The statements of plait. Compiled statements are kept by their text, so the author's statements must be different.
_SAVE: Final = "SAVEPOINT plait"
_RELEASE: Final = "RELEASE plait"
_GO_BACK: Final = "ROLLBACK TO plait"
_COMMIT: Final = "COMMIT"
_ROLLBACK: Final = "ROLLBACK"
# The rows of this statement have no columns, and sqlite3 takes only the first row: it gives back one page.
_SHRINK: Final = "PRAGMA incremental_vacuum(1)"
_CHECKPOINT: Final = "PRAGMA wal_checkpoint(TRUNCATE)"
_VIRTUAL: Final = "SELECT lower(name) FROM sqlite_master WHERE type = 'table' AND rootpage = 0"
_OWN: Final = frozenset({_SAVE, _RELEASE, _GO_BACK, _COMMIT, _ROLLBACK, _SHRINK, _CHECKPOINT, _VIRTUAL})

_PRAGMAS: Final = (
    "synchronous=OFF",  # This is the first one, because the others open the file.
    f"page_size={PAGE_SIZE}",
    "auto_vacuum=INCREMENTAL",
    "journal_mode=WAL",
    "wal_autocheckpoint=0",
    "cache_spill=OFF",
    "foreign_keys=ON",
)
_READER_PRAGMAS: Final = ("cache_size=-1024", "temp_store=MEMORY")

_NEVER: Final = Event()
# The compiled statements that are kept.
_KEPT: Final = 128
# Maximum bytes of a value, and of a statement.
_MOST_BYTES: Final = 1024 * 1024
# Bytes of a pattern of LIKE and GLOB, which cannot be interrupted: their time is its length times that of the text.
_MOST_PATTERN: Final = 256
# The steps of SQLite's machine between two checks of the clock, well below a millisecond.
_STEPS: Final = 1_000
# Seconds of processor time that a statement has after a check has found it late: Python's collection of garbage may
# have been the cause.
_GRACE: Final = 0.005
# The access of a statement about which nothing is known. Such a statement may write, and its writes must be stored.
_UNKNOWN: Final = Access(frozenset(), frozenset({"?"}))
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
# Replacements for arguments that are not stored as they are.
_CALLS: Final[tuple[tuple[Any, str], ...]] = (
    (date | time, "value.isoformat()"),
    (timedelta, "value.total_seconds()"),
    (Enum, "value.value"),
    (Mapping | list | tuple | set | frozenset, "json.dumps(value)"),
    (float, "None"),  # SQLite stores NaN as null.
    (str, "a text without halves of surrogate pairs"),
    (object, "str(value)"),
)
_FAILURES: Final = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError)


class Database:
    """A connection to a local file, for one OS thread at a time; a reader cannot write.

    The author's statements run in savepoints: the outermost one is SQLite's transaction.
    """

    def __init__(self, path: str, *, most_bytes: int = 0, is_reader: bool = False, stop: Event = _NEVER) -> None:
        """Open a file, which exists, of at most some bytes. Raises sqlite3.Error.

        While `stop` is set, statements are interrupted.
        """
        uri = f"file:{quote(path)}?mode={'ro' if is_reader else 'rw'}"
        self._db = sqlite3.connect(
            uri, uri=True, timeout=0, isolation_level=None, cached_statements=_KEPT, check_same_thread=False
        )
        self._most_bytes = most_bytes
        self._advice = "`Sql(read_timeout=…)` allows more" if is_reader else "use `read`, which runs in an OS thread"
        most_pages = f"max_page_count={min(max(most_bytes // PAGE_SIZE, 1), 2**30)}"
        for pragma in _READER_PRAGMAS if is_reader else (*_PRAGMAS, *_READER_PRAGMAS, most_pages):
            self._db.execute(f"PRAGMA {pragma}").fetchall()
        self._db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, _MOST_PATTERN)
        # When the running statement is interrupted, in seconds of processor time of this OS thread.
        self._deadline, self._is_late = inf, False
        self._db.set_progress_handler(lambda: stop.is_set() or self._is_over(), _STEPS)
        self._authorizer = Authorizer(may_write=not is_reader)
        self._db.set_authorizer(self._authorizer)
        # The number of open savepoints; 0 outside of a transaction.
        self._depth = 0
        # The accesses of statements that have succeeded, and of others. SQLite asks the authorizer only when it
        # compiles a statement, so these include all that sqlite3 keeps compiled; it keeps none that cannot be compiled.
        self._accesses: OrderedDict[str, Access] = OrderedDict()
        self._failed: OrderedDict[str, Access] = OrderedDict()

    def run(self, statement: str, args: Sequence[object], *, seconds: float = inf) -> tuple[list[Row], Access]:
        """Return the rows of a statement of the author, and its access. Raises SqlError.

        An error may have ended the transaction: see `is_in_transaction`.
        """
        authorizer, args = self._authorizer, read_arguments(args, statement)
        authorizer.begin()
        if statement in _OWN:
            raise make_error("transactions are those of the thread: `with self.transaction():`", statement)
        self._deadline, self._is_late, authorizer.is_off = thread_time() + seconds, False, False
        cursor, is_done = self._db.cursor(), False
        try:
            cursor.execute(statement, args)
            names = [each[0] for each in cursor.description or ()]
            if len(set(names)) < len(names):
                raise make_error("two columns have the same name: rename one with AS", statement)
            rows = [dict(zip(names, row, strict=False)) for row in cursor]
            is_done = True
        except _FAILURES as error:
            raise self._explain(error, statement, seconds) from None
        finally:
            self._deadline, authorizer.is_off = inf, True
            cursor.close()
            access = self._note_access(statement, is_done=is_done)
        return rows, access

    def is_known_to_read(self, statement: str) -> bool:
        """Whether a statement has succeeded before, and does not write."""
        return not self._accesses.get(statement, _UNKNOWN).writes

    @property
    def is_in_transaction(self) -> bool:
        """Whether a savepoint is open."""
        return self._db.in_transaction

    def save(self) -> None:
        """Open a savepoint."""
        self._depth = self._depth + 1 if self._db.in_transaction else 1
        self._db.execute(_SAVE)

    def go_back(self) -> None:
        """Undo the changes since the last savepoint, and close it."""
        if self._db.in_transaction and self._depth > 1:
            self._db.execute(_GO_BACK)
            self.release()
        else:  # Releasing the outermost savepoint would be a commit.
            self.roll_back()

    def release(self) -> None:
        """Close the last savepoint, and keep the changes."""
        self._db.execute(_RELEASE)
        self._depth -= 1

    def commit(self, *, shrinks_by: int = 0) -> None:
        """Give some free pages back, and commit all. Raises SqlError."""
        self._authorizer.begin()
        try:
            for _ in range(shrinks_by):
                self._db.execute(_SHRINK)
            self._db.execute(_COMMIT)
        except sqlite3.Error as error:
            raise self._explain(error, _COMMIT, inf) from None

    def roll_back(self) -> None:
        """Undo all."""
        if self._db.in_transaction:
            self._db.execute(_ROLLBACK)

    def set_version(self, version: int) -> None:
        """Set the version of the tables, in the open transaction."""
        self._db.execute(f"PRAGMA user_version={version}")

    def ignore_foreign_keys(self) -> None:
        """Do not check foreign keys, and do not change the rows that refer to others, outside of transactions."""
        self._db.execute("PRAGMA foreign_keys=OFF")

    def checkpoint(self) -> None:
        """Empty the log, unless a reader needs it or the disk is full."""
        # The log still has all data that is not in the file, and the next commit tries it again.
        with suppress(sqlite3.Error):
            self._db.execute(_CHECKPOINT).fetchall()

    def close(self) -> None:
        """Close the file. Changes that are not committed are undone."""
        self._db.close()

    # Inside

    def _is_over(self) -> bool:
        """Whether the running statement is interrupted."""
        if (now := thread_time()) <= self._deadline:
            return False
        was_late, self._is_late, self._deadline = self._is_late, True, now + _GRACE
        return was_late

    def _note_access(self, statement: str, *, is_done: bool) -> Access:
        kept = self._accesses if is_done or statement in self._accesses else self._failed
        known = self._accesses.pop(statement, None) or self._failed.pop(statement, None)
        found = self._authorizer.find_access()
        if found is not None and is_done and found.reads and not found.writes and self._reads_virtual(found):
            found = found._replace(reads=found.reads | {ANYTHING})
        access = found
        if known is not None:
            access = known if found is None else Access(known.reads | found.reads, known.writes | found.writes)
        if access is None:
            return _UNKNOWN
        kept[statement] = access
        if len(kept) > _KEPT:
            kept.popitem(last=False)
        return access

    def _reads_virtual(self, access: Access) -> bool:
        """Whether a statement reads a virtual table, or one of those that such a table is made of.

        A virtual table keeps the statements compiled that it runs on other tables, so these are noted only once.
        """
        try:
            found = [name for (name,) in self._db.execute(_VIRTUAL)]
        except sqlite3.Error:
            return True
        names = [name.lower() for name in access.reads]
        return any(name == virtual or name.startswith(f"{virtual}_") for virtual in found for name in names)

    def _explain(self, error: Exception, statement: str, seconds: float) -> SqlError:
        reason, limit = str(error), None
        code = getattr(error, "sqlite_errorcode", None)
        if self._authorizer.refusal:
            reason = f"{self._authorizer.refusal} is not allowed"
        elif code == sqlite3.SQLITE_INTERRUPT:
            reason = f"it was interrupted after {1e3 * seconds:g} ms of processor time: {self._advice}"
        elif code == sqlite3.SQLITE_FULL:
            reason, limit = f"the tables would have more than {self._most_bytes} bytes, or the disk is full", "sql"
        return make_error(reason, statement, limit=limit)


def read_arguments(args: Sequence[object], statement: str) -> list[object]:
    """Return arguments as SQLite stores them, and as they travel to another process. Raises SqlError."""
    return [_read_argument(f"argument {place}", each, statement) for place, each in enumerate(args, 1)]


def _read_argument(what: str, value: object, statement: str) -> object:
    match value:
        case None:
            return None
        case str() if value.isascii() or not _HALF_PAIR.search(value):
            return str.__str__(value)
        case int() if -(2**63) <= value < 2**63:
            return int(value)
        case float() if not isnan(value):
            return float(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value)
    call = next(call for type_, call in _CALLS if isinstance(value, type_))
    raise make_error(f"{what} is a {type(value).__name__} that cannot be stored as it is: pass {call}", statement)


def make_error(reason: str, statement: str, *, limit: str | None = None) -> SqlError:
    """Return the error of a statement. Its reason is for the author only, as it may quote tables and statements."""
    detail = f"{reason}: {statement}"
    error = SqlError("a statement on the thread's tables failed", detail=detail, limit=limit)
    error.add_note(detail)
    return error
