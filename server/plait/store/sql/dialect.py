"""The protocol of an SQL database that keeps rows."""

from collections.abc import Sequence
from typing import Any, Protocol

from plait.errors import StoreError
from plait.store.rows.engine import Span
from plait.store.rows.server import Guarded
from plait.store.sql.db import Connector, Db
from plait.store.sql.spans import SpanSql
from plait.store.thread_rows import ThreadKey

__all__ = ["Dialect"]


class Dialect(Connector, Protocol):
    """One database: it opens connections to a server, and reads and writes rows in its SQL.

    `on_loss` is called when a connection leads to a server that may have lost durable writes: another one, or another
    timeline.
    """

    url: Any
    # The server and its timeline; empty before the first connection.
    origin: str

    @property
    def durability(self) -> str:
        """The sentence of `Store.durability`."""
        ...

    def was_sent(self, error: BaseException, /) -> bool:
        """Whether a statement that has failed with a lost connection may have reached the server."""
        ...

    def is_trouble(self, error: BaseException, /) -> bool:
        """Whether the cause of a failed write concerns the whole database, such as a full disk."""
        ...

    def may_have_lost(self, origin: str, /) -> bool:
        """Whether the server may lack writes that were durable on the one with this origin."""
        ...

    async def prepare(self, db: Db, *, readonly: bool) -> None:
        """Create the table, unless another process does. Raises StoreError."""
        ...

    async def probe(self, db: Db, *, writes: bool) -> None:
        """Ask the server for an answer and, with `writes`, make a write that changes nothing."""
        ...

    def select(self, spans: Sequence[Span]) -> SpanSql:
        """Return the statement that reads spans."""
        ...

    async def claim(self, db: Db, key: ThreadKey, value: bytes) -> bool:
        """Replace the row of the owner of a thread, unless the server is not the one that was identified last.

        Returns whether it is.
        """
        ...

    async def commit(self, db: Db, changes: Sequence[Guarded]) -> Sequence[bool | StoreError]:
        """Make those changes in one transaction whose owners have the expected row, and tell of each whether it was."""
        ...
