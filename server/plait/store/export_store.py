"""The file of a whole store: its schemas, and the files of all threads one after the other."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from plait.errors import InvalidState
from plait.limits import UNLIMITED
from plait.store.copying import UNFINISHED, check_finished, list_keys
from plait.store.export_file import ExportReader, ExportWriter
from plait.store.export_lines import FORMAT, StoreHeader, make_json
from plait.store.protocol import Write
from plait.store.thread_rows import ThreadKey
from plait.store.whole import StoredSchema, WholeStore
from plait_schemas.codec import NOT_JSON, encode_json

__all__ = ["ExportedStore", "export_store"]


class _StoreLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that is not in a thread: a schema, or the end. Read from the first line of a thread, it has its format."""

    format: int = 0
    kind: str = ""
    hash: str = ""
    schema: msgspec.Raw = msgspec.Raw(b"")
    # Of the last line. The checksum is that of the lines that are not in a thread, and of the threads' checksums.
    threads: int | None = None
    sha256: str = ""


_decode_first: Final = msgspec.json.Decoder(StoreHeader).decode
_decode: Final = msgspec.json.Decoder(_StoreLine).decode


async def export_store(source: WholeStore, put: Callable[[bytes], object], show: Callable[[int, int], None]) -> int:
    """Give the lines of all schemas and threads of a store to `put`, and return the number of threads.

    The store must be open, and nothing may write to it. `show` is called with how many threads are exported, of how
    many. Raises StoreError.
    """
    await check_finished(source)
    found = hashlib.sha256()

    def add(line: StoreHeader | _StoreLine) -> None:
        data = encode_json(line) + b"\n"
        found.update(data)
        put(data)

    add(StoreHeader(format=FORMAT, holds="store"))
    for kind, hash, schema in await source.schemas():
        add(_StoreLine(kind=kind, hash=hash, schema=make_json(schema)))
    keys = await list_keys(source)
    for number, key in enumerate(keys):
        show(number, len(keys))
        writer = ExportWriter()
        async for write in source.export(key):
            put(writer.encode(write))
        put(writer.end())
        found.update(writer.checksum.encode())
    put(encode_json(_StoreLine(threads=len(keys), sha256=found.hexdigest())) + b"\n")
    show(len(keys), len(keys))
    return len(keys)


class ExportedStore:
    """The file of a store, which is read and checked when this is made. It is a source of `copy_threads`.

    Raises InvalidState and OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The place of each thread in the file.
        self._places: dict[ThreadKey, int] = {}
        self._schemas: list[StoredSchema] = []
        self._hash = hashlib.sha256()
        # The number of the last line that was read.
        self._number = 1
        with path.open("rb") as file:
            try:
                self._read(file)
            except InvalidState as error:
                raise InvalidState(f"{path} cannot be imported: {error}") from None
        # Identifies the content of the file.
        self.checksum = self._hash.hexdigest()

    @property
    def keys(self) -> Sequence[ThreadKey]:
        """The threads, in the order of the file."""
        return list(self._places)

    async def schemas(self) -> list[StoredSchema]:
        """Return all schemas."""
        return self._schemas

    async def export(self, key: ThreadKey) -> AsyncGenerator[Write]:
        """Yield the writes of a thread, as `Store.export`."""
        with self._path.open("rb") as file:
            file.seek(self._places[key])
            writes = ExportReader(file).writes(UNLIMITED)
            while (write := await asyncio.to_thread(next, writes, None)) is not None:
                yield write

    # Inside

    def _read(self, file: IO[bytes]) -> None:
        """Read and check all lines."""
        self._read_first(file)
        while True:
            place = file.tell()
            data = file.readline()
            if not data.endswith(b"\n"):
                raise InvalidState("it is not complete: its last line is missing")
            try:
                line = _decode(data)
            except NOT_JSON as error:
                raise InvalidState(f"line {self._number + 1}: {error}") from None
            if line.format:
                file.seek(place)
                self._read_thread(file, place)
            elif line.threads is None:
                self._number += 1
                self._hash.update(data)
                self._schemas.append((line.kind, line.hash, bytes(line.schema)))
            else:
                break
        if (line.threads, line.sha256) != (len(self._places), self._hash.hexdigest()):
            raise InvalidState("it is damaged: the number of threads or the checksum in its last line is wrong")
        if file.read(1):
            raise InvalidState("there is more after its last line")

    def _read_first(self, file: IO[bytes]) -> None:
        data = file.readline()
        self._hash.update(data)
        try:
            header = _decode_first(data)
        except NOT_JSON as error:
            raise InvalidState(f"it is not an exported store; `plait threads import` reads threads: {error}") from None
        if header.format != FORMAT:
            raise InvalidState(f"it was exported in format {header.format}; this plait reads {FORMAT}")

    def _read_thread(self, file: IO[bytes], place: int) -> None:
        reader = ExportReader(file, self._number)
        if reader.key in self._places or reader.key == UNFINISHED:
            raise InvalidState(f"there cannot be {'another' if reader.key in self._places else 'a'} {reader.key} in it")
        for _ in reader.writes(UNLIMITED):
            pass
        self._number = reader.number
        self._places[reader.key] = place
        self._hash.update(reader.checksum.encode())
