"""A store that keeps the promises of the others, in this process's memory: for tests and for what may be lost."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

import msgspec

from plait.errors import Fenced, StoreError
from plait.store.protocol import ChangeRow, Stored, ThreadKey, ThreadRow, Write

__all__ = ["MemoryStore"]


class _Record(msgspec.Struct):
    epoch: str
    version: int
    changes: deque[ChangeRow]
    snapshot: bytes | None = None
    snapshot_version: int = 0


class MemoryStore:
    """Keeps threads in a dict; what is in it is gone with the object."""

    def __init__(self) -> None:
        self._records: dict[ThreadKey, _Record] = {}
        self._pending: deque[tuple[Write, asyncio.Future[None]]] = deque()
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._commit()

    async def load(self, key: ThreadKey) -> Stored | None:
        record = self._records.get(key)
        if record is None:
            return None
        since = [row for row in record.changes if row.version > record.snapshot_version]
        return Stored(record.epoch, record.version, record.snapshot, since)

    def submit(self, write: Write) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not self._open:
            future.set_exception(StoreError("the store is closed"))
            return future
        if not self._pending:
            loop.call_soon(self._commit)
        self._pending.append((write, future))
        return future

    async def threads(self, *, after: ThreadKey | None = None, limit: int = 1000) -> list[ThreadRow]:
        keys = sorted(key for key in self._records if after is None or key > after)
        return [ThreadRow(key, self._records[key].version) for key in keys[:limit]]

    def _commit(self) -> None:
        while self._pending:
            write, future = self._pending.popleft()
            error = self._apply(write)
            if future.done():
                continue  # Whoever asked has gone away.
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _apply(self, write: Write) -> Fenced | None:
        record = self._records.get(write.key)
        if (record.version if record else None) != write.after or (record and record.epoch != write.epoch):
            return Fenced(f"{write.key} was written by somebody else")
        if record is None:
            record = self._records[write.key] = _Record(write.epoch, write.version, deque())
        record.version = write.version
        if write.change is not None:
            record.changes.append(write.change)
        if write.snapshot is not None:
            record.snapshot, record.snapshot_version = write.snapshot, write.version
        while write.prune is not None and record.changes and record.changes[0].version <= write.prune:
            record.changes.popleft()
        return None
