"""The protocol of an SQL engine, for the store that all SQL engines share."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from plait.store.protocol import StoredThread, ThreadKey, Write
from plait.store.sql.db import Connector, Db
from plait.store.sql.rows import ClaimedHead, Rows, StoredRow
from plait.store.sql.tables import Table, Tables
from plait.store.thread_rows import RecordRange

__all__ = ["Claim", "Dialect", "WritePlain"]

Claim = tuple[ClaimedHead | None, StoredThread | None]
"""The head of a thread that was claimed, and the thread if it was loaded, too."""


WritePlain = Callable[[Db, Sequence[ClaimedHead], Sequence[int], Sequence[tuple[int, Write]]], Awaitable[set[int]]]
"""Stores changes, each with the id of its thread, and their clients, and commits.

The heads of the threads must be as expected, and get these versions; returns the ids of those that were so.
"""


class Dialect(Connector, Protocol):
    """One engine: it opens connections to a server, and says in its SQL what the store does.

    `on_loss`, which it is made with, is called when a connection leads to a server that may have lost durable writes:
    another one, or another timeline.
    """

    tables: Tables

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

    async def identify(self, db: Db) -> None:
        """Check which server a connection leads to, and whether it keeps what the URL promises. Raises Unreachable."""
        ...

    async def prepare(self, db: Db, *, readonly: bool) -> None:
        """Create the tables, unless another process does. Raises StoreError."""
        ...

    async def claim(self, db: Db, key: ThreadKey, ranges: Sequence[RecordRange] | None) -> Claim:
        """Become the owner of a thread, and load it with the records of ranges, if these are given.

        If the server is another one than the one that was identified last, or is on another timeline, the head is None,
        and the thread is not claimed. A thread that was claimed on another timeline gets a new epoch.
        """
        ...

    async def lock(self, db: Db, keys: Sequence[tuple[bytes, bytes]]) -> list[StoredRow]:
        """Begin a transaction, and return the rows of threads, which no other transaction may change until its end."""
        ...

    async def make_ids(self, db: Db, count: int) -> list[int]:
        """Return new ids of threads."""
        ...

    async def write(self, db: Db, rows: Rows) -> None:
        """Store everything, and commit. Raises UnicodeEncodeError."""
        ...

    @property
    def write_plain(self) -> WritePlain | None:
        """A faster way for changes of threads whose heads are known; None if there is none."""
        ...

    async def upsert(self, db: Db, table: Table, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows, or replace those with the same key."""
        ...

    async def run_each(self, db: Db, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement with each row of values."""
        ...

    async def remove(self, db: Db, table: str, threads: Sequence[int], limit: int) -> int:
        """Remove at most so many rows of threads from a table, and return how many there were."""
        ...

    async def load_each(self, db: Db, keys: Sequence[ThreadKey], part: str, name: str) -> Sequence[Any]:
        """Return one row with the value of a record for each thread, in their order; NULL for one that is missing."""
        ...
