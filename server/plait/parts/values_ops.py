"""Operations on the values of a thread, which can be carried out later on the values that are then stored."""

import copy
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from plait.parts.encoding import encode_named
from plait.parts.values_edit import ValuesEdit
from plait_schemas.codec import decode_json

__all__ = [
    "Clear",
    "Delete",
    "Op",
    "Push",
    "Set",
    "SetMetadata",
    "Update",
    "call_change",
    "must_precede",
]

_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


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
        # A list has at most one element more than commas; to split a long one takes time.
        if self.most is not None and before.count(b",") + 1 >= self.most:
            kept = [*_split(before), msgspec.Raw(self.value)][-self.most :]
            return b"[%b]" % b",".join(kept)
        elements = before[1:-1].strip()
        return b"[%b%b%b]" % (elements, b"," if elements else b"", self.value)


class Update(NamedTuple):
    """Sets a value to the result of a function; it is called again if the value is not the one before."""

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
