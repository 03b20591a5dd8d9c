"""The tables of one thread: its statements run on a local file, whose changed pages are stored with the thread."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeVar, overload

from plait.actor.actor import Actor
from plait.actor.outcome import make_resolver
from plait.errors import CorruptThread, MigrationFailed, NewerState, SqlError, StoreError, Unavailable
from plait.parts.part import ALL, check_writable
from plait.parts.sql.authorizer import ANYTHING
from plait.parts.sql.database import Database
from plait.parts.sql.local_files import LocalFile, LocalFiles
from plait.parts.sql.reading import convert_rows, pack, read_rows, unpack
from plait.parts.sql.wal import PAGE_SIZE, Changed
from plait.parts.stage import find_stage
from plait.parts.written import Result, Written
from plait.state.commit import Commit
from plait.state.reads import ALL as ALL_NAMES
from plait.state.transaction import Transaction
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Tables", "ThreadSql", "make_range"]

log = logging.getLogger("plait.sql")

T = TypeVar("T")

# Seconds of processor time that a statement on the event loop has.
_SECONDS: Final = 0.05
# The free pages that are kept, and the maximum that a commit gives back.
_KEPT_FREE: Final = 16
_MOST_SHRUNK: Final = 64
# Bytes of pages that are read at once.
_AT_ONCE: Final = 1024 * 1024

# Fields of the first page: the number of pages, of free pages, and of the migrations that were run.
_PAGES: Final = slice(28, 32)
_FREE: Final = slice(36, 40)
_VERSION: Final = slice(60, 64)


def make_range(part: str, *, after: str = "") -> RecordRange:
    """Return the range of pages after a key, of about a MiB."""
    return RecordRange(part, "p/", limit=ALL, size=_AT_ONCE, after=after)


class Tables:
    """The tables of all threads of a class: the migrations, and the pages of a new thread."""

    def __init__(self, migrations: Sequence[str], read_timeout: float) -> None:
        self.migrations = migrations
        self.read_timeout = read_timeout
        self._pages: Sequence[bytes] = ()

    async def make_pages(self, files: LocalFiles, most_bytes: int) -> Sequence[bytes]:
        """Return the pages of the tables of a new thread. Raises SqlError, StoreError and OSError."""
        if not self._pages:
            self._pages = await asyncio.to_thread(self._make, files.make(most_bytes))
        return self._pages

    def _make(self, file: LocalFile) -> list[bytes]:
        try:
            file.write_pages(())
            file.migrate(self.migrations, version=0)
            return file.read_pages()
        finally:
            file.remove()


class ThreadSql:
    """The tables of one thread: `self.sql("insert into orders (item) values (?)", item)`.

    A statement runs when it is called, as a part of a transaction of the thread, and has 50 ms of processor time.
    Awaiting its result returns the rows, as dicts or as objects of `into`, when all that it wrote or saw is durable; in
    a transaction, the rows are in `.value`. Raises SqlError, and Readonly and Destroyed as `set_state` does if the
    statement writes. While the tables are read again after a failed write, a statement raises StoreError.
    """

    def __init__(self, actor: Actor, part: str, tables: Tables) -> None:
        self._actor = actor
        self._tables = tables
        self._part = part
        self._files = actor.use_service(LocalFiles)
        # The local file. Without one, `_new` becomes the file on first use; without both, the pages must be read again.
        self._file: LocalFile | None = None
        # The pages of a new thread's tables, until they are stored with its first write.
        self._new: Sequence[bytes] | None = None
        # The pages that are stored, and how many of them are free.
        self._size = 0
        self._free = 0
        # The last transaction of the thread with statements that write, until it is committed in the local file.
        self._transaction: Transaction | None = None
        # The number of lost writes; after each of them, the local file is another one.
        self._losses = 0
        # Held while `read` runs a statement, or waits for its place in the process.
        self._read_slot = asyncio.Lock()
        # The running read after a loss.
        self._reading: asyncio.Future[None] | None = None
        self._is_closed = False

    @overload
    def __call__(self, statement: str, *args: object) -> Result[list[dict[str, Any]]]: ...
    @overload
    def __call__(self, statement: str, *args: object, into: type[T]) -> Result[list[T]]: ...
    def __call__(self, statement: str, *args: object, into: Any = None) -> Result[list[Any]]:
        query = self._actor.state.query
        # Until it has succeeded, a statement of a query may have read anything.
        is_vague = query is not None and query.note(self._part, ALL_NAMES)
        database = self._begin_statement()
        transaction = self._actor.state.find_own_transaction()
        is_begun, is_saved = database.is_in_transaction, not database.is_known_to_read(statement)
        if is_saved:
            database.save()
        try:
            seconds = _SECONDS if query is None else query.find_seconds_left(_SECONDS)
            rows, access = database.run(statement, args, seconds=seconds)
            found = convert_rows(rows, into, statement)
            if access.writes:
                check_writable(self._actor)
        except BaseException as error:
            if is_saved:
                database.go_back()
            if transaction is not None and is_begun and not database.is_in_transaction:
                # SQLite has undone the earlier statements as well.
                transaction.break_(error if isinstance(error, Exception) else None)
            raise
        if not access.writes:
            if is_saved:
                database.release()
            if query is not None:
                query.narrow(self._part, map(str.lower, access.reads), is_vague=is_vague)
            seen = None if transaction is not None else self._actor.state.find_pending()
            return Result(found, Written(seen, transaction))
        if (touch := self._actor.state.on_touch) is not None:
            touch(self._part, None if ANYTHING in access.writes else {name.lower() for name in access.writes})
        if transaction is None:
            return Result(found, Written(self._store_alone(database), None))
        self._join(transaction)
        return Result(found, Written(None, transaction))

    @overload
    async def read(self, statement: str, *args: object) -> list[dict[str, Any]]: ...
    @overload
    async def read(self, statement: str, *args: object, into: type[T]) -> list[T]: ...
    async def read(self, statement: str, *args: object, into: Any = None) -> list[Any]:
        """Return the rows of a statement that reads, and may take long: it runs in an OS thread.

        A thread runs one such statement at a time, and a process four. Raises SqlError, also after the `read_timeout`
        of `Sql`, and StoreError if the rows that it saw were not stored.
        """
        state = self._actor.state
        if state.find_own_transaction() is not None:
            raise RuntimeError("`read` must be awaited, so call it before or after the block of the transaction")
        if self._file is None and self._new is None and not self._is_closed:
            await asyncio.shield(self._read_again())
        self._begin_statement()
        assert self._file is not None
        losses, path, seconds = self._losses, self._file.path, self._tables.read_timeout
        try:
            async with self._read_slot, self._files.readers:
                rows = await read_rows(path, statement, args, into=into, seconds=seconds)
        except StoreError:
            if losses == self._losses:
                self._lose()
                raise
            rows = []
        await state.wait_until_stored()
        if losses != self._losses:
            raise StoreError(f"the tables of {self._actor.key} were read before a write of them that failed")
        return rows

    async def run_packed(self, statement: str, args: bytes) -> bytes:
        """Run a statement for another process: its arguments and rows are MessagePack, which can hold bytes."""
        return pack(await self(statement, *unpack(args)))

    async def read_packed(self, statement: str, args: bytes) -> bytes:
        """Do what `read` does, as `run_packed`."""
        return await asyncio.to_thread(pack, await self.read(statement, *unpack(args)))

    # Waking and sleeping

    async def _load(self, first: Sequence[Record]) -> None:
        """Make the local file from records, whose first page was read, and run migrations. Raises StoreError."""
        if (limit := self._actor.limits.record) < PAGE_SIZE:
            raise ValueError(f"Limits(record={limit}): the tables of threads need records of {PAGE_SIZE} bytes")
        try:
            await self._files.prepare()
            if not first:
                self._size = self._free = 0
                self._new = await self._tables.make_pages(self._files, self._actor.limits.sql)
                return
            changed = await self._make_file(first)
        except OSError as error:
            raise StoreError("the local file of a thread's tables cannot be written", detail=str(error)) from error
        except SqlError as error:
            what = f"the tables of {self._actor.key} could not be migrated"
            raise MigrationFailed(what, detail=error.detail) from None
        if changed is not None:
            await self._actor.records.write(self._make_records(changed))

    def _unload(self) -> None:
        self._is_closed = True
        self._forget_file()

    async def _make_file(self, page: Sequence[Record]) -> Changed | None:
        """Make the local file from its records, and return the changes of migrations."""
        key, part, migrations = self._actor.key, self._part, self._tables.migrations
        file = self._files.make(self._actor.limits.sql)
        head, count = page[0].value or b"", 0
        try:
            while True:
                pages = [(number, each.value or b"") for number, each in enumerate(page, count + 1)]
                found = [(each.key, PAGE_SIZE) for each in page]
                if found != [(_make_key(number), len(data)) for number, data in pages]:
                    raise CorruptThread(f"the {part} of {key} lacks a page, or a part of one, before {page[-1].key}")
                await asyncio.to_thread(file.write_pages, pages)
                count += len(page)
                if len(page) * PAGE_SIZE < _AT_ONCE:
                    break
                page = await self._actor.records.list(make_range(part, after=page[-1].key))
            if _read_number(head, _PAGES) != count:
                raise CorruptThread(f"the {part} of {key} has {count} pages, not {_read_number(head, _PAGES)}")
            version = _read_number(head, _VERSION)
            if version > len(migrations):
                what = f"the {part} of {key} has had {version} migrations"
                raise NewerState(f"{what}, and its class has {len(migrations)}: it was stored by newer code")
            changed = None
            if version < len(migrations):
                changed = await asyncio.to_thread(file.migrate, migrations, version=version)
            if self._is_closed:
                raise Unavailable("the thread has been stopped")
        except BaseException:
            file.remove()
            raise
        self._file, self._size, self._free = file, count, _read_number(head, _FREE)
        return changed

    # Statements

    def _begin_statement(self) -> Database:
        """Return the open local file. Raises StoreError, or the reason why the calling code may run no statement."""
        own = self._actor.state.end_abandoned()
        if own is not None and own.is_open:
            own.check()
        if (stage := find_stage(self._actor)) is not None:
            stage.check()
        if self._is_closed:
            raise Unavailable("the thread has been stopped: get it from the app again")
        if self._file is None:
            if self._new is None:
                self._read_again()
                raise StoreError(f"the tables of {self._actor.key} are read again, after a write that failed")
            file = self._files.make(self._actor.limits.sql)
            try:
                file.write_pages(enumerate(self._new, 1))
            except OSError as error:
                file.remove()
                self._lose()
                raise StoreError("the local file of a thread's tables cannot be written", detail=str(error)) from error
            self._file = file
        try:
            return self._file.use()
        except StoreError:
            self._lose()
            raise

    # Writing

    def _store_alone(self, database: Database) -> Commit:
        """Commit a statement outside of transactions, and store its changes."""
        records = self._commit(database)
        try:
            return self._actor.records.write(records, undo=self._lose if records else None)
        except BaseException:
            self._lose()
            raise

    def _join(self, transaction: Transaction) -> None:
        """Make the last statement a step of a transaction of the thread."""
        if self._transaction is not transaction:
            self._transaction = transaction
            transaction.leaving.append(partial(self._leave, transaction))
        self._actor.records.write((), undo=partial(self._take_back, transaction))

    def _take_back(self, transaction: Transaction) -> None:
        """Undo the last statement of a transaction, unless it was undone."""
        if self._transaction is not transaction:
            self._lose()
        elif self._file is not None:
            self._file.use().go_back()

    def _leave(self, transaction: Transaction) -> list[Record]:
        """Commit the statements of a transaction, and return the pages that they have changed."""
        if self._transaction is not transaction:
            raise StoreError(f"the tables of {self._actor.key} are read again, after a write that failed")
        assert self._file is not None
        database = self._file.use()
        # Inner blocks may have undone all statements.
        return self._commit(database) if database.is_in_transaction else []

    def _commit(self, database: Database) -> list[Record]:
        """Commit in the local file, and return the changed pages. Raises SqlError, and everything is undone."""
        assert self._file is not None
        try:
            changed = self._file.commit(shrinks_by=min(max(self._free - _KEPT_FREE, 0), _MOST_SHRUNK))
        except OSError as error:
            self._lose()
            raise StoreError("the local file of a thread's tables cannot be read", detail=str(error)) from error
        except BaseException as error:
            if isinstance(error, SqlError) and database.is_in_transaction:
                database.roll_back()
            else:  # The local file may have changes that are not stored.
                self._lose()
            raise
        self._transaction = None
        return [] if changed is None else self._make_records(changed)

    def _make_records(self, changed: Changed) -> list[Record]:
        pages, size = changed.pages, changed.size
        if self._new is not None:
            pages, self._new = dict(enumerate(self._new[:size], 1)) | pages, None
        if (head := pages.get(1)) is not None:
            self._free = _read_number(head, _FREE)
        records = [Record(self._part, _make_key(number), page) for number, page in pages.items()]
        records += [Record(self._part, _make_key(number), None) for number in range(size + 1, self._size + 1)]
        self._size = size
        return records

    # Writes that are lost

    def _lose(self) -> None:
        """Forget the local file, because a write of it was not stored, and read the pages again."""
        self._forget_file()
        if not self._is_closed and self._actor.state.lost is None:
            self._actor.loop.call_soon(self._read_again)

    def _forget_file(self) -> None:
        file, self._file, self._new, self._transaction = self._file, None, None, None
        self._losses += 1
        if file is not None:
            file.remove()

    def _read_again(self) -> "asyncio.Future[None]":
        """Begin to read the pages in a turn, unless a read is running; return a future for the end."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_future()
            self._reading.add_done_callback(self._finish_reading)
            self._actor.begin("read the tables again", self._reload, make_resolver(self._reading))
        return self._reading

    async def _reload(self) -> None:
        if self._file is None and self._new is None and not self._is_closed:
            await self._load(await self._actor.records.list(make_range(self._part)))

    def _finish_reading(self, done: "asyncio.Future[None]") -> None:
        self._reading = None
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("the tables of %s could not be read again: %s", self._actor.key, error)
        elif (touch := self._actor.state.on_touch) is not None:
            touch(self._part, None)


def _make_key(number: int) -> str:
    return f"p/{number:08x}"


def _read_number(page: bytes, field: slice) -> int:
    return int.from_bytes(page[field], "big")
