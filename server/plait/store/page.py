"""What of a log is read in one go."""

from collections.abc import Iterable

from plait.store.protocol import ChangeRow

__all__ = ["take_page"]


def take_page(rows: Iterable[ChangeRow], size: int | None) -> list[ChangeRow]:
    """Return changes up to the one that makes them `size` bytes of operations; what is behind it is not even read."""
    found: list[ChangeRow] = []
    total = 0
    for row in rows:
        found.append(row)
        total += len(row.ops)
        if size is not None and total >= size:
            break
    return found
