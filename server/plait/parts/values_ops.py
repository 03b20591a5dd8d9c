"""Operations on the values of a thread, which can be carried out later on the values that are then stored."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from plait.parts.encoding import encode_named
from plait_schemas.codec import decode_json, encode_json

__all__ = [
    "Clear",
    "Delete",
    "Op",
    "Push",
    "Set",
    "SetMetadata",
    "Update",
    "ValuesEdit",
    "call_change",
    "measure",
    "must_precede",
]

_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def measure(key: str, value: bytes) -> int:
    """Return the bytes that a key and its value add to all values as JSON."""
    return len(encode_json(key)) + len(value) + 2


class ValuesEdit:
    """The values after some operations: unshared changes, on top of values that they do not change."""

    __slots__ = ("__weakref__", "added", "base", "is_cleared", "metadata", "replaced", "total")

    def __init__(self, base: Mapping[str, bytes], total: int) -> None:
        self.base = base
        # The sum of the sizes of all values by `measure`.
        self.total = total
        # Whether all keys of the base were removed.
        self.is_cleared = False
        # The new values of keys of the base, None for removed ones; and the added keys, in order of insertion.
        self.replaced: dict[str, bytes | None] = {}
        self.added: dict[str, bytes] = {}
        # The new metadata; None if it does not change.
        self.metadata: bytes | None = None

    def find(self, key: str) -> bytes | None:
        """Return the value of a key; None if there is none."""
        if (found := self.added.get(key)) is not None:
            return found
        if key in self.replaced:
            return self.replaced[key]
        return None if self.is_cleared else self.base.get(key)

    def items(self) -> list[tuple[str, bytes]]:
        """Return the keys and their values, in order of insertion."""
        base = {} if self.is_cleared else {**self.base, **self.replaced}
        return [*((key, value) for key, value in base.items() if value is not None), *self.added.items()]

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        before = self.find(key)
        self.total += measure(key, value) - (0 if before is None else measure(key, before))
        if before is None or key in self.added:
            self.added[key] = value
        else:
            self.replaced[key] = value

    def remove(self, key: str) -> None:
        """Remove a key, if it is there."""
        if (before := self.find(key)) is not None:
            self.total -= measure(key, before)
            if self.added.pop(key, None) is None:
                self.replaced[key] = None

    def clear(self) -> None:
        """Remove all keys."""
        self.is_cleared, self.total = True, 0
        self.added, self.replaced = {}, {}


class Set(NamedTuple):
    """Sets a value."""

    key: str
    value: bytes

    def apply(self, edit: ValuesEdit) -> None:
        edit.put(self.key, self.value)


class Delete(NamedTuple):
    """Removes a key."""

    key: str

    def apply(self, edit: ValuesEdit) -> None:
        edit.remove(self.key)


class Clear(NamedTuple):
    """Removes all keys."""

    def apply(self, edit: ValuesEdit) -> None:
        edit.clear()


class Push(NamedTuple):
    """Appends to a list, and keeps its last `most` elements."""

    key: str
    value: bytes
    most: int | None

    def apply(self, edit: ValuesEdit) -> None:
        edit.put(self.key, self.append(edit.find(self.key) or b"[]"))

    def append(self, before: bytes) -> bytes:
        """Return a list as JSON with the element. Raises TypeError for a value that is no list."""
        before = before.strip()  # A msgspec.Raw may have blanks, as between the brackets.
        if not before.startswith(b"["):
            raise TypeError(f"the value {self.key!r} is not a list, so nothing can be pushed to it")
        # A list has at most one more element than it has commas; splitting a long list takes time.
        if self.most is not None and before.count(b",") + 1 >= self.most:
            kept = [*_split(before), msgspec.Raw(self.value)][-self.most :]
            return b"[%b]" % b",".join(kept)
        elements = before[1:-1].strip()
        return b"[%b%b%b]" % (elements, b"," if elements else b"", self.value)


class Update(NamedTuple):
    """Sets a value to the result of a function; the function is called again if the value has changed in between."""

    key: str
    change: Callable[[Any], Any]
    default: Any
    # The value before, None if there was none, and the result of the function.
    before: bytes | None
    value: bytes

    def apply(self, edit: ValuesEdit) -> None:
        before, value = edit.find(self.key), self.value
        if before != self.before:
            value = encode_named(self.key, call_change(self.change, before, self.default))
        edit.put(self.key, value)


class SetMetadata(NamedTuple):
    """Replaces the metadata."""

    value: bytes

    def apply(self, edit: ValuesEdit) -> None:
        edit.metadata = self.value


Op = Set | Delete | Clear | Push | Update | SetMetadata


def must_precede(before: Op, op: Op) -> bool:
    """Whether an operation must be carried out before a later one."""
    if isinstance(before, SetMetadata) or isinstance(op, SetMetadata):
        return type(before) is type(op)
    return isinstance(before, Clear) or isinstance(op, Clear) or before.key == op.key


def call_change(change: Callable[[Any], Any], before: bytes | None, default: Any) -> Any:
    """Return the result of the function of an update for a value, or for the default."""
    if before is not None:
        return change(decode_json(before))
    # The function may change the default in place, and be called again.
    return change(copy.deepcopy(default) if isinstance(default, list | dict) else default)
