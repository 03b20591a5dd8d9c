"""A store that can be copied: everything that it has of a thread can be read."""

from collections.abc import AsyncIterator
from typing import Protocol, Self

from plait.store.protocol import Store, ThreadKey, Write

__all__ = ["StoredSchema", "WholeStore"]

StoredSchema = tuple[str, str, bytes]
"""A kind, the hash of a schema, and the schema."""


class WholeStore(Store, Protocol):
    """A store that can be read as a whole."""

    def reader(self) -> Self:
        """Return a read-only store of the same data, which a server may have open."""
        ...

    def export(self, key: ThreadKey) -> AsyncIterator[Write]:
        """Yield the writes without a fence that make a thread in an empty store, of about 1 MiB each.

        Nothing may write to the thread until the end. Yields nothing if there is no such thread. Raises CorruptThread.
        """
        ...

    async def schemas(self) -> list[StoredSchema]:
        """Return all stored schemas."""
        ...
