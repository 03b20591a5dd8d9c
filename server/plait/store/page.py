"""Reads one page of changes or records."""

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["take_page"]

T = TypeVar("T")


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
