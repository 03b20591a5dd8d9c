"""Checks the names and sizes of records."""

import re
from typing import Final

from plait.errors import TooLarge
from plait.limits import Limits
from plait.store.thread_rows import Record

__all__ = ["check_record", "is_key"]

_PART: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# Control characters, and halves of surrogate pairs.
_ODD: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_KEY_BYTES: Final = 512


def is_key(key: str) -> bool:
    """Whether a record can have a key."""
    return 0 < len(key) <= _KEY_BYTES and not _ODD.search(key) and len(key.encode()) <= _KEY_BYTES


def check_record(record: Record, limits: Limits) -> None:
    """Raise TypeError or ValueError for an invalid part, key or value, and TooLarge for a value over the limit."""
    part, key, value = record.part, record.key, record.value
    if not isinstance(part, str) or not isinstance(key, str):
        raise TypeError(f"the part and the key of a record must be str, not {part!r} and {key!r}")
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"the value of the record {key!r} of {part} must be bytes, not {type(value).__name__}")
    if not _PART.fullmatch(part):
        raise ValueError(f"the part of a record must match {_PART.pattern}, not {part!r}")
    if not key:
        raise ValueError(f"the key of a record of {part} is empty")
    if _ODD.search(key):
        raise ValueError(f"the key of a record of {part} has a control character or half of a surrogate pair: {key!r}")
    if (size := len(key.encode())) > _KEY_BYTES:
        raise ValueError(f"the key of a record of {part} has {size} bytes of UTF-8; at most {_KEY_BYTES} are allowed")
    if value is not None and len(value) > limits.record:
        raise TooLarge(f"the record {key!r} of {part} has {len(value)} bytes; the limit is {limits.record}")
