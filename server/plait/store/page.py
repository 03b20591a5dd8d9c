"""Reads one page of changes or records, and orders the rows of listings."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from plait.store.protocol import Order, ThreadRow

__all__ = ["PLACES", "take_page"]

T = TypeVar("T")

PLACES: Final[dict[Order, Callable[[ThreadRow], Any]]] = {
    "name": lambda row: row.key,
    "created": lambda row: (row.created_at, row.key),
    "changed": lambda row: (row.changed_at, row.key),
}
"""By order: the place of a row in it."""


def take_page(rows: Iterable[T], measure: Callable[[T], int], size: int | None) -> list[T]:
    """Return rows up to the one at which they reach `size` bytes, without reading a further one."""
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
