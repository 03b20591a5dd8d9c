"""A thread's earlier versions and its changes: from memory where they are there, otherwise from the store."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

import msgspec

from plait.errors import CorruptThread, NotFound, operator_message
from plait.state.history import History, replay_steps
from plait.store.protocol import ChangeRow, ClientRow, Store, ThreadKey
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, decode_ops

__all__ = ["Change", "ChangeLog"]


class Change(msgspec.Struct, frozen=True):
    """One durable change: `source` is a connection's id, "server", "migration", or "undo", a version and a source."""

    version: int
    ops: list[Op]
    source: str
    at: datetime

    @classmethod
    def of(cls, row: ChangeRow) -> Self:
        """Return a change as it is stored, decoded."""
        return cls(row.version, decode_ops(row.ops), row.source, datetime.fromtimestamp(row.at / 1e6, UTC))


# Changes that are read in one go, and bytes of operations.
_PAGE: Final = 500
_PAGE_SIZE: Final = 1024 * 1024
# Who is more than so much behind is too far behind: to bring it forward would hold up everybody else.
_FAR: Final = 10_000
_FAR_SIZE: Final = 4 * 1024 * 1024

T = TypeVar("T")

log = logging.getLogger("plait.thread")


class ChangeLog:
    """Reads what of one thread's log is kept, a page at a time, so that nobody waits for all of it."""

    __slots__ = ("_history", "_key", "_store")

    def __init__(self, key: ThreadKey, store: Store, history: History) -> None:
        self._key = key
        self._store = store
        self._history = history

    async def changes(self, after: int, *, size: int = _FAR_SIZE) -> list[ChangeRow] | None:
        """Return the durable changes behind a version, in order.

        None when not all of them are kept, they have more than `size` bytes, or there are more than 10,000. Raises
        StoreError.
        """
        found: list[ChangeRow] = []
        left = size
        while rows := await self.page(after + len(found), size=min(left, _PAGE_SIZE)):
            found += rows
            left -= sum(len(row.ops) for row in rows)
            if left < 0 or len(found) > _FAR:
                return None
        return None if rows is None else found

    async def page(self, after: int, *, limit: int = _PAGE, size: int = _PAGE_SIZE) -> list[ChangeRow] | None:
        """Return the first durable changes behind a version, in order; None when they are not kept.

        There are no more than `limit`, and none behind those that have `size` bytes. Raises StoreError.
        """
        durable = self._history.durable.version
        if after < 0:
            return None
        rows = self._history.since(after, durable)
        if rows is None:
            rows = await self._read(self._store.changes(self._key, after=after, limit=limit, size=size))
            if not rows or rows[0].version != after + 1:
                return None
        # The store may have more: what is on the disk and has not been let out.
        return [row for row in rows[:limit] if row.version <= durable]

    async def before(self, version: int) -> list[ChangeRow]:
        """Return durable changes in front of a version, the last one first; none where none are kept.

        Raises StoreError.
        """
        if rows := self._history.recent(version - 1):
            return rows[::-1]
        return await self._read(self._store.changes_before(self._key, version, limit=_PAGE, size=_PAGE_SIZE))

    async def start(self, limit: int | None = None) -> int:
        """Return the version behind which are all durable changes that are kept, or the last `limit` of them.

        Raises StoreError.
        """
        durable = self._history.durable.version
        rows = await self._read(self._store.changes(self._key, after=0, limit=1))
        start = min(rows[0].version - 1, durable) if rows else durable
        return start if limit is None else max(start, durable - limit)

    async def json(self, version: int) -> bytes:
        """Return the state at a version as JSON. Raises as `document`, and NotFound where there is no state yet."""
        if not self._history.durable.has_state:
            raise NotFound(f"{self._key} has no state yet")
        return encode_json(await self.document(version))

    async def document(self, version: int) -> Any:
        """Return the state at a version as a tree of dicts and lists, which must not be changed.

        Raises NotFound when it is not kept, CorruptThread, and StoreError.
        """
        durable = self._history.durable
        if version == durable.version:
            return durable.document
        is_past = 0 <= version < durable.version
        stored = await self._read(self._store.load(self._key, version=version)) if is_past else None
        if stored is None:
            raise NotFound(f"version {version} of {self._key} is not there, or not any more")
        document = None
        for step in replay_steps(self._key, stored):
            document = step
            await asyncio.sleep(0)  # There may be many: others have a turn.
        return document

    async def client(self, id: str) -> ClientRow | None:
        """Return what is stored of a client's pushes. Raises StoreError."""
        return await self._read(self._store.client(self._key, id))

    async def _read(self, result: Awaitable[T]) -> T:
        """Return what is read; damage is logged, as the thread is served for all that."""
        try:
            return await result
        except CorruptThread as error:
            log.error("%s", operator_message(error), extra={"plait_thread": str(self._key)})
            error.is_logged = True
            raise
