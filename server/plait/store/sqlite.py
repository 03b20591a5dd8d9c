"""Threads in one SQLite file: one writer with group commit, and a reader beside it.

Every write that piles up while a transaction is on its way shares the next one, which goes over to the writer's OS
thread in one hop. A transaction that fails is tried again a thread at a time, so that only the guilty one is refused.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Concatenate, Final, Literal, NamedTuple, ParamSpec, Self, TypeVar

import aiosqlite

from plait.errors import CorruptThread, Fenced, StoreError
from plait.store.protocol import ChangeRow, Stored, ThreadKey, ThreadRow, Write

try:
    import fcntl
except ImportError:  # Windows: nothing but SQLite's own locks keeps two servers apart there.
    fcntl = None  # type: ignore[assignment]

__all__ = ["SqliteStore", "Synchronous"]

Synchronous = Literal["FULL", "NORMAL"]

log = logging.getLogger("plait.store")

P = ParamSpec("P")
T = TypeVar("T")

_APPLICATION_ID: Final = 0x706C6169  # "plai"
_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE threads (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, epoch TEXT NOT NULL, UNIQUE (kind, name)
) STRICT;
CREATE TABLE snapshots (thread INTEGER PRIMARY KEY, version INTEGER NOT NULL, state BLOB NOT NULL) STRICT;
CREATE TABLE changes (
    thread INTEGER NOT NULL, version INTEGER NOT NULL, ops BLOB NOT NULL, source TEXT NOT NULL, at INTEGER NOT NULL,
    PRIMARY KEY (thread, version)
) STRICT, WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_SCHEMA_VERSION};
COMMIT;
"""
_INSERT_CHANGE: Final = "INSERT INTO changes (thread, version, ops, source, at) VALUES (?, ?, ?, ?, ?)"
_HEAD: Final = """
SELECT t.id, t.epoch, max(
    coalesce((SELECT version FROM snapshots WHERE thread = t.id), 0),
    coalesce((SELECT max(version) FROM changes WHERE thread = t.id), 0))
FROM threads t WHERE t.kind = ? AND t.name = ?
"""


class _Connection(aiosqlite.Connection):
    """An aiosqlite connection that takes a whole function over to its OS thread in one hop."""

    async def run(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.post(function, *args, **kwargs)

    def post(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Begin to run a function, without waiting for it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(function, self._conn, *args, **kwargs)))
        return future


class SqliteStore:
    """Keeps threads in the SQLite file `path`.

    With `synchronous="FULL"` what was acknowledged survives a loss of power; with `"NORMAL"` it survives the end of
    the process, but not of the machine. `readonly=True` is for looking at a file that a server may have open.
    """

    def __init__(self, path: str | Path, *, synchronous: Synchronous = "FULL", readonly: bool = False) -> None:
        self.path = Path(path)
        self._synchronous = synchronous
        self._readonly = readonly
        self._pending: list[_Pending] = []
        # Set while no transaction is on its way.
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: IO[bytes] | None = None
        self._reader: _Connection | None = None
        self._writer: _Connection | None = None
        self._heads: _Heads = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            if not self._readonly:
                self._lock = _lock(self.path)
                self._writer = await _connect(self.path, readonly=False)
                await self._writer.run(_prepare, self._synchronous)
            self._reader = await _connect(self.path, readonly=True)
            await self._reader.run(_check)
        except (sqlite3.Error, OSError) as error:
            await self._close()
            raise StoreError(f"cannot open the store {self.path}: {error}") from error
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def load(self, key: ThreadKey) -> Stored | None:
        if self._reader is None:
            raise StoreError("the store is closed")
        try:
            return await self._reader.run(_load, key)
        except sqlite3.Error as error:
            raise StoreError(f"{key} cannot be read: {error}") from error

    def submit(self, write: Write) -> asyncio.Future[None]:
        assert self._loop is not None, "the store has not been opened"
        future: asyncio.Future[None] = self._loop.create_future()
        if self._writer is None:
            future.set_exception(StoreError("the store is closed"))
            return future
        self._pending.append((write, future))
        if self._idle.is_set():
            self._idle.clear()
            # What else is submitted in this iteration of the loop shares the transaction.
            self._loop.call_soon(self._flush)
        return future

    async def threads(self, *, after: ThreadKey | None = None, limit: int = 1000) -> list[ThreadRow]:
        if self._reader is None:
            raise StoreError("the store is closed")
        try:
            return await self._reader.run(_threads, after or ThreadKey("", ""), limit)
        except sqlite3.Error as error:
            raise StoreError(f"the threads cannot be listed: {error}") from error

    async def _close(self) -> None:
        await self._idle.wait()
        # The last to close takes the log into the file, which a reader may not do.
        for connection in (self._reader, self._writer):
            if connection is not None:
                await connection.close()
        self._writer = self._reader = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _flush(self) -> None:
        """Hand what is pending to the writer; when that is done, what has become pending meanwhile."""
        assert self._writer is not None
        batch, self._pending = self._pending, []
        work = self._writer.post(_commit, self._heads, [write for write, _ in batch])
        work.add_done_callback(partial(self._written, batch))

    def _written(self, batch: list["_Pending"], work: asyncio.Future[list[StoreError | None]]) -> None:
        if error := work.exception():
            log.error("the store's writer failed", exc_info=error)
            for _, future in batch:
                _settle(future, StoreError("the store's writer failed"))
        else:
            for (_, future), outcome in zip(batch, work.result(), strict=True):
                _settle(future, outcome)
        if self._pending:
            self._flush()
        else:
            self._idle.set()


_Pending = tuple[Write, asyncio.Future[None]]


def _settle(future: asyncio.Future[None], error: StoreError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


# What runs in the connections' OS threads


def _lock(path: Path) -> IO[bytes] | None:
    """Take the right to write to `path`, which the operating system gives back when the process ends."""
    if fcntl is None:
        return None
    file = open(path.with_name(path.name + ".lock"), "ab")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreError(
            f"the store {path} is in use by another server: stop that one, or give this one a file of its own"
        ) from None
    return file


async def _connect(path: Path, *, readonly: bool) -> _Connection:
    def connector() -> sqlite3.Connection:
        uri = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, check_same_thread=False)

    # What prevents it is found here, where there is no OS thread yet that would have to be ended.
    connector().close()
    connection = _Connection(connector, iter_chunk_size=64)
    await connection
    return connection


def _prepare(db: sqlite3.Connection, synchronous: str) -> None:
    marks = db.execute("PRAGMA application_id").fetchone(), db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if marks != ((0,), (0,)):
        _check(db)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA journal_size_limit = 67108864")
    if marks == ((0,), (0,)):
        db.executescript(_SCHEMA)


def _check(db: sqlite3.Connection) -> None:
    if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION_ID,):
        raise StoreError("the store's file is an SQLite database, but not one of plait's")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > _SCHEMA_VERSION:
        raise StoreError(f"the store was written by a newer plait (format {version}, this one knows {_SCHEMA_VERSION})")


def _load(db: sqlite3.Connection, key: ThreadKey) -> Stored | None:
    db.execute("BEGIN")
    try:
        head = db.execute(_HEAD, key).fetchone()
        if head is None:
            return None
        thread, epoch, version = head
        snapshot = db.execute("SELECT version, state FROM snapshots WHERE thread = ?", (thread,)).fetchone()
        since, state = snapshot or (0, None)
        rows = db.execute(
            "SELECT version, ops, source, at FROM changes WHERE thread = ? AND version > ? ORDER BY version",
            (thread, since),
        )
        changes = [ChangeRow(*row) for row in rows]
    finally:
        db.execute("COMMIT")
    if snapshot is None and not changes:
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are there")
    if [row.version for row in changes] != list(range(since + 1, version + 1)):
        raise CorruptThread(f"{key} cannot be read: changes are missing between versions {since} and {version}")
    return Stored(epoch, version, state, changes)


def _threads(db: sqlite3.Connection, after: ThreadKey, limit: int) -> list[ThreadRow]:
    keys = db.execute(
        "SELECT kind, name FROM threads WHERE (kind, name) > (?, ?) ORDER BY kind, name LIMIT ?",
        (*after, limit),
    )
    return [ThreadRow(ThreadKey(*key), db.execute(_HEAD, key).fetchone()[2]) for key in keys.fetchall()]


class _Head(NamedTuple):
    """What the writer knows of a stored thread: its row id, epoch and version."""

    thread: int
    epoch: str
    version: int


# Nobody but the writer changes the file, so that what it wrote last needs no looking up.
_Heads = dict[ThreadKey, _Head]

_HEADS_KEPT: Final = 10_000


def _commit(db: sqlite3.Connection, heads: _Heads, batch: Iterable[Write]) -> list[StoreError | None]:
    """Write a batch in one transaction and return the outcome of each write."""
    groups: dict[ThreadKey, list[tuple[int, Write]]] = {}
    for index, write in enumerate(batch):
        groups.setdefault(write.key, []).append((index, write))
    outcomes: dict[int, StoreError | None] = {}
    if len(heads) > _HEADS_KEPT:
        heads.clear()
    _transact(db, heads, list(groups.values()), outcomes)
    return [outcomes[index] for index in range(len(outcomes))]


def _transact(
    db: sqlite3.Connection,
    heads: _Heads,
    groups: Sequence[list[tuple[int, Write]]],
    outcomes: dict[int, StoreError | None],
) -> None:
    try:
        if not _write_alone(db, heads, groups, outcomes):
            db.execute("BEGIN IMMEDIATE")
            _insert(db, [each for group in groups for each in _accept(db, heads, group, outcomes)])
            db.execute("COMMIT")
    except (sqlite3.Error, OverflowError, ValueError) as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        for group in groups:
            heads.pop(group[0][1].key, None)
            if len(groups) > 1:
                _transact(db, heads, [group], outcomes)
            else:
                outcomes |= {index: StoreError(f"{write.key} could not be written: {error}") for index, write in group}


def _write_alone(
    db: sqlite3.Connection,
    heads: _Heads,
    groups: Sequence[list[tuple[int, Write]]],
    outcomes: dict[int, StoreError | None],
) -> bool:
    """Write a batch that is one change of a known thread, as one statement: a transaction of its own."""
    if len(groups) != 1 or len(groups[0]) != 1:
        return False
    index, write = groups[0][0]
    row, head = write.change, heads.get(write.key)
    if row is None or head is None or write.snapshot is not None or write.prune is not None:
        return False
    if (write.epoch, write.after) != (head.epoch, head.version):
        return False
    db.execute(_INSERT_CHANGE, (head.thread, row.version, row.ops, row.source, row.at))
    heads[write.key] = _Head(head.thread, head.epoch, write.version)
    outcomes[index] = None
    return True


def _accept(
    db: sqlite3.Connection, heads: _Heads, group: Iterable[tuple[int, Write]], outcomes: dict[int, StoreError | None]
) -> list[tuple[int, Write]]:
    """Return those writes of one thread that follow what is stored, each with the thread's row id."""
    accepted: list[tuple[int, Write]] = []
    for index, write in group:
        head = heads.get(write.key)
        if head is None and (row := db.execute(_HEAD, write.key).fetchone()):
            head = _Head(*row)
        if (write.after, write.epoch) != ((head.version, head.epoch) if head else (None, write.epoch)):
            outcomes[index] = Fenced(f"{write.key} was written by somebody else")
            continue
        if head is None:
            added = db.execute("INSERT INTO threads (kind, name, epoch) VALUES (?, ?, ?)", (*write.key, write.epoch))
            assert added.lastrowid is not None
            head = _Head(added.lastrowid, write.epoch, write.version)
        heads[write.key] = _Head(head.thread, head.epoch, write.version)
        outcomes[index] = None
        accepted.append((head.thread, write))
    return accepted


def _insert(db: sqlite3.Connection, writes: Sequence[tuple[int, Write]]) -> None:
    changes: list[tuple[Any, ...]] = []
    snapshots: dict[int, tuple[int, int, bytes]] = {}
    prunes: dict[int, int] = {}
    for thread, write in writes:
        if (row := write.change) is not None:
            changes.append((thread, row.version, row.ops, row.source, row.at))
        if write.snapshot is not None:
            snapshots[thread] = (thread, write.version, write.snapshot)
        if write.prune is not None:
            prunes[thread] = write.prune
    db.executemany(_INSERT_CHANGE, changes)
    if snapshots:
        db.executemany("INSERT OR REPLACE INTO snapshots (thread, version, state) VALUES (?, ?, ?)", snapshots.values())
    if prunes:
        db.executemany("DELETE FROM changes WHERE thread = ? AND version <= ?", prunes.items())
