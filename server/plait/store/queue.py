"""Writes that wait for a transaction: all of them share the next one, unless they are more than it should have."""

import asyncio
from typing import Final

from plait.store.protocol import ThreadKey, Write

__all__ = ["Waiting", "WriteQueue"]

# Bytes of large writes in one transaction, which others wait for.
_MOST: Final = 1024 * 1024
# Writes of fewer bytes are never put off for their size.
_LARGE: Final = 16 * 1024


Waiting = tuple[Write, asyncio.Future[None], int, int]
"""A write, what tells that it is durable, the number of its unit, which is written together, and its bytes."""


class WriteQueue:
    """Hands out what waits; where that is much, small writes come first, and then one large one of each thread in turn.

    The writes of one thread keep their order.
    """

    __slots__ = ("_size", "_unit", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[Waiting] = []
        # Bytes of all that waits.
        self._size = 0
        # What one thread has submitted without an await in between has one number.
        self._unit = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, write: Write, future: asyncio.Future[None]) -> bool:
        """Take a write; tells whether `end_unit` is to be called when nobody can submit along with it any more."""
        change, snapshot = write.change, write.snapshot
        size = (0 if change is None else len(change.ops)) + (0 if snapshot is None else len(snapshot))
        self._size += size
        self._waiting.append((write, future, self._unit, size))
        return size >= _LARGE

    def end_unit(self) -> None:
        """Let what comes be written apart from what has come."""
        self._unit += 1

    def take(self) -> list[Waiting]:
        """Take out what is to be written in one transaction."""
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
