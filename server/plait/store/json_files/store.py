"""A store in a folder: threads in memory, and the files from which they are read when it is opened."""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

import msgspec

from plait.clock import read_wall_clock
from plait.errors import CorruptThread, StoreError
from plait.store.batches import WriteGroup
from plait.store.coalescing import coalesce
from plait.store.json_files.files import make_folder, name_files, replace_file
from plait.store.json_files.lines import decode_value, encode_value
from plait.store.json_files.loaded import LoadedStore, MemoryRow
from plait.store.json_files.thread_files import ThreadFiles
from plait.store.json_files.url import FileUrl
from plait.store.outcomes import Outcome, describe, make_indeterminate, make_refusal
from plait.store.protocol import ALL_THREADS, ThreadHeader, ThreadQuery, ThreadRow, Write
from plait.store.sqlite.lock import StoreLock
from plait.store.thread_rows import ThreadKey
from plait.store.whole import StoredSchema
from plait_schemas.codec import NOT_JSON, UNENCODABLE

__all__ = ["JsonFileStore"]

log = logging.getLogger("plait.store")

# OS threads that wait for the disk at once.
_WRITERS: Final = 16


P = ParamSpec("P")
T = TypeVar("T")


class JsonFileStore(LoadedStore):
    """Stores threads in a folder, which one process opens. `readonly=True` reads one that a server may have open."""

    def __init__(self, url: FileUrl, *, readonly: bool = False) -> None:
        self.url = url
        self._readonly = readonly
        self._folder = url.folder
        # If the files are damaged, and no line tells their thread, its kind and name are those of the folder and files.
        self._files: dict[ThreadKey, ThreadFiles] = {}
        self._schema_file = self._folder / "schemas.json"
        self._adding_schema = asyncio.Lock()
        self._lock: StoreLock | None = None
        # The folder's identity, which tells whether it was replaced.
        self._opened: os.stat_result
        self._pool: ThreadPoolExecutor | None = None
        super().__init__(title=f"the store {url}", most=_WRITERS)

    @property
    def durability(self) -> str:
        return "changes survive crashes of the process and of the machine"

    def reader(self) -> Self:
        """Return a read-only store of the same folder."""
        return type(self)(self.url, readonly=True)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        if (found := await super().find(key)) is None:
            self._find_row(key)  # Raises if it is damaged from the beginning.
        return found

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        _check_text(name)
        return await super().record(key, part, name)

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        _check_text(query.prefix)
        return await super().threads(query)

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        async with self._adding_schema:
            schemas = self._schemas | {(kind, hash): schema}
            rows = msgspec.json.encode([[*key, encode_value(value)] for key, value in schemas.items()])
            try:
                await self._run(replace_file, self._schema_file, msgspec.json.format(rows, indent=2) + b"\n")
            except OSError as error:
                raise StoreError(f"the schema of {kind} could not be stored: {error.strerror}") from error
            self._schemas = schemas

    async def schemas(self) -> list[StoredSchema]:
        return [(*key, schema) for key, schema in self._schemas.items()]

    def begin_new_epochs(self) -> None:
        """Give each thread a new epoch, in memory only, so that no client resumes from a version that is not there."""
        for row in self._threads.values():
            row.epoch = secrets.token_hex(8)

    # Opening

    async def _open(self) -> None:
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="plait-files")
        await self._run(self._read_all)
        if self._readonly:
            return
        for key in self._files.keys() - self._threads.keys():  # A crash has left what was deleted.
            await self._tidy(key, self._files[key], read_wall_clock())
        self._accept_writes()

    async def _close(self) -> None:
        if self._pool is not None:
            await asyncio.to_thread(self._pool.shutdown)
            self._pool = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _explain(self, error: BaseException) -> str | None:
        return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else super()._explain(error)

    def _read_all(self) -> None:
        self._threads, self._files, self._schemas = {}, {}, {}
        if not self._readonly:
            make_folder(self._folder / "threads")
            self._lock = StoreLock(self._folder / "threads")
            self._opened = os.stat(self._folder)
        elif not self._folder.is_dir():
            raise StoreError("there is no such folder")
        elif not os.path.lexists(self._folder / "threads"):
            raise StoreError("it has no folder threads: name the folder of a store")
        if self._schema_file.exists():
            try:
                rows = msgspec.json.decode(self._schema_file.read_bytes(), type=list[tuple[str, str, msgspec.Raw]])
                self._schemas = {(kind, hash): decode_value(schema) or b"" for kind, hash, schema in rows}
            except NOT_JSON as error:
                raise StoreError(f"{self._schema_file}: {error}") from error
        for stem in sorted(set(_find_stems(self._folder / "threads"))):
            self._read_thread(stem)

    def _read_thread(self, stem: Path) -> None:
        files = ThreadFiles(stem)
        found = list(files.read(readonly=self._readonly))
        if files.damage and self._readonly:  # A server may have written to one file before the other was read.
            files = ThreadFiles(stem)
            found = list(files.read(readonly=True))
        key = files.key or ThreadKey(*stem.parts[-2:])
        self._files[key] = files
        for at, write in found:
            self._apply(key, [write], at)
        if files.damage:
            if not self._readonly:
                log.error("%s cannot be read, and is refused: %s", key, files.damage)
            if key not in self._threads:
                self._apply(key, [Write(key, "", None, 0)], 0)
            row = self._threads[key]
            row.due = 0  # Only the last line tells whether its import has ended.
            row.records.clear()  # Only its header is read.

    def _find_row(self, key: ThreadKey) -> MemoryRow | None:
        """Return a thread for a read. Raises CorruptThread and StoreError."""
        _check_text(*key)
        if (files := self._find_files(key)) is not None and files.damage:
            raise CorruptThread(f"{key} cannot be read", detail=files.damage)
        return super()._find_row(key)

    def _find_files(self, key: ThreadKey) -> ThreadFiles | None:
        return self._files.get(key) or self._files.get(ThreadKey(*name_files(key).split("/")))

    # Writing

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        return asyncio.get_running_loop().create_task(self._commit(batch), context=Context())

    async def _commit(self, batch: Sequence[WriteGroup]) -> Sequence[Outcome]:
        """Write a line of each thread, and then apply them."""
        now = read_wall_clock()
        lines = [self._plan(group) for group in batch]
        await self._run(_write_all, lines, now)
        for line in lines:
            if line.writes:
                self._apply(line.key, line.writes, now)
                await self._tidy(line.key, line.files, now)
            elif line.files.log.size is None and line.key not in self._threads:
                self._files.pop(line.key, None)
        return [(line.count, line.error) for line in lines]

    def _plan(self, group: WriteGroup) -> "_NextLine":
        key = group.writes[0].key
        if (files := self._find_files(key)) is None:
            files = self._files[key] = ThreadFiles(self._folder / "threads" / name_files(key))
        count, error = group.count_following(self._head(key))
        return _NextLine(key, files, coalesce(group.writes[:count]), count, error)

    async def _tidy(self, key: ThreadKey, files: ThreadFiles, now: int) -> None:
        """Replace the lines of a thread if they are larger than its snapshot, or if it was deleted."""
        row = self._threads.get(key)
        if row is not None and (files.log.size or 0) <= files.bound:
            return
        try:
            await self._run(files.replace, key, [] if row is None else [row.as_write(key)], now)
        except OSError as error:  # The lines have all.
            log.warning("the lines of %s could not be replaced by a snapshot: %s", key, error)
            return
        if row is None:
            del self._files[key]

    def _is_trouble(self, cause: BaseException) -> bool:
        # Others concern the files of one thread.
        return isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError | IsADirectoryError)

    async def _probe(self, *, writes: bool) -> None:
        probe = self._folder / "probe"
        try:
            if not os.path.samestat(await self._run(os.stat, self._folder), self._opened):
                raise StoreError("the store's folder was replaced: start the server again")
            if writes:
                await self._run(replace_file, probe, b"\0" * 4096)
                await self._run(probe.unlink)
        except OSError as error:
            raise StoreError(f"the store cannot be written: {error.strerror}") from error

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that waits for the disk."""
        if self._pool is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))


class _NextLine(msgspec.Struct):
    """The next line of a thread, and its outcome."""

    key: ThreadKey
    files: ThreadFiles
    writes: Sequence[Write]
    count: int
    error: StoreError | None

    def write(self, now: int) -> None:
        try:
            self.files.append(self.key, self.writes, now)
        except (OSError, StoreError, *UNENCODABLE) as failure:
            why = describe(failure, getattr(failure, "strerror", ""))
            make_error = make_indeterminate if self.files.log.is_torn else make_refusal
            self.writes, self.count, self.error = (), 0, make_error(self.key, failure, why)


def _write_all(lines: Sequence[_NextLine], now: int) -> None:
    for line in lines:
        if line.writes:
            line.write(now)


def _find_stems(threads: Path) -> Iterator[Path]:
    """Yield the paths of the threads' files, without their endings. Raises OSError."""
    for folder in threads.iterdir():
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.suffix in (".json", ".jsonl"):
                yield path.with_suffix("")


def _check_text(*texts: str) -> None:
    """Raise StoreError for a text that no file has."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"{texts!r} cannot be read: {describe(error)}") from error
