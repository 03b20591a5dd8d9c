"""A store that can be copied: everything that it has of a thread can be read."""

from typing import Protocol, Self

from plait.store.protocol import Store

__all__ = ["StoredSchema", "WholeStore"]

StoredSchema = tuple[str, str, bytes]
"""A kind, the hash of a schema, and the schema."""


class WholeStore(Store, Protocol):
    """A store that can be read as a whole."""

    def reader(self) -> Self:
        """Return a read-only store of the same data, which a server may have open."""
        ...

    async def schemas(self) -> list[StoredSchema]:
        """Return all stored schemas."""
        ...
