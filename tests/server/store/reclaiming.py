"""Writers that claim their threads again when a store has lost them, and what they know to be stored."""

import asyncio
from collections.abc import Sequence

import msgspec
from tests.server.store.contract import beginning

from plait.errors import Indeterminate, StoreError
from plait.store.protocol import Store, Write
from plait.store.thread_rows import ChangeRow, Record, RecordRange, ThreadKey

__all__ = ["Reclaiming"]


class Reclaiming:
    """Writes changes to threads at the same time, each with a record; a write whose outcome is not known may be stored.

    Each thread is written until `stop`.
    """

    def __init__(self, store: Store, keys: Sequence[ThreadKey]) -> None:
        self._store = store
        self.keys = keys
        # The versions that were acknowledged, and the last ones that may be stored.
        self.acknowledged = dict.fromkeys(keys, 0)
        self.in_doubt = dict.fromkeys(keys, 0)
        # The epochs with which the threads were loaded, in order.
        self.epochs: dict[ThreadKey, list[str]] = {key: [] for key in keys}
        self.doubts = 0
        # How many acknowledged changes were missing when a thread was loaded.
        self.lost = 0
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def count(self) -> int:
        """How many changes were acknowledged."""
        return sum(self.acknowledged.values())

    def has_made(self, count: int) -> bool:
        """Whether so many changes were acknowledged."""
        return self.count >= count

    async def start(self) -> None:
        """Make the threads, and begin."""
        for key in self.keys:
            fence = await self._store.claim(key)
            await self._store.submit(msgspec.structs.replace(beginning(key=key), fence=fence))
        self._tasks = [asyncio.create_task(self._write_on(key)) for key in self.keys]

    async def stop(self) -> None:
        """End."""
        self._is_stopped = True
        await asyncio.gather(*self._tasks)

    async def check(self) -> None:
        """Check that all that was acknowledged is stored, and each change with its record."""
        for key in self.keys:
            version, records = await self._find(key)
            assert self.acknowledged[key] <= version <= max(self.acknowledged[key], self.in_doubt[key])
            assert records == {str(each) for each in range(1, version + 1)}

    async def _find(self, key: ThreadKey) -> tuple[int, set[str]]:
        stored = await self._store.load(key)
        assert stored is not None
        records = await self._store.records(key, RecordRange("values", limit=10**6))
        return stored.version, {record.key for record in records}

    async def _write_on(self, key: ThreadKey) -> None:
        while not self._is_stopped:
            try:
                fence, stored = await self._store.claim_and_load(key)
                assert stored is not None
                self.epochs[key].append(stored.epoch)
                self.lost += max(0, self.acknowledged[key] - stored.version)
                self.acknowledged[key] = version = stored.version
                while not self._is_stopped:
                    version += 1
                    self.in_doubt[key] = version
                    await self._store.submit(_make(key, stored.epoch, version, fence))
                    self.acknowledged[key] = version
            except StoreError as error:
                self.doubts += isinstance(error, Indeterminate)
                await asyncio.sleep(0.01)


def _make(key: ThreadKey, epoch: str, version: int, fence: int) -> Write:
    row = ChangeRow(version, b"[]", "server", 1)
    record = Record("values", str(version), b"1")
    return Write(key, epoch, version - 1, version, (row,), records=(record,), fence=fence)
