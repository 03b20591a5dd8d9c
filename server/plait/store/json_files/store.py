"""A store in a folder: threads in memory, and the files from which they are read when it is opened."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeVar

import msgspec

from plait.clock import read_wall_clock
from plait.errors import StoreError
from plait.store.batches import Batches, WriteGroup
from plait.store.coalescing import coalesce
from plait.store.json_files.files import AppendedFile, make_folder, name_files, replace_file
from plait.store.json_files.lines import decode_line, decode_value, encode_line, encode_value
from plait.store.json_files.url import FileUrl
from plait.store.memory import MemoryStore
from plait.store.outcomes import Outcome, make_indeterminate, make_refusal
from plait.store.protocol import ALL_THREADS, StoredThread, ThreadKey, ThreadQuery, ThreadRow, Write
from plait.store.sqlite.lock import StoreLock
from plait.store.thread_rows import RecordRange
from plait_schemas.codec import NOT_JSON, UNENCODABLE

__all__ = ["JsonFileStore"]

log = logging.getLogger("plait.store")

# OS threads that wait for the disk at once.
_WRITERS: Final = 16
# A log below this size is never replaced by a snapshot.
_LEAST: Final = 64 * 1024
_ODD: Final = "UTF-8 has no form for half of a surrogate pair"


P = ParamSpec("P")
T = TypeVar("T")


class _Files:
    """The files of a thread: `NAME.json`, its snapshot, and `NAME.jsonl`, the lines that were written since."""

    __slots__ = ("bound", "log", "number", "snapshot")

    def __init__(self, stem: Path) -> None:
        self.snapshot = stem.with_name(f"{stem.name}.json")
        # The log is replaced by a snapshot when it is larger than this.
        self.bound = _LEAST
        self.log = AppendedFile(stem.with_name(f"{stem.name}.jsonl"))
        # That of the last line.
        self.number = 0

    def append(self, key: ThreadKey, writes: Sequence[Write], now: int) -> None:
        """Write a line. Raises what `AppendedFile.append` does, and UNENCODABLE."""
        self.log.append(encode_line(key, self.number + 1, now, writes) + b"\n")
        self.number += 1

    def replace(self, key: ThreadKey, writes: Sequence[Write], now: int) -> None:
        """Replace all lines by a snapshot, the writes that make the thread; by nothing if there are none.

        Raises OSError. Whatever was done then, the files have the thread.
        """
        self.bound = 2 * (self.log.size or 0)  # When it is tried again if it fails.
        data = msgspec.json.format(encode_line(key, self.number, now, writes), indent=2) + b"\n"
        replace_file(self.snapshot, data)
        self.bound = max(_LEAST, len(data))
        self.log.clear()
        if not writes:
            self.log.remove()
            self.snapshot.unlink()


class JsonFileStore(MemoryStore):
    """Stores threads in a folder, which one process opens. `readonly=True` reads one that a server may have open."""

    def __init__(self, url: FileUrl, *, readonly: bool = False) -> None:
        self.url = url
        self._readonly = readonly
        self._folder = url.folder
        self._files: dict[ThreadKey, _Files] = {}
        self._schema_file = self._folder / "schemas.json"
        self._adding_schema = asyncio.Lock()
        self._lock: StoreLock | None = None
        self._pool: ThreadPoolExecutor | None = None
        batches = Batches(self._write, is_parallel=True, is_trouble=lambda cause: isinstance(cause, OSError))
        super().__init__(batches, title=f"the store {url}")

    @property
    def durability(self) -> str:
        return "changes survive crashes of the process and of the machine"

    def reader(self) -> Self:
        """Return a read-only store of the same folder."""
        return type(self)(self.url, readonly=True)

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        _check_text(*key)
        return await super().load(key, version=version, records=records)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        _check_text(*key, name)
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

    # Opening

    async def _open(self) -> None:
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="plait-files")
        await self._run(self._read_all)
        if not self._readonly:
            self._batches.open()

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
            make_folder(self._folder)
            self._lock = StoreLock(self._folder / "threads")
        elif not self._folder.is_dir():
            raise StoreError("there is no such folder")
        if self._schema_file.exists():
            try:
                rows = msgspec.json.decode(self._schema_file.read_bytes(), type=list[tuple[str, str, msgspec.Raw]])
                self._schemas = {(kind, hash): decode_value(schema) or b"" for kind, hash, schema in rows}
            except NOT_JSON as error:
                raise StoreError(f"{self._schema_file}: {error}") from error
        found = (self._folder / "threads").glob("*/*")
        for stem in sorted({path.with_suffix("") for path in found if path.suffix in (".json", ".jsonl")}):
            self._read_thread(stem)
        if not self._readonly:
            for key in self._files.keys() - self._threads.keys():  # A crash has left what was deleted.
                self._files.pop(key).replace(key, [], read_wall_clock())

    def _read_thread(self, stem: Path) -> None:
        files = _Files(stem)
        # First the lines: if a server replaces them by a snapshot after that, the snapshot has them.
        lines = files.log.read(readonly=self._readonly)
        if files.snapshot.exists():
            data = files.snapshot.read_bytes()
            files.bound = max(_LEAST, len(data))
            self._read_line(files, data, str(files.snapshot), is_snapshot=True)
        first = files.number + 1
        for number, line in lines:
            self._read_line(files, line, f"{files.log.path}, line {number}", first=first)

    def _read_line(self, files: _Files, data: bytes, where: str, *, first: int = 1, is_snapshot: bool = False) -> None:
        """Apply a line, unless the snapshot has it. Raises StoreError, which says where it is."""
        try:
            line = decode_line(data)
            key = line.key
            if line.number < first:
                return
            if not is_snapshot and line.number != files.number + 1:
                raise StoreError(f"its number is {line.number}, and must be {files.number + 1}")
            if self._files.setdefault(key, files) is not files or self._stem(key) != files.log.path.with_suffix(""):
                raise StoreError(f"it is of {key}, whose files are {self._stem(key)}.json and .jsonl")
            for write in line.decode():
                if write.refusal(self._head(key)) is not None:
                    raise StoreError("it does not follow what is before it")
                self._apply(key, [write], line.at)
            files.number = line.number
        except (StoreError, *NOT_JSON) as error:
            raise StoreError(f"{where}: {error}") from error

    def _stem(self, key: ThreadKey) -> Path:
        return self._folder / "threads" / name_files(key)

    # Writing

    def _write(self, batch: Sequence[WriteGroup]) -> asyncio.Future[Sequence[Outcome]]:
        (group,) = batch
        return asyncio.get_running_loop().create_task(self._commit(group))

    async def _commit(self, group: WriteGroup) -> Sequence[Outcome]:
        """Write a line, and then apply it."""
        key, now = group.writes[0].key, read_wall_clock()
        count, error = group.count_following(self._head(key))
        if not (writes := coalesce(group.writes[:count])):
            return [(count, error)]
        files = self._files.get(key)
        try:
            if files is None:
                files = self._files[key] = _Files(self._stem(key))
            await self._run(files.append, key, writes, now)
        except (OSError, StoreError, *UNENCODABLE) as failure:
            why = _ODD if isinstance(failure, UnicodeEncodeError) else getattr(failure, "strerror", str(failure))
            make_error = make_indeterminate if files is not None and files.log.is_torn else make_refusal
            return [(0, make_error(key, failure, why))]
        self._apply(key, writes, now)
        await self._tidy(key, files, now)
        return [(count, error)]

    async def _tidy(self, key: ThreadKey, files: _Files, now: int) -> None:
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

    async def _probe(self, *, writes: bool) -> None:
        if writes:
            try:
                await self._run(replace_file, self._folder / "probe", b"\0" * 4096)
            except OSError as error:
                raise StoreError(f"the store cannot be written: {error.strerror}") from error

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that waits for the disk."""
        if self._pool is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **kwargs))


def _check_text(*texts: str) -> None:
    """Raise StoreError for a text that no file has."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"{texts!r} cannot be read: {_ODD}") from error
