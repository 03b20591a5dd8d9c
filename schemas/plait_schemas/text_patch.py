"""Differences between two JSON texts, found without decoding what is the same in both.

Texts are taken apart a level at a time, into members that are still texts, and only those that differ are looked into.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from plait_schemas.codec import decode_json, encode_json
from plait_schemas.patch import Op, escape

__all__ = ["Read", "diff_texts"]

Read = Callable[[bytes, str], Any]
"""Decodes a text that is new, at a JSON pointer; raises what it likes when the text is not to be had."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def diff_texts(old: bytes, new: bytes, read: Read) -> list[Op]:
    """Return the operations that turn the JSON text `old` into `new`; none when both say the same.

    `old` is JSON. Of `new` the outline is JSON, as msgspec.Raw checks it; every part that is not in `old` to the
    letter goes through `read`, so that if `old` is good throughout, `new` is afterwards.
    """
    ops: list[Op] = []
    _diff(old, new, "", read, ops)
    return ops


def _diff(old: bytes, new: bytes, path: str, read: Read, ops: list[Op]) -> None:
    if old == new:
        return
    match old[:1] + new[:1]:
        case b"{{":
            _diff_objects(_members(old), _members(new), path, read, ops)
        case b"[[":
            _diff_arrays(_texts(old), _texts(new), path, read, ops)
        case _:
            value = read(new, path)
            if encode_json(value) != encode_json(decode_json(old)):
                ops.append(Op("replace", path, value))


def _diff_objects(
    old: Mapping[str, msgspec.Raw], new: Mapping[str, msgspec.Raw], path: str, read: Read, ops: list[Op]
) -> None:
    ops += [Op("remove", f"{path}/{escape(key)}") for key in old if key not in new]
    for key, text in new.items():
        before = old.get(key)
        if before is None:
            ops.append(Op("add", at := f"{path}/{escape(key)}", read(bytes(text), at)))
        elif before != text:
            _diff(bytes(before), bytes(text), f"{path}/{escape(key)}", read, ops)


def _diff_arrays(old: Sequence[bytes], new: Sequence[bytes], path: str, read: Read, ops: list[Op]) -> None:
    start, end = 0, min(len(old), len(new))
    while start < end and old[start] == new[start]:
        start += 1
    tail = 0
    while tail < end - start and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    both = end - tail
    for index in range(start, both):
        _diff(old[index], new[index], f"{path}/{index}", read, ops)
    ops += [Op("remove", f"{path}/{index}") for index in range(len(old) - tail - 1, both - 1, -1)]
    ops += [Op("add", at := f"{path}/{index}", read(new[index], at)) for index in range(both, len(new) - tail)]


def _texts(array: bytes) -> list[bytes]:
    return list(map(bytes, _elements(array)))
