"""Reads one page of changes or records, finds where a prefix ends, and orders the rows of listings."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final, TypeVar

from plait.store.protocol import Order, ThreadRow

__all__ = ["PLACES", "find_end", "sort_in_steps", "take_page"]

R = TypeVar("R")
T = TypeVar("T")

# Rows that are sorted, or merged, before other tasks may run.
_AT_ONCE: Final = 5_000

PLACES: Final[dict[Order, Callable[[ThreadRow], Any]]] = {
    "name": lambda row: row.key,
    "created": lambda row: (row.created_at, row.key),
    "changed": lambda row: (row.changed_at, row.key),
}
"""By order: the place of a row in it."""


def take_page(rows: Iterable[T], measure: Callable[[T], int], size: int | None) -> list[T]:
    """Return rows until their total size reaches `size` bytes; no further row is read."""
    if size is None:
        return list(rows)
    found: list[T] = []
    total = 0
    for row in rows:
        found.append(row)
        total += measure(row)
        if total >= size:
            break
    return found


def find_end(prefix: str) -> str | None:
    """Return the first string after all that begin with `prefix`, by code points; None if there is none."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    # UTF-8 has no form for the halves of surrogate pairs.
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)


async def sort_in_steps(rows: Sequence[R], make: Callable[[R], T | None], place: Callable[[T], Any]) -> list[T]:
    """Return what `make` returns for each row, but None, in the order of their places; other tasks run in between."""
    runs: list[list[T]] = []
    for at in range(0, len(rows), _AT_ONCE):
        if runs:
            await asyncio.sleep(0)
        entries = (make(row) for row in rows[at : at + _AT_ONCE])
        runs.append(sorted([entry for entry in entries if entry is not None], key=place))
    if len(runs) < 2:
        return [entry for run in runs for entry in run]
    merged, found = merge(*runs, key=place), list[T]()
    while some := list(islice(merged, _AT_ONCE)):
        found += some
        await asyncio.sleep(0)
    return found
