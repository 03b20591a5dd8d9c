"""The lines of a thread's files: each has what was written at once, as JSON that people can read."""

from collections.abc import Sequence
from typing import Final

import msgspec

from plait.errors import StoreError
from plait.store.protocol import ThreadKey, Write
from plait.store.thread_rows import ChangeRow, ClientRow, Prune, Record, Snapshot
from plait_schemas.codec import NOT_JSON, check_json

__all__ = ["Line", "decode_line", "decode_value", "encode_line", "encode_value"]

# A value that is JSON is stored as it is, and all others as the only member of an object, in base64.
_OTHER: Final = b'{"base64":'
# A value is nested in a line, so it must be readable inside of more brackets than a line has.
_OPENING: Final = b"[" * 32
_CLOSING: Final = b"]" * 32


class _Change(msgspec.Struct):
    version: int
    ops: msgspec.Raw
    source: str
    at: int


class _Snapshot(msgspec.Struct):
    version: int
    state: msgspec.Raw


class _Client(msgspec.Struct):
    client: str
    ref: int
    refused: msgspec.Raw
    at: int


class _Record(msgspec.Struct, omit_defaults=True):
    part: str
    key: str
    # Missing if the record is deleted.
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Write(msgspec.Struct, omit_defaults=True):
    """A `Write` without its key, which the line has, and its fence."""

    epoch: str
    version: int
    after: int | None = None
    changes: list[_Change] = []
    snapshots: list[_Snapshot] = []
    prune: Prune | None = None
    clients: list[_Client] = []
    state_version: int | None = None
    secret: bytes = b""
    records: list[_Record] = []
    due: int | None = None
    created_at: int = 0
    user: str | None = None
    begins_at: int = 0
    changed_at: int | None = None
    is_deletion: bool = False


class Line(msgspec.Struct):
    """What was written to a thread at once."""

    kind: str
    name: str
    # Counts the lines of a thread. Those that its snapshot has are left out when the log is read.
    number: int
    # The time, in microseconds since the epoch.
    at: int
    writes: list[_Write]

    @property
    def key(self) -> ThreadKey:
        """The thread."""
        return ThreadKey(self.kind, self.name)

    def decode(self) -> list[Write]:
        """Return the writes, without a fence. Raises ValidationError."""
        return [_decode_write(self.key, each) for each in self.writes]


_ROWS: Final = ("changes", "snapshots", "clients", "records")
_PLAIN: Final = tuple(name for name in _Write.__struct_fields__ if name not in _ROWS)


def encode_line(key: ThreadKey, number: int, at: int, writes: Sequence[Write]) -> bytes:
    """Return a line, without its end. Raises UNENCODABLE."""
    return msgspec.json.encode(Line(*key, number, at, [_encode_write(each) for each in writes]))


def decode_line(line: bytes) -> Line:
    """Raises StoreError."""
    try:
        return msgspec.json.decode(line, type=Line)
    except NOT_JSON as error:
        raise StoreError(str(error)) from error


def encode_value(value: bytes) -> msgspec.Raw:
    """Return JSON that `decode_value` takes, whatever the bytes are."""
    try:
        check_json(_OPENING + value + _CLOSING)
        is_json = msgspec.json.format(value, indent=-1) == value and not value.startswith(_OTHER)
    except NOT_JSON:
        is_json = False
    return msgspec.Raw(value if is_json else msgspec.json.encode({"base64": value}))


def decode_value(value: msgspec.Raw) -> bytes:
    """Return the bytes. Raises ValidationError."""
    compact = msgspec.json.format(bytes(value), indent=-1)
    if not compact.startswith(_OTHER):
        return compact
    return msgspec.json.decode(compact, type=dict[str, bytes])["base64"]


def _encode_write(write: Write) -> _Write:
    return _Write(
        **{name: getattr(write, name) for name in _PLAIN},
        changes=[_Change(row.version, encode_value(row.ops), row.source, row.at) for row in write.changes],
        snapshots=[_Snapshot(row.version, encode_value(row.state)) for row in write.snapshots],
        clients=[_Client(row.client, row.ref, encode_value(row.refused), row.at) for row in write.clients],
        records=[
            _Record(row.part, row.key, msgspec.UNSET if row.value is None else encode_value(row.value))
            for row in write.records
        ],
    )


def _decode_write(key: ThreadKey, write: _Write) -> Write:
    return Write(
        key=key,
        **{name: getattr(write, name) for name in _PLAIN},
        changes=[ChangeRow(row.version, decode_value(row.ops), row.source, row.at) for row in write.changes],
        snapshots=[Snapshot(row.version, decode_value(row.state)) for row in write.snapshots],
        clients=[ClientRow(row.client, row.ref, decode_value(row.refused), row.at) for row in write.clients],
        records=[
            Record(row.part, row.key, None if row.value is msgspec.UNSET else decode_value(row.value))
            for row in write.records
        ],
    )
