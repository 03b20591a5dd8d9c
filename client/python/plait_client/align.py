"""What others may have done to a state of which only the outcome is known.

`diff` takes the elements of two arrays that are in one place for the same element, changed. That would let a pending
change of one element hit another that has come to be where it was. Here the elements that both arrays have are found
first, objects by their `id` where they have one, and what is between them is taken for changed only where it may be the
same element.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from plait_schemas.patch import Op, diff, escape

__all__ = ["difference", "may_be_same", "name"]

_canonical = msgspec.json.Encoder(order="deterministic").encode

_MOST_STEPS: Final = 1_000_000
"""Arrays that would take more steps than this to compare have nothing in common but their ends."""


class _Gap(NamedTuple):
    """What is between two elements that both arrays have, or before the first, or behind the last."""

    # The index in the old array.
    at: int
    removed: Sequence[Any]
    added: Sequence[Any]


def difference(before: Any, after: Any) -> list[Op]:
    """Return the operations that turn `before` into `after`, both of them trees of dicts and lists."""
    ops: list[Op] = []
    _add(before, after, "", ops)
    return ops


def _add(before: Any, after: Any, path: str, ops: list[Op]) -> None:
    if before is after:
        return
    if isinstance(before, list) and isinstance(after, list):
        _add_array(before, after, path, ops)
    elif isinstance(before, dict) and isinstance(after, dict):
        _add_object(before, after, path, ops)
    elif _has_changed(before, after):
        ops.append(Op("replace", path, after))


def _add_object(before: dict[str, Any], after: dict[str, Any], path: str, ops: list[Op]) -> None:
    ops += [Op("remove", f"{path}/{escape(key)}") for key in before if key not in after]
    for key, value in after.items():
        if key in before:
            _add(before[key], value, f"{path}/{escape(key)}", ops)
        else:
            ops.append(Op("add", f"{path}/{escape(key)}", value))


def _add_array(before: list[Any], after: list[Any], path: str, ops: list[Op]) -> None:
    # From the last to the first, so that the indices before a gap are still those of the old array.
    for at, removed, added in reversed(_gaps(before, after)):
        both = min(len(removed), len(added))
        for index in range(both):
            place = f"{path}/{at + index}"
            if may_be_same(removed[index], added[index]):
                _add(removed[index], added[index], place, ops)
            else:
                ops += [Op("remove", place), Op("add", place, added[index])]
        ops += [Op("remove", f"{path}/{at + index}") for index in range(len(removed) - 1, both - 1, -1)]
        ops += [Op("add", f"{path}/{at + index}", added[index]) for index in range(both, len(added))]


def may_be_same(old: Any, new: Any) -> bool:
    """Tell whether two elements may be one: an own change is rather refused than made to another."""
    if isinstance(old, dict) and isinstance(new, dict):
        return not _has_changed(old.get("id"), new.get("id"))
    return (isinstance(old, list) and isinstance(new, list)) or not _has_changed(old, new)


def _has_changed(old: Any, new: Any) -> bool:
    """Tell whether two values are different JSON; Python holds True == 1."""
    return bool(diff(old, new))


# Alignment


def _gaps(old: list[Any], new: list[Any]) -> list[_Gap]:
    """Return the gaps around the longest common subsequence of two arrays, from the first to the last.

    An element that both have, and that is different inside, is a gap of its own.
    """
    gaps: list[_Gap] = []
    at = start = 0
    for index, other in [*_common(old, new), (len(old), len(new))]:
        if index > at or other > start:
            gaps.append(_Gap(at, old[at:index], new[start:other]))
        if index < len(old) and _has_changed(old[index], new[other]):
            gaps.append(_Gap(index, old[index : index + 1], new[other : other + 1]))
        at, start = index + 1, other + 1
    return gaps


def name(item: Any) -> bytes:
    """Return what an element is known by: its id, or all that it is."""
    id = item.get("id") if isinstance(item, dict) else None
    return b"id" + _canonical(id) if isinstance(id, str | int) else _canonical(item)


def _common(old: list[Any], new: list[Any]) -> list[tuple[int, int]]:
    """Return the indices, in either array, of the elements that are in both."""
    numbers: dict[bytes, int] = {}
    a, b = ([numbers.setdefault(name(item), len(numbers)) for item in items] for items in (old, new))
    shorter = min(len(a), len(b))
    head = next((index for index in range(shorter) if a[index] != b[index]), shorter)
    tail = next((index for index in range(shorter - head) if a[-1 - index] != b[-1 - index]), shorter - head)
    inner = _common_inside(a[head : len(a) - tail], b[head : len(b) - tail])
    return [
        *((index, index) for index in range(head)),
        *((head + index, head + other) for index, other in inner),
        *((len(a) - index, len(b) - index) for index in range(tail, 0, -1)),
    ]


def _common_inside(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    if not 1 < len(a) * len(b) <= _MOST_STEPS:
        return []
    lengths = _common_lengths(a, b)
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _common_lengths(a: list[int], b: list[int]) -> list[list[int]]:
    """Return, for each pair of indices, how many elements what is behind them has in common."""
    below = [0] * (len(b) + 1)
    lengths = [below]
    for item in reversed(a):
        row = below.copy()
        longest = 0
        for j in range(len(b) - 1, -1, -1):
            if b[j] == item:
                longest = below[j + 1] + 1
            elif below[j] > longest:
                longest = below[j]
            row[j] = longest
        lengths.append(row)
        below = row
    return lengths[::-1]
