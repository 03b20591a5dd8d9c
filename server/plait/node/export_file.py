"""The file of an exported thread, JSON Lines: what it is, its state, a record a line, and a last line that ends it."""

import hashlib
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import AsyncGenerator, Iterator
from typing import IO, Final

import msgspec

from plait.agents.cut_off import MARK
from plait.errors import InvalidState, NotFound
from plait.limits import Limits
from plait.state.state_history import replay_json
from plait.state.types import parse_json_error
from plait.store.protocol import Store, ThreadKey
from plait.store.record_checks import check_record
from plait.store.thread_rows import INCOMPLETE, Record
from plait_schemas.codec import NOT_JSON, decode_json, encode_json

__all__ = ["FORMAT", "LEFT_OUT", "ExportReader", "ExportWriter", "Header", "export_thread"]

FORMAT: Final = 2

LEFT_OUT: Final = frozenset({MARK})
"""The parts and keys of the records that say what a process does with a thread, not what the thread has."""

# Records that are read at once, and the bytes of their values.
_PAGE: Final = 1000
_PAGE_BYTES: Final = 1024 * 1024

_NONE: Final = msgspec.Raw(b"")


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line."""

    format: int
    kind: str
    name: str
    state_version: int = 1
    epoch: str = ""
    version: int = 0
    # In microseconds since the epoch.
    created_at: int = 0
    user: str | None = None


class _FileLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any other line: a state, a record with its value as JSON or as base64, or the end."""

    state: msgspec.Raw = _NONE
    part: str | None = None
    key: str = ""
    value: msgspec.Raw = _NONE
    base64: str = ""
    records: int | None = None
    sha256: str = ""


_decode_header: Final = msgspec.json.Decoder(Header).decode
_decode_line: Final = msgspec.json.Decoder(_FileLine).decode


class ExportWriter:
    """Encodes the lines of one thread."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._count = 0

    def begin(self, header: Header, state: bytes | None) -> bytes:
        """Return the first line and that of the state, if there is one."""
        # An empty Raw is the default, which is left out.
        found = b"" if state is None else encode_json(_FileLine(state=msgspec.Raw(_make_line(state)))) + b"\n"
        return self._add(encode_json(header) + b"\n" + found)

    def encode(self, records: list[Record]) -> bytes:
        """Return the lines of records."""
        kept = [record for record in records if (record.part, record.key) not in LEFT_OUT]
        self._count += len(kept)
        return self._add(b"".join([encode_json(_encode(record)) + b"\n" for record in kept]))

    def end(self) -> bytes:
        """Return the last line."""
        return encode_json(_FileLine(records=self._count, sha256=self._hash.hexdigest())) + b"\n"

    def _add(self, lines: bytes) -> bytes:
        self._hash.update(lines)
        return lines


def _encode(record: Record) -> _FileLine:
    value = record.value or b""
    try:
        decode_json(value)
    except NOT_JSON:
        is_line = False
    else:
        # Spaces around the JSON would be lost, and a line break would end the line.
        is_line = value == value.strip() and b"\n" not in value and b"\r" not in value
    if is_line:
        return _FileLine(part=record.part, key=record.key, value=msgspec.Raw(value))
    return _FileLine(part=record.part, key=record.key, base64=b64encode(value).decode())


def _make_line(state: bytes) -> bytes:
    return encode_json(decode_json(state)) if b"\n" in state or b"\r" in state else state


async def export_thread(store: Store, key: ThreadKey) -> AsyncGenerator[bytes, None]:
    """Yield the file of a thread, some lines at once, as the thread is stored when the first of them is read.

    Raises NotFound, CorruptThread and StoreError.
    """
    async with store.view(key) as view:
        if view is None or view.thread.due == INCOMPLETE:
            raise NotFound(f"there is no thread {key}")
        thread, writer = view.thread, ExportWriter()
        header = Header(
            format=FORMAT,
            kind=key.kind,
            name=key.name,
            state_version=thread.state_version,
            epoch=thread.epoch,
            version=thread.version,
            created_at=thread.created_at,
            user=thread.user,
        )
        yield writer.begin(header, replay_json(key, thread) if thread.has_state else None)
        after = ("", "")
        while page := await view.records(after=after):
            yield writer.encode(page)
            after = page[-1].part, page[-1].key
        yield writer.end()


class ExportReader:
    """Reads a file of an exported thread. All that it does raises InvalidState for what is no such file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        # The number of the last line that was read.
        self._number = 0
        self.header = self._read_header()
        # The line after the state, and the state as JSON, None if the thread has none.
        self._next = self._read_line()
        self.state: bytes | None = None
        if bytes(self._next.state):
            self.state = bytes(self._next.state)
            self._next = self._read_line()

    def pages(self, limits: Limits) -> Iterator[list[Record]]:
        """Yield the records, some at once, and check the end. Raises TooLarge, too."""
        page, size, count, line = list[Record](), 0, 0, self._next
        while line.records is None:
            record = self._read_record(line, limits)
            count += 1
            if (record.part, record.key) not in LEFT_OUT:
                page.append(record)
                size += len(record.value or b"")
            if len(page) >= _PAGE or size >= _PAGE_BYTES:
                yield page
                page, size = [], 0
            line = self._read_line()
        if (line.records, line.sha256) != (count, self._hash.hexdigest()):
            raise self._refuse("it is damaged: the number of records or the checksum in its last line is wrong")
        if self._file.read(1):
            raise self._refuse("there is more after its last line")
        if page:
            yield page

    # Inside

    def _read_header(self) -> Header:
        data = self._file.readline()
        self._hash.update(data)
        self._number = 1
        try:
            header = _decode_header(data)
        except NOT_JSON as error:
            raise self._explain(error) from None
        if header.format != FORMAT:
            raise InvalidState(f"the thread was exported in format {header.format}; this plait reads {FORMAT}")
        return header

    def _read_line(self) -> _FileLine:
        data = self._file.readline()
        if not data.endswith(b"\n"):
            raise self._refuse("it is not complete: its last line is missing")
        self._number += 1
        try:
            line = _decode_line(data)
        except NOT_JSON as error:
            raise self._explain(error) from None
        if line.records is None:
            self._hash.update(data)
        return line

    def _read_record(self, line: _FileLine, limits: Limits) -> Record:
        if line.part is None:
            raise self._refuse(f"line {self._number} is no record")
        try:
            record = Record(line.part, line.key, bytes(line.value) or b64decode(line.base64, validate=True))
            check_record(record, limits)
        except (ValueError, NotBase64) as error:
            raise self._refuse(f"line {self._number}: {error}") from None
        return record

    def _explain(self, error: Exception) -> InvalidState:
        message, path = parse_json_error(error)
        return InvalidState(f"this is not an exported thread: line {self._number}: {message}", path=path)

    def _refuse(self, why: str) -> InvalidState:
        return InvalidState(f"this is not an exported thread: {why}")
