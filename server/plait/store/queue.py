"""Writes that wait for a transaction. All share the next one, unless that would make it too large."""

import asyncio
from typing import Final

from plait.store.protocol import ThreadKey, Write

__all__ = ["Waiting", "WriteQueue"]

# Bytes of large writes in one transaction; the other writes wait for it.
_MOST: Final = 1024 * 1024
# Smaller writes are never postponed because of their size.
_LARGE: Final = 16 * 1024


Waiting = tuple[Write, asyncio.Future[None], int, int]
"""A write, its future, the number of its unit (writes that share a transaction), and its size in bytes."""


class WriteQueue:
    """Batches waiting writes. If they are too large for one transaction, small writes go first, and then one large
    write of each thread in turn.

    The writes of one thread keep their order.
    """

    __slots__ = ("_size", "_unit", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        # Total size of the waiting writes.
        self._size = 0
        # Writes that one thread submits without an await in between have the same number.
        self._unit = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, write: Write, future: asyncio.Future[None]) -> bool:
        """Add a write, and return whether the caller must call `end_unit` in the next iteration of the loop."""
        change, snapshot = write.change, write.snapshot
        size = (0 if change is None else len(change.ops)) + (0 if snapshot is None else len(snapshot))
        self._size += size
        self._waiting.append((write, future, self._unit, size))
        return size >= _LARGE

    def end_unit(self) -> None:
        """Begin a new unit: later writes may be in another transaction than the earlier ones."""
        self._unit += 1

    def take(self) -> list[Waiting]:
        """Remove and return the writes of the next transaction."""
        if self._size <= _MOST:
            batch, self._waiting, self._size = self._waiting, [], 0
            return batch
        units: dict[tuple[ThreadKey, int], list[Waiting]] = {}
        for each in self._waiting:
            units.setdefault((each[0].key, each[2]), []).append(each)
        batch, rest = [], list[tuple[ThreadKey, list[Waiting]]]()
        large = 0
        served, put_off = set[ThreadKey](), set[ThreadKey]()
        for (key, _), unit in units.items():
            size = sum(each[3] for each in unit)
            is_large = size >= _LARGE
            if key in put_off or (is_large and (key in served or (large and large + size > _MOST))):
                put_off.add(key)
                rest.append((key, unit))
                continue
            batch += unit
            if is_large:
                served.add(key)
                large += size
        rest.sort(key=lambda each: each[0] in served)
        self._waiting = [each for _, unit in rest for each in unit]
        self._size = sum(each[3] for each in self._waiting)
        return batch
