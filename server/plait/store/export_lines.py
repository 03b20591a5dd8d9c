"""The lines of an exported thread, JSON Lines: its header, its history, its clients and records, and a last line."""

from base64 import b64decode, b64encode
from typing import Annotated, Final, Literal

import msgspec

from plait.errors import CorruptThread
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, ClientRow, Record, Snapshot, ThreadKey
from plait_schemas.codec import NOT_JSON, check_json, decode_json, encode_json

__all__ = [
    "FORMAT",
    "READ_FORMATS",
    "FileLine",
    "Header",
    "StoreHeader",
    "decode_header",
    "decode_line",
    "encode_lines",
    "make_json",
]

FORMAT: Final = 3

READ_FORMATS: Final = (2, 3)
"""Format 2 has the state and the records of a thread, without history and clients."""

_NONE: Final = msgspec.Raw(b"")

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# In microseconds since the epoch, up to the end of the year 9999.
Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999_999)]


class StoreHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a whole store, whose threads follow."""

    format: int
    holds: Literal["store"]


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a thread. Times are in microseconds since the epoch."""

    format: int
    kind: str
    name: str
    state_version: Number = 1
    epoch: str = ""
    # The version at which the history begins.
    begins_at: Number = 0
    created_at: Time = 0
    changed_at: Time = 0
    due: Time = 0
    user: str | None = None
    # In base64.
    secret: str = ""


class FileLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any other line: a state at a version, a change, a client, a record, or the end."""

    version: Number | None = None
    state: msgspec.Raw = _NONE
    ops: msgspec.Raw = _NONE
    source: str = ""
    client: str | None = None
    ref: Number = 0
    refused: msgspec.Raw = _NONE
    # The time of a change or of a client's last push.
    at: Time = 0
    part: str | None = None
    key: str = ""
    # The value of a record as JSON, as other text, or else in base64.
    value: msgspec.Raw = _NONE
    text: str = ""
    base64: str = ""
    # Of the last line.
    records: int | None = None
    sha256: str = ""

    def read_record(self) -> Record:
        """Return the record of this line. Raises ValueError."""
        value = bytes(self.value) or self.text.encode() or b64decode(self.base64, validate=True)
        return Record(self.part or "", self.key, value)


decode_header: Final = msgspec.json.Decoder(Header).decode
decode_line: Final = msgspec.json.Decoder(FileLine).decode


def encode_lines(write: Write) -> bytes:
    """Return the lines of a write of an export; the first write of a thread has the header, too.

    Raises CorruptThread for rows that are not JSON.
    """
    try:
        lines = _make_lines(write)
    except NOT_JSON as error:
        raise CorruptThread(f"{write.key} cannot be read: it has a row that is not JSON", detail=str(error)) from error
    return b"".join([encode_json(line) + b"\n" for line in lines])


def _make_lines(write: Write) -> list[Header | FileLine]:
    lines: list[Header | FileLine] = [] if write.after is not None else [_make_header(write.key, write)]
    if write.after is None:
        lines += map(_make_state, write.snapshots)
    lines += map(_make_change, write.changes)
    if write.after is not None:
        lines += map(_make_state, write.snapshots)
    lines += map(_make_client, write.clients)
    lines += map(_make_record, write.records)
    return lines


def _make_header(key: ThreadKey, first: Write) -> Header:
    return Header(
        format=FORMAT,
        kind=key.kind,
        name=key.name,
        state_version=first.state_version or 1,
        epoch=first.epoch,
        begins_at=first.begins_at,
        created_at=first.created_at,
        changed_at=first.changed_at or 0,
        due=first.due or 0,
        user=first.user,
        secret=b64encode(first.secret).decode(),
    )


def _make_state(snapshot: Snapshot) -> FileLine:
    return FileLine(version=snapshot.version, state=make_json(snapshot.state))


def _make_change(row: ChangeRow) -> FileLine:
    return FileLine(version=row.version, ops=make_json(row.ops), source=row.source, at=row.at)


def _make_client(row: ClientRow) -> FileLine:
    return FileLine(client=row.client, ref=row.ref, refused=make_json(row.refused), at=row.at)


def _make_record(record: Record) -> FileLine:
    part, key, value = record.part, record.key, record.value or b""
    if _is_json(value) and _is_line(value):
        return FileLine(part=part, key=key, value=msgspec.Raw(value))
    try:
        return FileLine(part=part, key=key, text=value.decode())
    except UnicodeDecodeError:
        return FileLine(part=part, key=key, base64=b64encode(value).decode())


def make_json(value: bytes) -> msgspec.Raw:
    """Return JSON as a part of a line; an empty value is left out. Raises one of NOT_JSON."""
    if value:
        check_json(value)
    return msgspec.Raw(value if _is_line(value) else encode_json(decode_json(value)))


def _is_line(value: bytes) -> bool:
    """Whether JSON stays as it is in a line: not with line breaks, and not with spaces around it."""
    return value == value.strip() and b"\n" not in value and b"\r" not in value


def _is_json(value: bytes) -> bool:
    try:
        check_json(value)
    except NOT_JSON:
        return False
    return True
