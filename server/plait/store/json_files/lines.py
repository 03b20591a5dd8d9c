"""The lines of a thread's files: each has what was written at once, as JSON that people can read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from plait.errors import StoreError
from plait.store.format import check_format
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, ClientRow, Prune, Record, Snapshot, ThreadKey
from plait_schemas.codec import NOT_JSON, check_json, decode_json

__all__ = ["Line", "decode_line", "decode_value", "encode_line", "encode_value"]

# A value that is JSON is stored as it is, and all others as the only member of an object, in base64.
_OTHER: Final = b'{"base64":'
_NULL: Final = b"null"
# A value is nested in a line, so it must be readable inside of more brackets than a line has.
_OPENING: Final = b"[" * 32
_CLOSING: Final = b"]" * 32

# The format of lines; one that does not tell it has format 1.
_FORMAT: Final = 1

_Object = Mapping[str, msgspec.Raw]

# The members that a line has of each type, if they differ from these values. The line itself has the key of its writes.
_DEFAULTS: Final = {
    each: {field.name: field.default for field in msgspec.structs.fields(each)}
    for each in (Write, ChangeRow, ClientRow, Prune, Record, Snapshot)
}
del _DEFAULTS[Write]["key"], _DEFAULTS[Write]["fence"]


class Line(msgspec.Struct):
    """The writes to a thread that were stored at once."""

    kind: str
    name: str
    # Counts the lines of a thread. Those that its snapshot has are left out when the log is read.
    number: int
    # The time, in microseconds since the epoch.
    at: int
    writes: list[_Object]
    format: int = 1

    @property
    def key(self) -> ThreadKey:
        """The thread."""
        return ThreadKey(self.kind, self.name)

    def decode(self) -> list[Write]:
        """Return the writes, without a fence. Raises ValidationError."""
        return [msgspec.convert({"key": self.key, **_decode(each)}, Write) for each in self.writes]


def encode_line(key: ThreadKey, number: int, at: int, writes: Sequence[Write]) -> bytes:
    """Return a line, without its end. Raises UNENCODABLE."""
    line = {"kind": key.kind, "name": key.name, "number": number, "at": at, "writes": _encode(writes)}
    return msgspec.json.encode(line)


def decode_line(line: bytes) -> Line:
    """Raises StoreError."""
    try:
        found = msgspec.json.decode(line, type=Line)
    except NOT_JSON as error:
        raise StoreError(str(error)) from error
    check_format(found.format, _FORMAT)
    return found


def encode_value(value: bytes) -> msgspec.Raw:
    """Return JSON that `decode_value` takes, whatever the bytes are. It is never null."""
    try:
        check_json(_OPENING + value + _CLOSING)
        is_json = msgspec.json.format(value, indent=-1) == value and value != _NULL and not value.startswith(_OTHER)
    except NOT_JSON:
        is_json = False
    return msgspec.Raw(value if is_json else msgspec.json.encode({"base64": value}))


def decode_value(value: msgspec.Raw) -> bytes | None:
    """Return the bytes; None of null. Raises ValidationError."""
    compact = msgspec.json.format(bytes(value), indent=-1)
    if compact.startswith(_OTHER):
        return msgspec.json.decode(compact, type=dict[str, bytes])["base64"]
    return None if compact == _NULL else compact


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return encode_value(value)
    if isinstance(value, list | tuple):
        return [_encode(each) for each in value]
    if (defaults := _DEFAULTS.get(type(value))) is None:
        return value
    found = {}
    for name, default in defaults.items():
        member = getattr(value, name)
        if member is not default and member not in (default, []):
            found[name] = _encode(member)
    return found


def _decode(members: _Object) -> dict[str, Any]:
    return {name: _DECODERS.get(name, decode_json)(value) for name, value in members.items()}


def _decode_rows(value: msgspec.Raw) -> list[dict[str, Any]]:
    return [_decode(row) for row in msgspec.json.decode(value, type=list[_Object])]


_DECODERS: Final[dict[str, Callable[[msgspec.Raw], Any]]] = {
    **dict.fromkeys(("changes", "snapshots", "clients", "records"), _decode_rows),
    **dict.fromkeys(("ops", "state", "refused", "value", "secret"), decode_value),
}
