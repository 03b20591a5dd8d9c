"""The file of an exported thread: writes it from a store that may be in use, and reads it as writes."""

import hashlib
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator, Set
from contextlib import aclosing
from tempfile import SpooledTemporaryFile
from typing import IO, Final

import msgspec

from plait.errors import CorruptThread, InvalidState, NotFound, StoreError
from plait.limits import Limits
from plait.store.export_lines import (
    FORMAT,
    READ_FORMATS,
    FileLine,
    Header,
    decode_header,
    decode_line,
    encode_lines,
)
from plait.store.protocol import Store, Write
from plait.store.record_checks import check_record
from plait.store.thread_rows import INCOMPLETE, ChangeRow, ClientRow, Record, Snapshot, ThreadKey
from plait_schemas.codec import NOT_JSON, encode_json
from plait_schemas.patch import PatchError, decode_ops

__all__ = ["ExportReader", "ExportWriter", "export_thread"]

# Up to so many bytes of an export are kept in memory, and so many are yielded at once.
_PIECE: Final = 1024 * 1024
# How often an export begins again whose history is pruned while it is read.
_TRIES: Final = 20
# The rows of one write that a file is read as, and the bytes of their values.
_ROWS: Final = 900
_SIZE: Final = 512 * 1024


class ExportWriter:
    """Encodes the lines of one thread."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._count = 0

    def encode(self, write: Write) -> bytes:
        """Return the lines of the next write of the thread."""
        self._count += len(write.records)
        lines = encode_lines(write)
        self._hash.update(lines)
        return lines

    @property
    def checksum(self) -> str:
        """The checksum of the lines so far, without the last one."""
        return self._hash.hexdigest()

    def end(self) -> bytes:
        """Return the last line."""
        return encode_json(FileLine(records=self._count, sha256=self.checksum)) + b"\n"


async def export_thread(
    store: Store, key: ThreadKey, *, leave_out: Set[tuple[str, str]] = frozenset()
) -> AsyncGenerator[bytes]:
    """Yield the file of a thread, some lines at once, as the thread is stored when the first of them is read.

    The records with the parts and keys of `leave_out` are left out. Raises NotFound, CorruptThread and StoreError.
    """
    with SpooledTemporaryFile(max_size=_PIECE) as file:
        await _fill(file, store, key, leave_out)
        file.seek(0)
        while data := file.read(_PIECE):
            yield data


async def _fill(file: IO[bytes], store: Store, key: ThreadKey, leave_out: Set[tuple[str, str]]) -> None:
    for _ in range(_TRIES):
        begins_at = await _find_beginning(store, key)
        try:
            return await _write(file, store, key, leave_out)
        except CorruptThread:
            if await _find_beginning(store, key) == begins_at:
                raise
            file.seek(0)
            file.truncate()
    raise StoreError(f"the history of {key} is pruned faster than it can be read: export it when it is less busy")


async def _find_beginning(store: Store, key: ThreadKey) -> tuple[str, int | None] | None:
    """Return the epoch of a thread, and the version of the first change that is kept; None if there is no thread."""
    if (header := await store.find(key)) is None:
        return None
    return header.epoch, next((row.version for row in await store.changes(key, after=0, limit=1)), None)


async def _write(file: IO[bytes], store: Store, key: ThreadKey, leave_out: Set[tuple[str, str]]) -> None:
    writer = ExportWriter()
    async with store.view(key) as view:
        if view is None or view.thread.due == INCOMPLETE:
            raise NotFound(f"there is no thread {key}")
        async with aclosing(store.export(key, view=view)) as writes:
            async for write in writes:
                kept = [each for each in write.records if (each.part, each.key) not in leave_out]
                _put(file, writer.encode(msgspec.structs.replace(write, records=kept)))
    _put(file, writer.end())


def _put(file: IO[bytes], data: bytes) -> None:
    try:
        file.write(data)
        file.flush()
    except OSError as error:
        raise StoreError(f"a temporary file cannot be written: {error}") from error


class _Page:
    """The rows of the next write of a thread."""

    def __init__(self, after: int | None, version: int) -> None:
        # The version before, and that after the rows.
        self.after = after
        self.version = version
        self.snapshots: list[Snapshot] = []
        self.changes: list[ChangeRow] = []
        self.clients: list[ClientRow] = []
        self.records: list[Record] = []
        self._size = self._rows = 0
        # Whether a state of the last version was added, after which no change may follow.
        self._has_ended = False

    def is_full(self) -> bool:
        """Whether the write must end here."""
        return self._has_ended or self._rows >= _ROWS or self._size >= _SIZE

    def add(self, line: FileLine, record: Record | None) -> str | None:
        """Add a row, and return why it cannot be the next one; None if it can."""
        self._rows += 1
        if record is not None:
            self.records.append(record)
            self._size += len(record.value or b"")
        elif line.client is not None:
            self.clients.append(ClientRow(line.client, line.ref, bytes(line.refused), line.at))
            self._size += len(line.refused)
        elif state := bytes(line.state):
            is_first = self.after is None and self._rows == 1
            if line.version not in (None, self.version) or not (self.changes or is_first):
                return f"the state of version {line.version} does not follow version {self.version}"
            self.snapshots.append(Snapshot(self.version, state))
            self._has_ended = not is_first
            self._size += len(state)
        elif ops := bytes(line.ops):
            if line.version != self.version + 1:
                return f"change {line.version} does not follow version {self.version}"
            self.version += 1
            self.changes.append(ChangeRow(self.version, ops, line.source, line.at))
            self._size += len(ops)
        else:
            return "it is no record"
        return None


class ExportReader:
    """Reads the file of a thread, from where a file is. All that it does raises InvalidState for another file.

    `number` is that of the last line that was read, or of the line before the first one.
    """

    def __init__(self, file: IO[bytes], number: int = 0) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.number = number
        self.header = self._read_header()

    @property
    def key(self) -> ThreadKey:
        return ThreadKey(self.header.kind, self.header.name)

    @property
    def checksum(self) -> str:
        """The checksum of the lines that were read, without the last one."""
        return self._hash.hexdigest()

    def writes(self, limits: Limits) -> Iterator[Write]:
        """Yield the writes without a fence that make the thread, as `Store.export`. Raises TooLarge, too."""
        page, count = _Page(None, self.header.begins_at), 0
        while (line := self._read_line()).records is None:
            record = None if line.part is None else self._read_record(line, limits)
            count += record is not None
            if page.is_full():
                yield self._make_write(page)
                page = _Page(page.version, page.version)
            if (why := page.add(line, record)) is not None:
                raise self._refuse(f"line {self.number}: {why}")
        if (line.records, line.sha256) != (count, self.checksum):
            raise self._refuse("it is damaged: the number of records or the checksum in its last line is wrong")
        yield self._make_write(page)

    # Inside

    def _make_write(self, page: _Page) -> Write:
        header = self.header
        write = Write(
            self.key,
            header.epoch,
            page.after,
            page.version,
            page.changes,
            page.snapshots,
            clients=page.clients,
            records=page.records,
            changed_at=header.changed_at or None,
        )
        if page.after is not None:
            return write
        if header.begins_at and not page.snapshots:
            raise self._refuse(f"the state of version {header.begins_at} is missing")
        return msgspec.structs.replace(
            write,
            state_version=header.state_version,
            secret=b64decode(header.secret),
            due=header.due or None,
            created_at=header.created_at,
            user=header.user,
            begins_at=header.begins_at,
        )

    def _read_header(self) -> Header:
        data = self._file.readline()
        self._hash.update(data)
        self.number += 1
        try:
            header = decode_header(data)
            b64decode(header.secret, validate=True)
        except (ValueError, *NOT_JSON) as error:
            store = ", but a whole store: use `plait store import`" if b'"holds":"store"' in data else ""
            raise self._refuse(f"line {self.number}: {error}{store}") from None
        if header.format not in READ_FORMATS:
            raise InvalidState(f"the thread was exported in format {header.format}; this plait reads {FORMAT}")
        return header

    def _read_line(self) -> FileLine:
        data = self._file.readline()
        if not data.endswith(b"\n"):
            raise self._refuse("it is not complete: its last line is missing")
        self.number += 1
        try:
            line = decode_line(data)
            if line.ops:
                decode_ops(line.ops)
        except (*NOT_JSON, PatchError) as error:
            raise self._refuse(f"line {self.number}: {error}") from None
        if line.records is None:
            self._hash.update(data)
        return line

    def _read_record(self, line: FileLine, limits: Limits) -> Record:
        try:
            record = line.read_record()
            check_record(record, limits)
        except ValueError as error:
            raise self._refuse(f"line {self.number}: {error}") from None
        return record

    def _refuse(self, why: str) -> InvalidState:
        return InvalidState(f"this is not an exported thread: {why}")
