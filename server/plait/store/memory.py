"""A store in the memory of this process, for tests and for data that may be lost."""

import asyncio
import time
from collections import deque
from itertools import takewhile
from types import TracebackType
from typing import Self

import msgspec

from plait.errors import StoreError
from plait.store.page import take_page
from plait.store.protocol import (
    CLIENT_DAYS,
    DAY,
    ChangeRow,
    ClientRow,
    Prune,
    Stored,
    ThreadKey,
    ThreadRow,
    Write,
)

__all__ = ["MemoryStore"]


class _Record(msgspec.Struct):
    epoch: str
    version: int
    changes: list[ChangeRow]
    # By version, in order.
    snapshots: dict[int, bytes]
    clients: dict[str, ClientRow]
    secret: bytes
    state_version: int = 1

    def forget(self, prune: Prune) -> None:
        """Forget what is older than the newest snapshot that is past a bound."""
        bound, size, now = prune.version, 0, time.time_ns() // 1000
        # The clock may have been wrong: times in the future are ignored, and no change after a recent one is too old.
        older = takewhile(lambda row: not prune.at <= row.at <= now, self.changes)
        bound = max([bound, *(row.version for row in older if row.at < prune.at)])
        for row in reversed(self.changes):
            size += len(row.ops)
            if prune.bytes is not None and size > prune.bytes:
                bound = max(bound, row.version)
        oldest = max((at for at in self.snapshots if at <= bound), default=0)
        self.changes = [row for row in self.changes if row.version > oldest]
        self.snapshots = {at: state for at, state in self.snapshots.items() if at >= oldest}
        # A wrong clock must not expire clients: keep them until others have pushed on CLIENT_DAYS different days.
        days = sorted({row.at // DAY for row in self.clients.values() if row.at <= now})[-CLIENT_DAYS:]
        young = now - CLIENT_DAYS * DAY
        self.clients = {id: row for id, row in self.clients.items() if row.at >= young or row.at // DAY >= days[0]}


class MemoryStore:
    """Keeps threads in a dict; they are lost with the object."""

    def __init__(self) -> None:
        self._records: dict[ThreadKey, _Record] = {}
        self._schemas: dict[tuple[str, str], bytes] = {}
        self._pending: deque[tuple[Write, asyncio.Future[None]]] = deque()
        self._open = False

    async def __aenter__(self) -> Self:
        if self._open:
            raise StoreError("the store is already open: open it once, or give each app its own store")
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        self._commit()

    async def load(self, key: ThreadKey, *, version: int | None = None) -> Stored | None:
        record = self._records.get(key)
        if record is None:
            return None
        to = record.version if version is None else version
        if not min(record.snapshots, default=0) <= to <= record.version:
            return None
        since = max((at for at in record.snapshots if at <= to), default=0)
        changes = [row for row in record.changes if since < row.version <= to]
        return Stored(record.epoch, to, record.snapshots.get(since), changes, record.state_version, record.secret)

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        rows, start = self._changes(key, after + 1)
        return take_page(rows[start : start + limit], size)

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        rows, end = self._changes(key, version)
        return take_page(rows[max(0, end - limit) : end][::-1], size)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        record = self._records.get(key)
        return record.clients.get(client) if record else None

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

    async def check_writes(self) -> None:
        if not self._open:
            raise StoreError("the store is closed")

    async def schema(self, kind: str, hash: str) -> bytes | None:
        return self._schemas.get((kind, hash))

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        self._schemas[kind, hash] = schema

    async def threads(self, *, after: ThreadKey | None = None, limit: int = 1000) -> list[ThreadRow]:
        keys = sorted(key for key in self._records if after is None or key > after)
        return [ThreadRow(key, self._records[key].version) for key in keys[:limit]]

    def _changes(self, key: ThreadKey, version: int) -> tuple[list[ChangeRow], int]:
        """Return the changes of a thread, and the index of a version among them; their versions have no gaps."""
        record = self._records.get(key)
        rows = record.changes if record else []
        return rows, min(max(0, version - rows[0].version), len(rows)) if rows else 0

    def _commit(self) -> None:
        while self._pending:
            write, future = self._pending.popleft()
            error = self._apply(write)
            if future.done():
                continue  # The caller was cancelled.
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _apply(self, write: Write) -> StoreError | None:
        record = self._records.get(write.key)
        if (error := write.refusal((record.epoch, record.version) if record else None)) is not None:
            return error
        if record is None:
            record = self._records[write.key] = _Record(write.epoch, write.version, [], {}, {}, write.secret)
        record.version = write.version
        record.state_version = write.state_version or record.state_version
        if write.change is not None:
            record.changes.append(write.change)
        if write.snapshot is not None:
            record.snapshots[write.version] = write.snapshot
        if write.client is not None:
            record.clients[write.client.client] = write.client
        if write.prune is not None:
            record.forget(write.prune)
        return None
