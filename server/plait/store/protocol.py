"""The Store protocol and its rows. `tests/server/store/contract.py` tests every store against it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, Self

import msgspec

from plait.store.thread_rows import ChangeRow, ClientRow, Prune, Record, RecordRange, Snapshot, ThreadKey

__all__ = [
    "ALL_THREADS",
    "READ",
    "DueThread",
    "Order",
    "Store",
    "StoredThread",
    "ThreadHeader",
    "ThreadQuery",
    "ThreadRow",
    "ThreadView",
    "Write",
]


READ: Final = "thread-read"
"""The part of the records that tell how much of a thread users have read, which is no change of the thread.

No attribute of a class can have its name.
"""


class Write(msgspec.Struct, frozen=True):
    """One write to a thread: its next changes, snapshots, records, or several of these, or its deletion."""

    key: ThreadKey
    epoch: str
    # The stored version that this write follows; None for a new thread. If the stored version differs, the write fails
    # with Fenced.
    after: int | None
    # The stored version after this write: `after`, or `begins_at` for a new thread, plus the number of changes.
    version: int
    changes: Sequence[ChangeRow] = ()
    snapshots: Sequence[Snapshot] = ()
    prune: Prune | None = None
    # The clients that made the changes.
    clients: Sequence[ClientRow] = ()
    # The new version of the state's type; None if it does not change.
    state_version: int | None = None
    # The secret of a new thread, from which the connection ids of its clients are derived.
    secret: bytes = b""
    records: Sequence[Record] = ()
    # The owner's number, from `Store.claim`, which every write needs: without one, it fails with Fenced.
    fence: int = 0
    # When the thread must be awake next, in microseconds since the epoch; 0 for never. None changes nothing. If
    # the number is odd, it expires then.
    due: int | None = None
    # When a new thread was created, in microseconds since the epoch, and the id of its user. Only the first write sets
    # them.
    created_at: int = 0
    user: str | None = None
    # For copies: the first version of the log, whose snapshot is included unless it is 0, and
    # when the last change or record became durable; None for the time of this write.
    begins_at: int = 0
    changed_at: int | None = None
    # After this write, nothing of the thread can be read, and the next write may create it again. A store may remove
    # the data later.
    is_deletion: bool = False

    @property
    def is_stateless(self) -> bool:
        """Whether this write creates a thread that has no state at version 0."""
        return self.after is None and not (self.snapshots and self.snapshots[0].version == 0)


class StoredThread(msgspec.Struct, frozen=True):
    """A stored thread: its last snapshot, if there is one, and the changes after it up to `version`."""

    epoch: str
    version: int
    snapshot: bytes | None
    changes: Sequence[ChangeRow]
    state_version: int = 1
    # The secret of the thread's first write.
    secret: bytes = b""
    # The ids of all clients that have a row; None if there are more than KNOWN_CLIENTS, or if they were not read.
    clients: frozenset[str] | None = None
    # When it must be awake next, in microseconds since the epoch; 0 for never.
    due: int = 0
    created_at: int = 0
    user: str | None = None
    # The records of each range that `Store.load` was given, in the order of the ranges.
    records: Sequence[Sequence[Record]] = ()

    @property
    def has_state(self) -> bool:
        """Whether the thread has a state. A thread that was created with records has none until its first change."""
        return self.snapshot is not None or bool(self.changes)


class ThreadRow(msgspec.Struct, frozen=True):
    """One line of a listing of threads. Times are in microseconds since the epoch."""

    key: ThreadKey
    version: int
    created_at: int
    # When its last change or record became durable. A crash of the process may lose the times of the last second.
    changed_at: int
    # The id of the user for whom it was created; None if there is none.
    user: str | None = None


Order = Literal["name", "created", "changed"]
"""The order of a listing: by kind and name, or the threads that were created or changed last first."""


class ThreadQuery(msgspec.Struct, frozen=True):
    """The stored threads of a kind and of a user, if one is given, whose names begin with `prefix`, in an order."""

    kind: str | None = None
    prefix: str = ""
    # The id of the user for whom they were created.
    user: str | None = None
    order: Order = "name"
    # The last row of the page before.
    after: ThreadRow | None = None
    limit: int = 1000
    # Without them, the versions in the result may be earlier ones, which are read faster.
    has_versions: bool = True


ALL_THREADS: Final = ThreadQuery()
"""The first page of all threads, by kind and name."""


class ThreadHeader(msgspec.Struct, frozen=True):
    """The stored epoch, version and times of a thread, and the user for whom it was created."""

    epoch: str
    version: int
    created_at: int = 0
    user: str | None = None
    due: int = 0
    # As in a `ThreadRow`.
    changed_at: int = 0


class DueThread(NamedTuple):
    """A thread, and when it must be awake, in microseconds since the epoch."""

    due: int
    key: ThreadKey


class ThreadView:
    """A stored thread at one moment. Its records are read later, and are still those of that moment."""

    def __init__(
        self,
        thread: StoredThread,
        read: Callable[[tuple[str, str], int, int], Awaitable[list[Record]]],
    ) -> None:
        self.thread = thread
        self._read = read

    async def records(
        self, *, after: tuple[str, str] = ("", ""), limit: int = 1000, size: int = 1024 * 1024
    ) -> list[Record]:
        """Return records of all parts, in the order of parts and keys, after a part and a key.

        Returns at most `limit` records; the last one is that at which the values reach `size` bytes. Raises
        CorruptThread and StoreError.
        """
        return await self._read(after, limit, size)


class Store(Protocol):
    """Stores threads. Entering it opens the store; leaving it finishes the pending writes and closes it.

    Entering raises StoreError if the store cannot be opened, or is already open (it stays open then). A write is
    atomic, and so are the writes of one thread that are submitted without an `await` in between. The writes of one
    thread are made in the order of `submit`. When one fails, all later writes already submitted to the thread fail at
    the same moment. Writes to different threads may share one transaction.

    Names of threads and keys of records are ordered by code point, which is the order of their UTF-8. A store may have
    no form for some text, such as half of a surrogate pair: what needs it raises StoreError, and writes of other
    threads are made.
    """

    @property
    def is_shared(self) -> bool:
        """Whether several processes may have the store open at once."""
        ...

    @property
    def durability(self) -> str:
        """A sentence that says which crashes a durable change survives, for operators."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        """Return a thread, at `version` if one is given; None if there is no such thread or version.

        The records of the ranges are read at the same moment as the state. They are the current ones even for an
        earlier `version`.

        Raises CorruptThread when its data is damaged, StoreError when it cannot be read.
        """
        ...

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        """Return the header of a thread, even if its data is damaged; None if there is no such thread."""
        ...

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        """Return the changes after a version, in order. If the log was pruned, the first one may have a later version.

        Returns at most `limit` changes. With `size`, ends with the change at which the operations reach it in bytes.
        """
        ...

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        """Return the changes before a version, newest first; `limit` and `size` are those of `changes`."""
        ...

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        """Return the row of a client by its connection id; None if there is none.

        It is kept for 30 days after the client's last push, and until other clients have pushed on 30 different days,
        so that a wrong clock does not expire it.
        """
        ...

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        """Return the value of a record; None if there is none. Raises CorruptThread when it is damaged."""
        ...

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        """Return the records of a range. Raises CorruptThread when one of them is damaged."""
        ...

    async def records_of_each(
        self, keys: Sequence[ThreadKey], *places: tuple[str, str]
    ) -> list[Sequence[bytes | None]]:
        """Return the values of the same records of several threads, by part and key; None if missing or damaged."""
        ...

    def view(self, key: ThreadKey) -> AbstractAsyncContextManager[ThreadView | None]:
        """Read a thread as it is at one moment, while it may be written; None if there is no such thread.

        Entering raises what `load` raises.
        """
        ...

    def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        """Yield the writes without a fence that make a thread in an empty store, of about 1 MiB each.

        With an open view, the thread is that of the view, though the rows of its clients may be later. Without one,
        nothing may write to the thread until the end. Yields nothing if there is no such thread. Raises CorruptThread,
        also if changes that a view has are removed from the log before they were read.
        """
        ...

    async def claim(self, key: ThreadKey) -> int:
        """Become the owner of a thread, and return a number above 0, which the owner's writes need as their `fence`.

        When this returns, the writes of earlier owners have ended. Writes that they submit later fail with Fenced.
        """
        ...

    async def claim_and_load(
        self, key: ThreadKey, *, records: Sequence[RecordRange] = ()
    ) -> tuple[int, StoredThread | None]:
        """Claim a thread and load it, in one round trip where the engine is elsewhere. Raises what both raise."""
        ...

    def watch_claims(self, on_lost: Callable[[], None], may_write: Callable[[], bool] | None = None) -> None:
        """Have `on_lost` called when all claims have ended at once, as the engine may have lost durable writes.

        What was loaded before is then no longer certain. A shared store refuses writes while `may_write` returns False,
        as the lease of this process has ended. A later call replaces both.
        """
        ...

    def release(self, key: ThreadKey, fence: int) -> None:
        """Give up the ownership of a thread, unless it already has another owner. Does no I/O.

        The writes that the owner has submitted are still made, before the next claim returns.
        """
        ...

    def submit(self, write: Write) -> asyncio.Future[int]:
        """Queue a write. The future is done when the write is durable, or has the StoreError that prevented it.

        The result is the number of writes that became durable at once, at least 1. After Indeterminate, it is not
        known whether the write is durable; after any other error, it is not durable.
        """
        ...

    async def check_writes(self) -> None:
        """Raise StoreError while writes fail or would fail. Called by `/readyz`."""
        ...

    async def schema(self, kind: str, hash: str) -> bytes | None:
        """Return an earlier JSON Schema of a kind's state by its hash; None if it is not stored."""
        ...

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        """Store a JSON Schema, which is never deleted."""
        ...

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        """Return the stored threads of a query. A thread whose due time is INCOMPLETE is left out.

        In the order of changes, a thread that changes between two pages may be missing.
        """
        ...

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        """Return the threads that are due at `until` or before, the earliest first, after `after`.

        The result may contain a thread that is not due. A thread with a durable due time is never missing.
        """
        ...
