"""A thread's earlier versions: from memory where they are there, otherwise from the store."""

from typing import Any, Final

from plait.errors import NotFound
from plait.history import History, read
from plait.store.protocol import ChangeRow, ClientRow, Store, ThreadKey
from plait_schemas.codec import encode_json

__all__ = ["Past"]

# Changes that are read in one go.
_BATCH: Final = 500


class Past:
    """Reads what of one thread's log is kept."""

    __slots__ = ("_history", "_key", "_store")

    def __init__(self, key: ThreadKey, store: Store, history: History) -> None:
        self._key = key
        self._store = store
        self._history = history

    async def changes(self, after: int, *, size: int | None = None) -> list[ChangeRow] | None:
        """Return the durable changes behind a version, in order; None when not all of them are kept.

        With `size` also None when they have more bytes than that. Raises StoreError.
        """
        durable = self._history.durable.version
        if after < 0:
            return None
        rows = self._history.since(after, durable)
        if rows is not None:
            return rows
        found: list[ChangeRow] = []
        while after + len(found) < durable:
            rows = await self._store.changes(self._key, after=after + len(found), limit=_BATCH)
            if not rows or rows[0].version != after + len(found) + 1:
                return None
            found += rows
            if size is not None and sum(len(row.ops) for row in found) > size:
                return None
        # The store may have more: what is on the disk and has not been let out.
        return [row for row in found if row.version <= durable]

    async def kept(self, after: int = 0) -> list[ChangeRow]:
        """Return the durable changes behind a version, in order and without a gap: the last ones, if not all are kept.

        Raises StoreError.
        """
        found = self._history.since(after, self._history.durable.version) or []
        durable = self._history.durable.version
        while not found or found[-1].version < durable:
            rows = await self._store.changes(self._key, after=found[-1].version if found else after)
            if not rows:
                break
            if found and rows[0].version != found[-1].version + 1:
                found = []  # The log has been shortened while it was read.
            found += rows
        return [row for row in found if row.version <= durable]

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
        stored = await self._store.load(self._key, version=version) if 0 <= version < durable.version else None
        if stored is None:
            raise NotFound(f"version {version} of {self._key} is not there, or not any more")
        return read(self._key, stored)

    async def client(self, id: str) -> ClientRow | None:
        """Return what is stored of a client's pushes. Raises StoreError."""
        return await self._store.client(self._key, id)
