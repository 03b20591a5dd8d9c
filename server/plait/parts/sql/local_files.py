"""The local SQLite files of a process, which are caches: their folder, and which of them are open."""

import asyncio
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Final

from plait.errors import StoreError
from plait.parts.sql.database import Database, make_error
from plait.parts.sql.wal import PAGE_SIZE, Changed, WalReader
from plait.store.held_folder import make_folder

__all__ = ["LocalFile", "LocalFiles"]

# Maximum number of open files, besides those with an open transaction.
_MOST_OPEN: Final = 64
# Statements of `read` that run at once.
_MOST_READERS: Final = 4
_PREFIX: Final = "plait-sql-"
# Bytes of a log after which its pages are copied to the file, and the log begins again.
_LONG_LOG: Final = 4 * 1024 * 1024


class LocalFiles:
    """The folder of the files, and the open ones: the file that was not used for the longest time is closed first.

    The folder is locked while this process has it, so that a later process removes the files that a crash has left.
    """

    def __init__(self) -> None:
        self.readers = asyncio.Semaphore(_MOST_READERS)
        self._open: OrderedDict[LocalFile, None] = OrderedDict()
        self._folder: Path | None = None
        # The descriptor that holds the lock.
        self._held: int | None = None
        self._opening = asyncio.Lock()

    async def prepare(self) -> None:
        """Make the folder, unless it is there, and remove the folders that others have left. Raises OSError."""
        async with self._opening:
            if self._folder is None or not self._folder.exists():
                self._let_go()
                self._folder, self._held = await asyncio.to_thread(make_folder, _PREFIX, tempfile.gettempdir())

    def make(self, most_bytes: int) -> "LocalFile":
        """Return a new file, which is empty. `prepare` must have returned."""
        assert self._folder is not None
        return LocalFile(self, str(self._folder / secrets.token_hex(8)), most_bytes)

    def use(self, file: "LocalFile") -> None:
        """Note that a file is open and used; close others if there are too many."""
        self._open[file] = None
        self._open.move_to_end(file)
        if len(self._open) > _MOST_OPEN:
            idle = (each for each in self._open if each is not file and not each.is_in_transaction)
            if (oldest := next(idle, None)) is not None:
                oldest.close()

    def forget(self, file: "LocalFile") -> None:
        """Note that a file is closed."""
        self._open.pop(file, None)

    def close(self) -> None:
        """Remove all files, as the node has stopped."""
        for file in list(self._open):
            file.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


class LocalFile:
    """The tables of one thread as a local file. The file is opened when it is used, and may be closed at any time."""

    def __init__(self, files: LocalFiles, path: str, most_bytes: int) -> None:
        self.path = path
        self._files = files
        self._most_bytes = most_bytes
        self._database: Database | None = None
        self._log = WalReader(path)

    @property
    def is_in_transaction(self) -> bool:
        """Whether the file is open, and a transaction was begun."""
        return self._database is not None and self._database.is_in_transaction

    def write_pages(self, pages: Iterable[tuple[int, bytes]]) -> None:
        """Write pages, by their numbers, to the file before it is opened. Raises OSError."""
        with open(self.path, "r+b" if os.path.exists(self.path) else "xb") as file:
            for number, page in pages:
                file.seek((number - 1) * PAGE_SIZE)
                file.write(page)

    def use(self) -> Database:
        """Return the open file. Raises StoreError if it cannot be opened."""
        if self._database is None:
            self._database = self._open()
        self._files.use(self)
        return self._database

    def commit(self, *, shrinks_by: int) -> Changed | None:
        """Give some free pages back, commit, and return the changes, if any. Raises SqlError and OSError."""
        assert self._database is not None
        self._database.commit(shrinks_by=shrinks_by)
        changed = self._log.read()
        if self._log.position > _LONG_LOG:
            self._database.checkpoint()
        return changed

    def migrate(self, migrations: Sequence[str], *, version: int) -> Changed | None:
        """Run the migrations after a version, in an OS thread; return their changes. Raises SqlError and OSError."""
        with closing(self._open()) as database:
            # Otherwise, dropping a table, to make it in another way, would delete the rows that refer to its rows.
            database.ignore_foreign_keys()
            database.save()
            for statement in chain.from_iterable(map(split_script, migrations[version:])):
                database.run(statement, ())
            check = "PRAGMA foreign_key_check"
            rows, _ = database.run(check, ())
            if rows:
                reason = f"a row of {rows[0]['table']} refers to a row of {rows[0]['parent']} that is not there"
                raise make_error(reason, check)
            database.set_version(len(migrations))
            database.commit()
            return self._log.read()

    def read_pages(self) -> list[bytes]:
        """Return all pages of a file that is closed. Raises OSError."""
        with open(self.path, "rb") as file:
            data = file.read()
        return [data[at : at + PAGE_SIZE] for at in range(0, len(data), PAGE_SIZE)]

    def close(self) -> None:
        """Close the file, whose content stays."""
        self._files.forget(self)
        if self._database is not None:
            self._database.close()
            self._database = None

    def remove(self) -> None:
        """Remove the file."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(self.path + suffix)

    # Inside

    def _open(self) -> Database:
        try:
            database = Database(self.path, most_bytes=self._most_bytes)
            self._log = WalReader(self.path)
            # A reader of another OS thread may have kept the log from being emptied when the file was closed.
            self._log.read()
        except (OSError, sqlite3.Error) as error:
            raise StoreError("the local file of a thread's tables cannot be opened", detail=str(error)) from error
        return database


def split_script(script: str) -> Iterator[str]:
    """Iterate over the statements of a script."""
    start = 0
    for end in (found.end() for found in re.finditer(";", script)):
        if sqlite3.complete_statement(script[start:end]):
            yield script[start:end]
            start = end
    if script[start:].strip():
        yield script[start:]
