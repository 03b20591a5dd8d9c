"""States and other bodies of up to 1 MB that cost as much to read, compare or merge as their size allows."""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

__all__ = ["SHAPES", "TYPED_SHAPES", "bodies"]

# The limit of a message, less what is around a state in a frame.
SIZE: Final = 1024 * 1024 - 200

Shape = Callable[[int], Any]
"""Returns the value of a state, whose parts differ from those of the previous state."""


def _members(n: int) -> Any:
    return {f"k{i:05d}": (i + n) % 10 for i in range(58_000)}


def _repeated(n: int) -> Any:
    return [(i + n) % 7 for i in range(SIZE // 2 - 5)]


def _pairs(n: int) -> Any:
    return [[(i + n) % 9, i % 9] for i in range(SIZE // 6 - 2)]


def _nested_empties(n: int) -> Any:
    return [[[]] if (i + n) % 2 else [] for i in range(SIZE // 4 - 3)]


def _shuffled_numbers(n: int) -> Any:
    numbers = list(range(150_000))
    random.Random(n).shuffle(numbers)
    return numbers


def _shuffled_rows(n: int) -> Any:
    rows = [{"id": i, "at": i % 9} for i in range(45_000)]
    random.Random(n).shuffle(rows)
    return rows


def _rows_without_ids(n: int) -> Any:
    return [{"at": (i + n) % 9, "to": i} for i in range(4_000)] + ["x" * 200_000]


def _many_lists(n: int) -> Any:
    return {f"k{i}": [(i + j * n) % 9 for j in range(20)] for i in range(20_000)}


def _changed_rows(n: int) -> Any:
    return [{"id": i, "at": (i + n) % 9, "text": "x" * 150} for i in range(4_900)]


def _one_number_lists(n: int) -> Any:
    return {f"k{i}": [(i + n) % 9] for i in range(60_000)}


def _spelled(n: int) -> Any:
    return msgspec.Raw(b"{%b}" % b",".join(b'"k%d":1.%b' % (i, b"0" * (n + 1)) for i in range(60_000)))


def _deep(n: int) -> Any:
    value: Any = n
    for _ in range(61):
        value = [value]
    return [value] * 8_000


def _big_integers(n: int) -> Any:
    return msgspec.Raw(b"[%b]" % b",".join(b"1%04199d" % (n + i) for i in range(240)))


def _small_objects(n: int) -> Any:
    return [{"a": (i + n) % 9} for i in range(SIZE // 8 - 2)]


def _strings(n: int) -> Any:
    return [f"{(i * 7 + n) % 99_991:x}" for i in range(120_000)]


SHAPES: Final[Mapping[str, Shape]] = {
    "members": _members,
    "repeated numbers": _repeated,
    "pairs": _pairs,
    "nested empties": _nested_empties,
    "shuffled numbers": _shuffled_numbers,
    "shuffled rows": _shuffled_rows,
    "rows without ids": _rows_without_ids,
    "many lists": _many_lists,
    "changed rows": _changed_rows,
    "lists of one number": _one_number_lists,
    "numbers spelled otherwise": _spelled,
    "deep": _deep,
    "big integers": _big_integers,
    "small objects": _small_objects,
    "strings": _strings,
}


def _lists_of_one(n: int) -> Any:
    return [[(i + n) % 9] for i in range(174_000)]


def _points(n: int) -> Any:
    return [[13.405 + n, 52.52] for _ in range(58_000)]


def _few_changed_lists(n: int) -> Any:
    return {f"k{i}": [n if i % 1_000 == n else 2] for i in range(60_000)}


TYPED_SHAPES: Final[Mapping[str, Shape]] = {
    "lists of one": _lists_of_one,
    "points": _points,
    "few changed lists": _few_changed_lists,
    **{each: SHAPES[each] for each in ("lists of one number", "many lists", "numbers spelled otherwise")},
}


def bodies(name: str) -> list[bytes]:
    """Return two states of a shape as JSON."""
    found = [b'{"v":%b}' % encode({**SHAPES, **TYPED_SHAPES}[name](n)) for n in range(2)]
    assert all(len(body) <= SIZE for body in found), (name, [len(body) for body in found])
    return found


def encode(value: Any) -> bytes:
    """A value as JSON; a Raw is already JSON."""
    return bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)
