"""Differences between two JSON texts, found without decoding what is the same in both.

Texts are taken apart a level at a time, into members that are still texts, and only those that differ are looked into.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from plait_schemas.codec import decode_json, encode_json
from plait_schemas.patch import BoundedOps, Op, TooManyOps, escape

__all__ = ["Read", "TextDiff"]

Read = Callable[[bytes, str], Any]
"""Decodes a text that is new, at a JSON pointer; raises what it likes when the text is not to be had."""

_Members = Mapping[str, bytes]

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

# Texts shorter than this are taken apart anew each time.
_WORTH_KEEPING: Final = 4096


class TextDiff:
    """Compares each text of a sequence with the one before, and keeps how the last one came apart."""

    __slots__ = ("_kept", "_known")

    def __init__(self) -> None:
        # By JSON pointer: a text, and its members or elements. What was known of the last text, and is of this one.
        self._known: dict[str, tuple[bytes, Any]] = {}
        self._kept: dict[str, tuple[bytes, Any]] = {}

    def diff(self, old: bytes, new: bytes, read: Read, *, most: int | None = None) -> list[Op]:
        """Return the operations that turn the JSON text `old` into `new`; none when both say the same.

        Where they would be more than `most`, it is one operation that replaces all.

        `old` is JSON. Every part of `new` that is not in `old` to the letter goes through `read`, so that if `old`
        is good throughout, `new` is. Raises msgspec.DecodeError when `new` has no outline of JSON.
        """
        self._known, self._kept = self._kept, {}
        # Each difference has a character or more of its own, in one of both.
        ops: list[Op] = [] if most is None or len(old) + len(new) <= most else BoundedOps(most)
        try:
            self._diff(old, new, "", read, ops)
        except TooManyOps:
            return [Op("replace", "", read(new, ""))]
        finally:
            self._known = {}
        return ops

    def _diff(self, old: bytes, new: bytes, path: str, read: Read, ops: list[Op]) -> None:
        if old == new:
            return
        match old[:1] + new[:1]:
            case b"{{":
                members = self._new(new, path, _objects)
                if _may_have_doubles(new, members):
                    # Nobody would look at the first of two members of one name.
                    read(new, path)
                self._diff_objects(self._old(old, path, _objects), members, path, read, ops)
            case b"[[":
                self._diff_arrays(self._old(old, path, _arrays), self._new(new, path, _arrays), path, read, ops)
            case _:
                value = read(new, path)
                if encode_json(value) != encode_json(decode_json(old)):
                    ops.append(Op("replace", path, value))

    def _old(self, text: bytes, path: str, split: Callable[[bytes], Any]) -> Any:
        known = self._known.get(path)
        return known[1] if known is not None and known[0] == text else split(text)

    def _new(self, text: bytes, path: str, split: Callable[[bytes], Any]) -> Any:
        parts = split(text)
        if len(text) >= _WORTH_KEEPING:
            self._kept[path] = (text, parts)
        return parts

    def _diff_objects(self, old: _Members, new: _Members, path: str, read: Read, ops: list[Op]) -> None:
        if not old.keys() <= new.keys():
            ops.extend(Op("remove", f"{path}/{escape(key)}") for key in old if key not in new)
        for key, text in new.items():
            before = old.get(key)
            if before is None:
                ops.append(Op("add", at := f"{path}/{escape(key)}", read(text, at)))
            elif before != text:
                self._diff(before, text, f"{path}/{escape(key)}", read, ops)

    def _diff_arrays(self, old: Sequence[bytes], new: Sequence[bytes], path: str, read: Read, ops: list[Op]) -> None:
        start, end = 0, min(len(old), len(new))
        while start < end and old[start] == new[start]:
            start += 1
        tail = 0
        while tail < end - start and old[-1 - tail] == new[-1 - tail]:
            tail += 1
        both = end - tail
        for index in range(start, both):
            self._diff(old[index], new[index], f"{path}/{index}", read, ops)
        if both < len(old) - tail:
            ops.extend(Op("remove", f"{path}/{index}") for index in range(len(old) - tail - 1, both - 1, -1))
        elif both < len(new) - tail:
            places = ((index, f"{path}/{index}") for index in range(both, len(new) - tail))
            ops.extend(Op("add", place, read(new[index], place)) for index, place in places)


def _objects(text: bytes) -> dict[str, bytes]:
    return {key: bytes(member) for key, member in _members(text).items()}


def _may_have_doubles(text: bytes, members: _Members) -> bool:
    """Tell whether the text of an object may have a member twice: it is longer than its members."""
    if len(text) == _length(members):
        return False
    compact = msgspec.json.format(text, indent=-1)
    return len(compact) != _length(_objects(compact))


def _length(members: _Members) -> int:
    return sum(map(len, members.values())) + len(encode_json(list(members))) + len(members)


def _arrays(text: bytes) -> list[bytes]:
    return list(map(bytes, _elements(text)))
