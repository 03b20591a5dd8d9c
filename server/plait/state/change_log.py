"""A thread's change log and earlier versions, read from memory if possible and from the store otherwise."""

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

import msgspec

from plait.errors import CorruptThread, NotFound, StoreError, operator_message
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.state.missed import MissedChanges
from plait.state.state_history import StateHistory, replay_steps
from plait.store.protocol import Store
from plait.store.thread_rows import ChangeRow, ClientRow, ThreadKey
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op, decode_ops

__all__ = ["Change", "ChangeLog"]


class Change(msgspec.Struct, frozen=True):
    """A durable change. `source` is a connection's id, "server", "migration", or names changes that were taken back.

    In the last case it is "undo {version} {source}", "undo {first}-{last} {source}", or "redo {version} {source}".
    """

    version: int
    ops: list[Op]
    source: str
    at: datetime

    @classmethod
    def of(cls, row: ChangeRow) -> Self:
        """Decode a stored change."""
        return cls(row.version, decode_ops(row.ops), row.source, datetime.fromtimestamp(row.at / 1e6, UTC))


# Changes per page, and bytes of their operations.
_PAGE: Final = 500
_PAGE_SIZE: Final = 1024 * 1024
# Minimum bytes of a page for a reader that lags: the more it has missed, the smaller the pages.
_FEW: Final = 16 * 1024
# Maximum bytes to read and compact, as a multiple of the bytes that may be sent; more would take too long.
_MOST_COMPACTED: Final = 8
# Readers that lag by more get a snapshot; replaying more would stall the loop.
_FAR: Final = 10_000
_FAR_SIZE: Final = 4 * 1024 * 1024

T = TypeVar("T")

log = logging.getLogger("plait.thread")


class ChangeLog:
    """Reads the log of one thread, a page at a time, so that other reads need not wait for the whole log."""

    __slots__ = ("_history", "_instruments", "_key", "_store")

    def __init__(
        self,
        key: ThreadKey,
        store: Store,
        history: StateHistory,
        *,
        instruments: Instruments = NO_INSTRUMENTS,
    ) -> None:
        self._key = key
        self._store = store
        self._history = history
        self._instruments = instruments

    def since(self, version: int) -> list[ChangeRow] | None:
        """Return the durable changes after a version, in order, from memory; None if some are missing."""
        return self._history.since(version, self._history.durable.version)

    async def changes(self, after: int) -> list[ChangeRow] | None:
        """Return the durable changes after a version, in order.

        Returns None if some of them are not kept, or if there are more than 10,000 changes or 4 MB. Raises StoreError.
        """
        found: list[ChangeRow] = []
        left = _FAR_SIZE
        while rows := await self.page(after + len(found), size=min(left, _PAGE_SIZE)):
            found += rows
            left -= sum(len(row.ops) for row in rows)
            if left < 0 or len(found) > _FAR:
                return None
        return None if rows is None else found

    async def read(self, since: int | None, limit: int | None) -> list[Change]:
        """Return at most `limit` durable changes: the ones after a version, or the last ones that are kept.

        Raises NotFound if some of the changes after the version are not kept, and StoreError.
        """
        found: list[Change] = []
        after = await self.start(limit) if since is None else since
        while (limit is None or len(found) < limit) and (rows := await self.page(after + len(found))) != []:
            if rows is not None:
                found += [Change.of(row) for row in rows]
            elif since is None:
                after, found = await self.start(limit), []  # The log was shortened during the read.
            else:
                raise _make_lost(since)
        return found[:limit]

    async def has_migration_after(self, version: int) -> bool:
        """Whether the state was migrated after a version. Raises NotFound if changes are not kept, and StoreError."""
        after = version
        while rows := await self.page(after):
            if any(row.source == "migration" for row in rows):
                return True
            after = rows[-1].version
        if rows is None:
            raise _make_lost(version)
        return False

    async def missed(self, after: int, *, most: int) -> MissedChanges | None:
        """Return the durable changes after a version, joined into one list of operations.

        Returns None when some of the changes are not kept, when the operations have more than `most` bytes, or when
        the changes are too many or more than eight times as large. Raises StoreError.
        """
        missed = MissedChanges(after)
        left = min(_FAR_SIZE, _MOST_COMPACTED * most)
        while rows := await self.page(missed.version, size=min(max(most - missed.size, _FEW), left, _PAGE_SIZE)):
            missed.add(rows)
            left -= sum(len(row.ops) for row in rows)
            if missed.size > most or left < 0 or missed.version - after > _FAR:
                return None
        return None if rows is None else missed

    async def page(self, after: int, *, limit: int = _PAGE, size: int = _PAGE_SIZE) -> list[ChangeRow] | None:
        """Return the first durable changes after a version, in order; None when they are not kept.

        Returns at most `limit` changes, up to the change with which they reach `size` bytes. Raises StoreError.
        """
        durable = self._history.durable.version
        if after < 0:
            return None
        rows = self._history.since(after, durable)
        if rows is None:
            rows = await self._read(self._store.changes(self._key, after=after, limit=limit, size=size))
            if not rows or rows[0].version != after + 1:
                return None
        # The store may have later changes that are written but not sent yet.
        return [row for row in rows[:limit] if row.version <= durable]

    async def before(self, version: int) -> list[ChangeRow]:
        """Return durable changes before a version, the last one first; an empty list if none are kept.

        Raises StoreError.
        """
        if rows := self._history.recent(version - 1):
            return rows[::-1]
        return await self._read(self._store.changes_before(self._key, version, limit=_PAGE, size=_PAGE_SIZE))

    async def start(self, limit: int | None = None) -> int:
        """Return the version before the first durable change that is kept, or before the last `limit` of them.

        Raises StoreError.
        """
        durable = self._history.durable.version
        rows = await self._read(self._store.changes(self._key, after=0, limit=1))
        start = min(rows[0].version - 1, durable) if rows else durable
        return start if limit is None else max(start, durable - limit)

    async def json(self, version: int) -> bytes:
        """Return the state at a version as JSON. Raises the errors of `document`, and NotFound if there is no state."""
        if not self._history.durable.has_state:
            raise NotFound(f"{self._key} has no state yet")
        return encode_json(await self.document(version))

    async def document(self, version: int) -> Any:
        """Return the state at a version as a tree of dicts and lists, which must not be changed.

        Raises NotFound if the version is not kept, CorruptThread, and StoreError.
        """
        durable = self._history.durable
        if version == durable.version:
            return durable.document
        is_past = 0 <= version < durable.version
        stored = await self._read(self._store.load(self._key, version=version)) if is_past else None
        if stored is None:
            raise NotFound(f"version {version} of {self._key} does not exist, or is no longer kept")
        document = None
        for step in replay_steps(self._key, stored):
            document = step
            await asyncio.sleep(0)  # There may be many steps, so give other tasks a turn.
        return document

    async def client(self, id: str) -> ClientRow | None:
        """Return the stored row of a client; None without one. Raises StoreError."""
        return await self._read(self._store.client(self._key, id))

    async def _read(self, result: Awaitable[T]) -> T:
        """Return the result of a read. Logs damage, as the thread stays in service."""
        try:
            return await result
        except StoreError as error:
            self._instruments.store_failed(error.code)
            if isinstance(error, CorruptThread):
                log.error("%s", operator_message(error), extra={"plait_thread": str(self._key)})
                error.is_logged = True
            raise


def _make_lost(version: int) -> NotFound:
    return NotFound(f"some of the changes after version {version} are no longer kept")
