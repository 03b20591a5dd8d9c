"""The writes of one thread that wait for the same batch."""

import asyncio
from bisect import bisect_right

from plait.errors import StoreError
from plait.store.protocol import Write

__all__ = ["WriteGroup"]


class WriteGroup:
    """The waiting writes of one thread, in order. Writes submitted without an `await` in between are a unit."""

    __slots__ = ("futures", "sizes", "starts", "unit", "writes")

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.futures: list[asyncio.Future[int]] = []
        # The number of the last unit.
        self.unit = -1
        # By unit: the index of its first write, and its size in bytes.
        self.starts: list[int] = []
        self.sizes: list[int] = []

    def add(self, write: Write, future: asyncio.Future[int], unit: int) -> int:
        """Add a write of the unit with this number, and return its approximate size in bytes."""
        size = 0
        for row in write.changes:
            size += len(row.ops)
        for snapshot in write.snapshots:
            size += len(snapshot.state)
        for record in write.records:
            size += len(record.key) + len(record.value or b"")
        if unit == self.unit:
            self.sizes[-1] += size
        else:
            self.unit = unit
            self.starts.append(len(self.writes))
            self.sizes.append(size)
        self.writes.append(write)
        self.futures.append(future)
        return size

    def split(self, units: int) -> tuple["WriteGroup", "WriteGroup"]:
        """Return the first units as one group, and the others as another."""
        at = self.starts[units]
        first, rest = WriteGroup(), WriteGroup()
        first.writes, rest.writes = self.writes[:at], self.writes[at:]
        first.futures, rest.futures = self.futures[:at], self.futures[at:]
        first.starts, rest.starts = self.starts[:units], [start - at for start in self.starts[units:]]
        first.sizes, rest.sizes = self.sizes[:units], self.sizes[units:]
        rest.unit = self.unit
        return first, rest

    def count_following(self, stored: tuple[str, int] | None) -> tuple[int, StoreError | None]:
        """Return how many of the writes can follow the stored epoch and version, and why the next one cannot.

        If a write of a unit cannot follow, none of the unit counts.
        """
        for index, write in enumerate(self.writes):
            if (error := write.refusal(stored)) is not None:
                return self.starts[bisect_right(self.starts, index) - 1], error
            stored = None if write.is_deletion else (write.epoch, write.version)
        return len(self.writes), None
