"""What can be done to the values of a thread, as operations that can be carried out on what is stored later."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from plait_schemas.codec import UNENCODABLE, decode_json, encode_json, has_non_finite

__all__ = ["Clear", "Delete", "Items", "Op", "Push", "Set", "Update", "call_change", "encode_key", "encode_named"]

Items = dict[str, msgspec.Raw]
"""The values as JSON, by keys."""

_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Set(NamedTuple):
    """Sets a value."""

    key: str
    value: msgspec.Raw

    def apply(self, items: Items) -> None:
        items[self.key] = self.value


class Delete(NamedTuple):
    """Removes a key."""

    key: str

    def apply(self, items: Items) -> None:
        items.pop(self.key, None)


class Clear(NamedTuple):
    """Removes all keys."""

    def apply(self, items: Items) -> None:
        items.clear()


class Push(NamedTuple):
    """Appends to a list, of which the last `most` elements stay."""

    key: str
    value: msgspec.Raw
    most: int | None

    def apply(self, items: Items) -> None:
        before = bytes(items.get(self.key, b"[]"))
        if not before.startswith(b"["):
            raise TypeError(f"the value {self.key!r} is no list, so nothing can be pushed to it")
        if self.most is None:
            comma = b"" if before == b"[]" else b","
            items[self.key] = msgspec.Raw(b"%b%b%b]" % (before[:-1], comma, bytes(self.value)))
        else:
            kept = [*_decode_list(before), self.value][-self.most :]
            items[self.key] = msgspec.Raw(encode_json(kept))


class Update(NamedTuple):
    """Sets a value to what a function made of the one before, or makes of another one that it meets."""

    key: str
    change: Callable[[Any], Any]
    default: Any
    # The value before, None if there was none, and what the function made of it.
    before: bytes | None
    value: msgspec.Raw

    def apply(self, items: Items) -> None:
        before = items.get(self.key)
        if (None if before is None else bytes(before)) == self.before:
            items[self.key] = self.value
        else:
            items[self.key] = encode_named(self.key, call_change(self.change, before, self.default))


Op = Set | Delete | Clear | Push | Update


def call_change(change: Callable[[Any], Any], before: msgspec.Raw | None, default: Any) -> Any:
    """Return what the function of an update makes of a value, or of the default."""
    if before is not None:
        return change(decode_json(bytes(before)))
    # The function may change it in place, and be called again.
    return change(copy.deepcopy(default) if isinstance(default, list | dict) else default)


def encode_key(key: str) -> str:
    """Return a key if it can be one. Raises TypeError or ValueError."""
    if not isinstance(key, str):
        raise TypeError(f"a key must be a str, not {key!r}")
    encode_named(key, key)
    return key


def encode_named(key: str, value: object) -> msgspec.Raw:
    """Return a value as JSON. Raises TypeError or ValueError that names the key."""
    try:
        data = encode_json(value)
    except UNENCODABLE as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"the value {key!r} is not JSON: {error}") from None
    if b"null" in data and has_non_finite(value):
        raise ValueError(f"the value {key!r} is not JSON: it has a number that is infinite or not a number")
    return msgspec.Raw(data)
