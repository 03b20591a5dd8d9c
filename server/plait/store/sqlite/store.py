"""A store in one SQLite file: one writer with group commit, and one reader.

`batches.py` decides which writes share a transaction. A transaction is one call in the writer's OS thread. If it fails,
it is repeated for one thread at a time, so that only the writes of the thread that caused the failure are refused.
"""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar

import aiosqlite

from plait.errors import CorruptThread, StoreError
from plait.store.base import EngineStore
from plait.store.batches import Batches, WriteGroup
from plait.store.outcomes import Outcome
from plait.store.protocol import (
    ALL_THREADS,
    DueThread,
    StoredThread,
    ThreadHeader,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    ThreadView,
    Write,
)
from plait.store.sqlite import listing, reads, schema
from plait.store.sqlite.failures import explain, is_trouble
from plait.store.sqlite.file_identity import check_log
from plait.store.sqlite.file_place import ONLY_FILE, FilePlace
from plait.store.sqlite.file_writer import FileWriter
from plait.store.sqlite.files import check_creation
from plait.store.sqlite.lock import StoreInUse, StoreLock
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange
from plait.store.whole import StoredSchema

__all__ = ["SqliteStore", "Synchronous"]

Synchronous = Literal["FULL", "NORMAL"]

log = logging.getLogger("plait.store")

# Seconds after a change until the head in the row of its thread is updated.
_SAVE_HEADS_AFTER: Final = 1.0
# Seconds after which a removal that failed is tried again.
_REMOVE_AFTER: Final = 60.0
# Seconds between two attempts to take the lock of a file, and seconds after which the wait is logged.
_ASK_EVERY: Final = 0.02
_LONG_WAIT: Final = 1.0
# The message of sqlite3 for text that is not UTF-8.
_UNDECODED: Final = "Could not decode to UTF-8"

P = ParamSpec("P")
T = TypeVar("T")


class _Connection(aiosqlite.Connection):
    """An aiosqlite connection that runs a whole function in its OS thread."""

    def post(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Run a function in the OS thread, and return a future of its result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(function, self._conn, *args, **kwargs)))
        return future


class SqliteStore(EngineStore):
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
        self._patience = patience
        self._synchronous = synchronous
        self._readonly = readonly
        self._lock_timeout = lock_timeout
        super().__init__(Batches(self._write, is_trouble=is_trouble), title=f"the store {path}")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock: StoreLock | None = None
        self._reader: _Connection | None = None
        self._writer: _Connection | None = None
        # Runs in the writer's OS thread.
        self._work: FileWriter | None = None
        self._saving_heads: asyncio.TimerHandle | None = None
        # Removes the rows of deleted threads.
        self._removing: asyncio.Task[None] | None = None

    @property
    def durability(self) -> str:
        if self._synchronous == "FULL":
            return "changes survive a crash of the process and of the machine (synchronous=FULL)"
        return "changes survive a crash of the process, but not of the machine (synchronous=NORMAL)"

    def reader(self) -> "SqliteStore":
        """Return a read-only store of the same file, which a server may have open."""
        return SqliteStore(self.path, readonly=True, lock_timeout=self._lock_timeout, place=self.place)

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._readonly:
            self._lock = await _take_lock(self.path, self._patience)
            check_creation(self.path, self.place)
        check_log(self.path)
        if self._lock is not None:
            self._work = FileWriter(self.path, self.place, self._lock)
            self._writer = await _connect(self.path, readonly=False, lock_timeout=self._lock_timeout)
            await self._writer.post(self._work.open, self._synchronous)
        self._reader = await _connect(self.path, readonly=True, lock_timeout=self._lock_timeout)
        await self._reader.post(schema.check)
        await self._reader.post(schema.check_place, self.place)
        if self._writer is not None and self._work is not None:
            await self._writer.post(self._work.begin)
            self._batches.open()
            self._begin_removal()

    def _explain(self, error: BaseException) -> str | None:
        if isinstance(error, StoreError | sqlite3.Error | OSError | UnicodeDecodeError):
            return explain(error, self.path)
        return None

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        return await self._read(key, reads.load, key, version, records)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        return await self._read(key, reads.find, key)

    async def _changes(
        self, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
    ) -> list[ChangeRow]:
        return await self._read(key, reads.load_changes, key, version, limit, size, is_reverse=is_reverse)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        return await self._read(key, reads.load_client, key, client)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        return await self._read(key, reads.load_record, key, part, name)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        return await self._read(key, reads.load_records, key, wanted)

    async def record_of_each(self, keys: Sequence[ThreadKey], part: str, name: str) -> list[bytes | None]:
        return await self._read("records", reads.load_record_of_each, keys, part, name)

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        if self._reader is None:
            raise StoreError("the store is closed")
        # One transaction of a connection of its own: other reads of this store see later writes.
        async with self.reader() as reader:
            await reader._read(key, _begin)
            stored = await reader.load(key)

            yield None if stored is None else ThreadView(stored, partial(reader._list_records, key))

    async def claim(self, key: ThreadKey) -> int:
        fence = await self._batches.claim(key)
        if self._work is not None and self._work.is_in_doubt:
            # The thread may have a write in doubt: overwrite it before the next owner loads the thread.
            try:
                await self._try_to_write()
            except BaseException:
                self._batches.release(key, fence)
                raise
        return fence

    async def schema(self, kind: str, hash: str) -> bytes | None:
        return await self._read("a schema", reads.load_schema, kind, hash)

    async def schemas(self) -> list[StoredSchema]:
        return await self._read("the schemas", reads.load_schemas)

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        if self._writer is None or self._work is None:
            raise StoreError("the store is closed")
        try:
            await self._writer.post(self._work.write, reads.save_schema, kind, hash, schema)
        except sqlite3.Error as error:
            raise StoreError(f"a schema could not be written: {error}") from error

    async def _probe(self, *, writes: bool) -> None:
        assert self._work is not None
        assert self._writer is not None
        await self._writer.post(self._work.check_files)
        if writes:
            await self._try_to_write()

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        if self._writer is not None and self._work is not None and self._work.has_stale:
            with suppress(sqlite3.Error):  # The times of the last changes may be a second old.
                await self._writer.post(self._work.save_heads)
        return await self._read("the list of threads", listing.load_threads, query)

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        return await self._read("the list of due threads", listing.load_due, until, after, limit)

    async def _list_snapshots(self, key: ThreadKey) -> list[int]:
        return await self._read(key, reads.list_snapshots, key)

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        return await self._read(key, reads.load_clients, key, after, limit)

    async def _list_records(self, key: ThreadKey, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        return await self._read(key, reads.load_page, key, after, limit, size)

    async def _read(
        self, what: object, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._reader is None:
            raise StoreError("the store is closed")
        try:
            return await self._reader.post(function, *args, **kwargs)
        except UnicodeEncodeError as error:
            raise StoreError(f"{what} cannot be read: SQLite has no text for half of a surrogate pair") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if _UNDECODED in str(error):
                raise CorruptThread(f"{what} cannot be read: its text is not valid UTF-8") from error
            raise StoreError(f"{what} cannot be read: {error}") from error

    async def _try_to_write(self) -> None:
        assert self._writer is not None
        assert self._work is not None
        try:
            await self._writer.post(self._work.try_to_write)
        except sqlite3.Error as error:
            raise StoreError(f"the store cannot be written: {error}") from error

    async def _close(self) -> None:
        if self._saving_heads is not None:
            self._saving_heads.cancel()
            self._saving_heads = None
        if self._removing is not None:
            self._removing.cancel()
            await asyncio.wait([self._removing])
            self._removing = None
        keeps_log = True
        if self._writer is not None and self._work is not None:
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

    def submit(self, write: Write) -> asyncio.Future[int]:
        # Here, too, so that the way of a write is in one file.
        return self._batches.submit(write)

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        """Pass a batch to the writer."""
        assert self._writer is not None
        assert self._work is not None
        work = self._writer.post(self._work.commit, batch)
        work.add_done_callback(self._on_written)
        return work

    def _on_written(self, work: asyncio.Future[Sequence[Outcome]]) -> None:
        if work.exception() is not None:
            return
        assert self._loop is not None
        if self._saving_heads is None:
            self._saving_heads = self._loop.call_later(_SAVE_HEADS_AFTER, self._save_heads)
        self._begin_removal()

    def _begin_removal(self) -> None:
        if self._removing is None and self._work is not None and self._work.has_rest and self._batches.is_open:
            # The task belongs to the store, not to the turn whose write ends here.
            self._removing = asyncio.get_running_loop().create_task(self._remove(), context=Context())

    async def _remove(self) -> None:
        """Remove the rows of deleted threads, in steps between which batches are written."""
        assert self._writer is not None
        assert self._work is not None
        while self._work.has_rest:
            try:
                await self._writer.post(self._work.remove_rest)
            except sqlite3.Error as error:
                log.warning("rows of deleted threads in %s could not be removed yet: %s", self.path, error)
                await asyncio.sleep(_REMOVE_AFTER)
        self._removing = None

    def _save_heads(self) -> None:
        self._saving_heads = None
        if self._batches.is_open and self._writer is not None and self._work is not None:
            saving = self._writer.post(self._work.save_heads)
            # After a failure, the next change tries again.
            saving.add_done_callback(lambda done: None if done.cancelled() else done.exception())


async def _take_lock(path: Path, patience: float) -> StoreLock:
    """Take the lock of a file; wait if another server has it. Raises StoreError and OSError."""
    loop = asyncio.get_running_loop()
    begun, has_said = loop.time(), False
    while True:
        try:
            return StoreLock(path)
        except StoreInUse:
            waited = loop.time() - begun
            if waited >= patience:
                raise
        if waited >= _LONG_WAIT and not has_said:
            has_said = True
            log.warning("waiting for another server to close %s", path)
        await asyncio.sleep(_ASK_EVERY)


def _begin(db: sqlite3.Connection) -> None:
    db.execute("BEGIN")


async def _connect(path: Path, *, readonly: bool, lock_timeout: float) -> _Connection:
    def connector() -> sqlite3.Connection:
        uri = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
        return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=lock_timeout, check_same_thread=False)

    # Connect once without aiosqlite: an error here leaves no OS thread to stop.
    connector().close()
    connection = _Connection(connector, iter_chunk_size=64)
    await connection
    return connection
