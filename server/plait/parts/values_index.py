"""The records of the values of a thread: their keys, and their index."""

from typing import Any, Final

import msgspec

from plait.errors import CorruptThread
from plait.parts.value_pieces import Piece, Value
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = [
    "HEAD",
    "INDEX",
    "METADATA",
    "VALUES",
    "decode_index",
    "decode_lines",
    "encode_line",
]

HEAD: Final = "head/"
"""The prefix of the keys of the records that are read on waking."""

METADATA: Final = "head/metadata"
"""The key of the record with the metadata."""

INDEX: Final = "head/keys/"
"""The prefix of the keys of the index records."""

VALUES: Final = "value/"
"""The prefix of the keys of the records that hold the values."""

_NONE: Final = b"{}"

_decode_lines: Final = msgspec.json.Decoder(list[list[Any]]).decode
_split_lines: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def encode_line(key: str, value: Value) -> bytes:
    """Return the line of a key in an index record."""
    if not value.is_list:
        return b"[%d,%b,%d]" % (value.position, encode_json(key), value.size)
    numbers = [value.number, value.skip]
    for piece in value.pieces:
        numbers += (piece.count, piece.size)
    return b"[%d,%b,%b]" % (value.position, encode_json(key), ",".join(map(str, numbers)).encode())


def decode_lines(data: bytes) -> dict[str, bytes]:
    """Return the lines of an index record by their keys."""
    return {line[1]: bytes(raw) for line, raw in zip(_decode_lines(data), _split_lines(data), strict=True)}


def decode_index(part: str, record: Record) -> dict[str, Value]:
    """Return the values that an index record lists, in order, with unknown pieces. Raises CorruptThread."""
    found: dict[str, Value] = {}
    try:
        for position, key, *numbers in sorted(_decode_lines(record.value or b"")):
            if len(numbers) == 1:
                found[key] = Value((Piece(1, numbers[0]),), numbers[0], position=position)
            else:
                number, skip, *sizes = numbers
                pieces = [Piece(count, size) for count, size in zip(sizes[::2], sizes[1::2], strict=True)]
                found[key] = Value.make_list(pieces, position=position, number=number, skip=skip)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise CorruptThread(f"the {part} of a thread are damaged") from error
    return found
