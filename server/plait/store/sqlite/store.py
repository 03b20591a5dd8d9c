"""A store in one SQLite file: one writer with group commit, and one reader."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar

import aiosqlite

from plait.errors import StoreError
from plait.store.outcomes import Outcome, describe
from plait.store.rows.engine import Change, Reader, ReadPlan
from plait.store.rows.running import run_reads
from plait.store.rows.store import RowStore
from plait.store.sqlite import schema, table
from plait.store.sqlite.failures import explain, is_trouble
from plait.store.sqlite.file_identity import check_log
from plait.store.sqlite.file_place import ONLY_FILE, FilePlace
from plait.store.sqlite.file_writer import FileWriter
from plait.store.sqlite.files import check_creation
from plait.store.sqlite.lock import StoreLock, take_lock
from plait.store.thread_rows import ThreadKey

__all__ = ["SqliteRows", "SqliteStore", "Synchronous"]

Synchronous = Literal["FULL", "NORMAL"]

P = ParamSpec("P")
T = TypeVar("T")

# Seconds between two stamps of a file that is written.
_STAMP_AFTER: Final = 1.0


class SqliteStore(RowStore):
    """Stores threads in the SQLite file `path`.

    With `synchronous="FULL"`, acknowledged changes survive a power failure; with `"NORMAL"` they survive a crash of the
    process, but not of the machine. `readonly=True` reads a file that a server may have open.
    A write fails if another process locks the file for longer than `lock_timeout` seconds. Opening the store waits
    `patience` seconds for another server to close it. `place` is that of one of several files.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: Synchronous = "FULL",
        readonly: bool = False,
        lock_timeout: float = 5.0,
        place: FilePlace = ONLY_FILE,
        patience: float = 0.0,
    ) -> None:
        self.path = Path(path)
        self.place = place
        self._lock_timeout = lock_timeout
        self._file = SqliteRows(
            self.path,
            synchronous=synchronous,
            readonly=readonly,
            lock_timeout=lock_timeout,
            place=place,
            patience=patience,
        )
        super().__init__(self._file, readonly=readonly)

    def reader(self) -> "SqliteStore":
        """Return a read-only store of the same file, which a server may have open."""
        return SqliteStore(self.path, readonly=True, lock_timeout=self._lock_timeout, place=self.place)

    async def claim(self, key: ThreadKey) -> int:
        fence = await super().claim(key)
        if self._file.is_in_doubt:
            # The thread may have a write in doubt: overwrite it before the next owner loads the thread.
            try:
                await self._probe(writes=True)
            except BaseException:
                self.release(key, fence)
                raise
        return fence


class SqliteRows:
    """Keeps rows in the file `path`. The options are those of `SqliteStore`."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Synchronous,
        readonly: bool,
        lock_timeout: float,
        place: FilePlace,
        patience: float,
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._readonly = readonly
        self._lock_timeout = lock_timeout
        self._place = place
        self._patience = patience
        self._lock: StoreLock | None = None
        self._reader: _Connection | None = None
        self._writer: _Connection | None = None
        # Runs in the writer's OS thread.
        self._work: FileWriter | None = None
        self._stamping: asyncio.TimerHandle | None = None

    @property
    def title(self) -> str:
        return f"the store {self._path}"

    @property
    def durability(self) -> str:
        if self._synchronous == "FULL":
            return "changes survive a crash of the process and of the machine (synchronous=FULL)"
        return "changes survive a crash of the process, but not of the machine (synchronous=NORMAL)"

    @property
    def is_in_doubt(self) -> bool:
        """Whether the log may contain a write that readers do not see, but that a restart would find."""
        return self._work is not None and self._work.is_in_doubt

    async def open(self) -> bool:
        if not self._readonly:
            self._lock = await take_lock(self._path, self._patience)
            check_creation(self._path, self._place)
        check_log(self._path)
        has_lost = False
        if self._lock is not None:
            self._work = FileWriter(self._path, self._place, self._lock)
            self._writer = await _connect(self._path, readonly=False, lock_timeout=self._lock_timeout)
            has_lost = await self._writer.post(self._work.open, self._synchronous)
        self._reader = await _connect(self._path, readonly=True, lock_timeout=self._lock_timeout)
        await self._reader.post(table.open_reader)
        await self._reader.post(schema.check_place, self._place)
        if self._writer is not None and self._work is not None:
            await self._writer.post(self._work.begin)
        return has_lost

    async def close(self) -> None:
        if self._stamping is not None:
            self._stamping.cancel()
            self._stamping = None
        keeps_log = True
        if self._writer is not None and self._work is not None:
            with suppress(sqlite3.Error):  # The stamp only serves to detect a loss.
                await self._writer.post(self._work.stamp)
            keeps_log = await self._writer.post(self._work.end)
        # The last connection to close checkpoints the log, which a read-only one cannot do: close the writer last,
        # unless the file was replaced.
        for connection in (self._reader, self._writer) if keeps_log else (self._writer, self._reader):
            if connection is not None:
                await connection.close()
        if self._lock is not None:
            if self._work is not None:
                with suppress(OSError):  # The next start detects that the log is another file's.
                    self._work.leave_log()
            self._lock.close()
            self._lock = None
        self._writer = self._reader = self._work = None

    async def read(self, plan: ReadPlan[T], /) -> T:
        return await _run(self._reader, table.read, partial(run_reads, plan))

    @asynccontextmanager
    async def view(self) -> AsyncIterator[Reader]:
        if self._reader is None:
            raise StoreError("the store is closed")
        # One transaction of a connection of its own: other reads see later writes.
        try:
            connection = await _connect(self._path, readonly=True, lock_timeout=self._lock_timeout)
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error
        try:
            await _run(connection, table.begin_view)

            async def read(plan: ReadPlan[T], /) -> T:
                return await _run(connection, table.read, partial(run_reads, plan))

            yield read
        finally:
            await connection.close()

    def write(self, changes: Sequence[Change], /) -> asyncio.Future[Sequence[Outcome]]:
        if self._writer is None or self._work is None:
            raise StoreError("the store is closed")
        if self._stamping is None:
            self._stamping = asyncio.get_running_loop().call_later(_STAMP_AFTER, self._stamp)
        return self._writer.post(self._work.write, changes)

    async def probe(self, *, writes: bool) -> None:
        assert self._work is not None
        await _run(self._writer, self._work.check_files)
        if writes:
            try:
                await _run(self._writer, self._work.try_to_write)
            except StoreError as error:
                raise StoreError(f"the store cannot be written: {error}") from error

    def explain(self, error: BaseException) -> str | None:
        if isinstance(error, StoreError) and isinstance(error.__cause__, sqlite3.Error):
            error = error.__cause__
        if isinstance(error, StoreError | sqlite3.Error | OSError | UnicodeDecodeError):
            return explain(error, self._path)
        return None

    def is_trouble(self, cause: BaseException) -> bool:
        return is_trouble(cause)

    # Inside

    def _stamp(self) -> None:
        self._stamping = None
        if self._writer is not None and self._work is not None:
            stamping = self._writer.post(self._work.stamp)
            # After a failure, the next write tries again.
            stamping.add_done_callback(lambda done: None if done.cancelled() else done.exception())


class _Connection(aiosqlite.Connection):
    """An aiosqlite connection that runs a whole function in its OS thread."""

    def post(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a function in the OS thread, and return a future of its result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(function, self._conn, *args, **kwargs)))
        return future


async def _connect(path: Path, *, readonly: bool, lock_timeout: float) -> _Connection:
    """Open a file for reading or writing."""

    def connector() -> sqlite3.Connection:
        uri = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=lock_timeout, check_same_thread=False)

    # Connect once without aiosqlite: an error here leaves no OS thread to stop.
    connector().close()
    connection = _Connection(connector, iter_chunk_size=64)
    await connection
    return connection


async def _run(
    connection: _Connection | None,
    function: Callable[Concatenate[sqlite3.Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    if connection is None:
        raise StoreError("the store is closed")
    try:
        return await connection.post(function, *args, **kwargs)
    except UnicodeEncodeError as error:
        raise StoreError(describe(error)) from error
    except sqlite3.Error as error:
        raise StoreError(str(error)) from error
