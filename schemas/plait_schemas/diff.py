"""Differences between two states, as JSON Patch operations.

`diff` compares states as the JSON that they are encoded to: a Struct is an object of its encoded fields, a tuple an
array. It does not look into parts that are the same object on both sides, or that compare equal in C.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count, islice, repeat
from operator import eq, is_, is_not, not_
from typing import Any, Final

import msgspec

from plait_schemas.align import Budget, edits
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.elements import Id, Keys, has_repeated, id_of, ids_of
from plait_schemas.likeness import (
    NUMBERS,
    SCALARS,
    canonical,
    is_same_element,
    is_same_json,
    members_of,
    outline,
    shares_ids,
)
from plait_schemas.patch import Op, escape, splices
from plait_schemas.text_diff import TextComparison

__all__ = ["MOST_OPS", "BoundedOps", "TooManyOps", "diff", "replace"]

MOST_OPS: Final = 4_000
"""The most operations of a push; a diff with more replaces the whole state, which holds the loop for a shorter time."""

_MOST_ELEMENTS: Final = 200_000
"""Lists with more elements, both together, are not compared: the new one replaces the old one."""

_MOST_LOOKED_INTO: Final = 10_000
"""The most differences that a diff with a limit looks into, even if few operations result."""


_FEW_MEMBERS: Final = 100
"""Objects with more members are compared at once, before their members are looked into."""


class _Comparison:
    """Which strings of two whole states are texts, and the budgets, which are made when they are needed."""

    __slots__ = ("_by_letters", "_lists", "_texts", "keys")

    def __init__(self, keys: Keys | None, by_letters: bool) -> None:
        self.keys = keys
        self._by_letters = by_letters
        self._texts: TextComparison | None = None
        self._lists: Budget | None = None

    @property
    def texts(self) -> TextComparison:
        """The budget that is left for comparing texts."""
        if self._texts is None:
            self._texts = TextComparison(by_letters=self._by_letters)
        return self._texts

    @property
    def lists(self) -> Budget:
        """The budget that is left for aligning lists."""
        if self._lists is None:
            self._lists = Budget()
        return self._lists


def diff(
    old: object,
    new: object,
    keys: Keys | None = None,
    *,
    path: str = "",
    most: int | None = None,
    by_letters: bool = False,
) -> list[Op]:
    """Return the operations that turn `old` into `new`; none when both encode to the same JSON.

    The elements of lists are told apart by identity (see `align`). `keys` says which members identify them, if those
    are not the usual ones, and which strings are texts, which are compared by their characters. If there would be more
    than `most` operations, the result is one that replaces the whole. `path` is the place of both states in a larger
    one. With `by_letters`, changes of texts are the smallest ones (see `TextComparison`).
    """
    ops = BoundedOps(most)
    try:
        _diff(old, new, path, ops, _Comparison(keys, by_letters))
    except TooManyOps:
        return [Op("replace", path, new)]
    return ops


class TooManyOps(Exception):
    """There are more operations than the limit: replace the whole instead."""


class BoundedOps(list[Op]):
    """A list of operations that raises TooManyOps rather than growing beyond `most`."""

    __slots__ = ("_most", "left")

    def __init__(self, most: int | None) -> None:
        self._most: float = math.inf if most is None else most
        # The number of differences that may still be searched; those on the way to a deep operation count, too.
        self.left = sys.maxsize if most is None else _MOST_LOOKED_INTO

    def expect(self, count: int) -> None:
        """Count differences that are to be looked into. Raises TooManyOps if they exceed the limit."""
        self.left -= count
        if len(self) + count > self._most or self.left < 0:
            raise TooManyOps

    def append(self, op: Op) -> None:
        if len(self) == self._most:
            raise TooManyOps
        list.append(self, op)

    def extend(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self.append(op)


def _diff(old: Any, new: Any, path: str, ops: BoundedOps, how: _Comparison) -> None:
    if is_same_json(old, new):
        return
    ops.expect(1)
    if type(old) in SCALARS or type(new) in SCALARS:
        if type(new) is str:
            ops.extend(replace(old, new, path, how.keys, how.texts))
        else:
            ops.append(Op("replace", path, new))
        return
    match members_of(old), members_of(new):
        case dict() as before, dict() as after:
            _diff_objects(before, after, path, ops, how)
        case list() | tuple() as before, list() | tuple() as after if len(before) + len(after) <= _MOST_ELEMENTS:
            _diff_arrays(before, after, path, ops, how)
        case _:
            ops.extend(replace(old, new, path, how.keys, how.texts))


def replace(old: Any, new: Any, path: str, keys: Keys | None, texts: TextComparison | None = None) -> list[Op]:
    """Return the operations that replace one value by another; in a text, only the differences."""
    if keys is not None and isinstance(old, str) and isinstance(new, str) and keys.has_text(path):
        return splices(path, (texts or TextComparison()).compare(old, new))
    return [Op("replace", path, new)]


def _diff_objects(old: Mapping[Any, Any], new: Mapping[Any, Any], path: str, ops: BoundedOps, how: _Comparison) -> None:
    if not old.keys() <= new.keys():
        ops.extend(Op("remove", f"{path}/{_part(key)}") for key in old if key not in new)
    changed = new.items() if len(new) <= _FEW_MEMBERS else _find_changed_members(old, new, ops.left)
    for key, value in changed:
        if key not in old:
            ops.append(Op("add", f"{path}/{_part(key)}", value))
        elif old[key] is not value:
            _diff(old[key], value, f"{path}/{_part(key)}", ops, how)


def _find_changed_members(old: Mapping[Any, Any], new: Mapping[Any, Any], most: int) -> Iterable[tuple[Any, Any]]:
    """Return the members of a large object that may differ; equal values are compared all at once.

    Raises TooManyOps if they are more than `most`.
    """
    before, after = list(map(old.get, new, repeat(msgspec.UNSET))), list(new.values())
    differs = bytes(map(is_not, before, after))
    members = compress(new.items(), differs)
    if differs.count(True) <= _FEW_MEMBERS:
        return members
    before, after = list(compress(before, differs)), list(compress(after, differs))
    if (alike := _find_alike(before, after, most)) is None:
        raise TooManyOps
    if encode_json(list(compress(before, alike))) == encode_json(list(compress(after, alike))):
        return compress(members, map(not_, alike))
    if len(alike) > most:
        raise TooManyOps
    return members


def _part(key: object) -> str:
    """Return the key of a dict, encoded as in JSON, as a part of a pointer."""
    if not isinstance(key, str):
        (key,) = decode_json(encode_json({key: None}))
    return escape(str(key))


def _diff_arrays(old: Sequence[Any], new: Sequence[Any], path: str, ops: BoundedOps, how: _Comparison) -> None:
    start = _common(old, new)
    tail = _common(old[start:][::-1], new[start:][::-1])
    if start + tail == len(old):
        ops.extend(Op("add", f"{path}/{index}", new[index]) for index in range(start, len(new) - tail))
        return
    if start + tail == len(new):
        ops.extend(Op("remove", f"{path}/{index}") for index in range(len(old) - tail - 1, start - 1, -1))
        return
    key = None if how.keys is None else how.keys.at(path)
    if start + tail + 1 == len(old) == len(new):
        before, after = old[start], new[start]
        if type(before) in NUMBERS and type(after) in NUMBERS:
            ops.append(Op("replace", f"{path}/{start}", after))
            return
        id = id_of(before, key)
        if id is not None and id == id_of(after, key):
            _diff(before, after, f"{path}/{start}", ops, how)
            return
    found = edits(_Lists(old, new, start, tail, key), start + tail, how.lists)
    if found is None:
        ops.append(Op("replace", path, new))
        return
    for kind, index, at, to in found:
        place = f"{path}/{start + index}"
        if kind == "change":
            _diff(old[start + at], new[start + to], place, ops, how)
        elif kind == "remove" or kind == "out":  # noqa: PLR1714 (mypy knows by it what else there is)
            ops.append(Op("remove", place))
        elif kind == "in":
            ops.append(Op("add", place, old[start + at], moved=True))
        elif kind == "replace":
            ops.extend(replace(old[start + at], new[start + to], place, how.keys, how.texts))
        else:
            ops.append(Op("add", place, new[start + to]))


# The elements of lists


class _Lists:
    """Two lists without their common beginning and end."""

    __slots__ = ("_ids", "_key", "_lists", "_new", "_old", "_repeats")

    def __init__(self, old: Sequence[Any], new: Sequence[Any], start: int, tail: int, key: str | None) -> None:
        self._lists = old, new
        self._old = old[start : len(old) - tail]
        self._new = new[start : len(new) - tail]
        self._repeats: bool | None = None
        self._key = key
        self._ids: tuple[list[Id | None], list[Id | None]] | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self._old), len(self._new)

    @property
    def ids(self) -> tuple[list[Id | None], list[Id | None]]:
        if self._ids is None:
            self._ids = ids_of(self._old, self._key), ids_of(self._new, self._key)
        return self._ids

    def id_at(self, place: int) -> tuple[Id | None, Id | None]:
        return id_of(self._old[place], self._key), id_of(self._new[place], self._key)

    def find_different(self, most: int) -> list[int] | None:
        old, new = self._old, self._new
        if (alike := _find_alike(old, new, most)) is None:
            return None
        if encode_json(list(compress(old, alike))) == encode_json(list(compress(new, alike))):
            return [at for at, is_alike in enumerate(alike) if not is_alike]
        found = [at for at, is_alike in enumerate(alike) if not (is_alike and is_same_json(old[at], new[at]))]
        return found if len(found) <= most else None

    def old_name(self, index: int) -> bytes:
        return canonical(self._old[index])

    def new_name(self, index: int) -> bytes:
        return canonical(self._new[index])

    def find_changed(self, pairs: Sequence[tuple[int, int]]) -> set[int]:
        others = [(at, to) for at, to in pairs if self._old[at] is not self._new[to]]
        old, new = [self._old[at] for at, _ in others], [self._new[to] for _, to in others]
        alike = list(map(bool, map(eq, old, new)))
        found = {at for (at, _), is_alike in zip(others, alike, strict=True) if not is_alike}
        if encode_json(list(compress(old, alike))) != encode_json(list(compress(new, alike))):
            found |= {at for at, to in compress(others, alike) if not is_same_json(self._old[at], self._new[to])}
        return found

    def is_same(self, old: int, new: int) -> bool:
        return is_same_element(self._old[old], self._new[new])

    def outlines(self, old: Sequence[int], new: Sequence[int]) -> tuple[list[bytes | None], list[bytes | None]]:
        return [outline(self._old[at]) for at in old], [outline(self._new[at]) for at in new]

    def shares_ids(self, old: int, new: int) -> bool:
        return shares_ids(self._old[old], self._new[new])

    def repeats(self) -> bool:
        if self._repeats is None:
            self._repeats = any(map(_repeats, self._lists))
        return self._repeats


def _repeats(elements: Sequence[Any]) -> bool:
    kinds = set(map(type, elements))
    if len(kinds) == 1 and kinds <= SCALARS:
        return has_repeated(elements)
    return has_repeated(list(map(canonical, elements)))


# Equal values


def _find_alike(old: Sequence[Any], new: Sequence[Any], most: int) -> Sequence[int] | None:
    """Tell of each pair of values whether they are equal in Python; None if more than `most` are not."""
    unlike = list(islice(compress(count(), map(not_, map(eq, old, new))), min(most, len(old)) + 1))
    if len(unlike) > most:
        return None
    alike = bytearray(b"\1") * len(old)
    for at in unlike:
        alike[at] = False
    return alike


def _common(old: Sequence[Any], new: Sequence[Any]) -> int:
    """Return the length of the common beginning; identical objects cost next to nothing."""
    identical = bytes(map(is_, old, new))
    alike: list[int] = []
    count = 0
    while (count := identical.find(0, count)) >= 0 and _is_alike(old[count], new[count]):
        alike.append(count)
        count += 1
    if alike and encode_json([old[at] for at in alike]) != encode_json([new[at] for at in alike]):
        return next((at for at in alike if not is_same_json(old[at], new[at])), count if count >= 0 else len(identical))
    return len(identical) if count < 0 else count


def _is_alike(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and bool(old == new))
