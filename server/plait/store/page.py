"""One page of a change log."""

from collections.abc import Iterable

from plait.store.protocol import ChangeRow

__all__ = ["take_page"]


def take_page(rows: Iterable[ChangeRow], size: int | None) -> list[ChangeRow]:
    """Return changes up to the one at which their operations reach `size` bytes; the rows after it are not read."""
    found: list[ChangeRow] = []
    total = 0
    for row in rows:
        found.append(row)
        total += len(row.ops)
        if size is not None and total >= size:
            break
    return found
