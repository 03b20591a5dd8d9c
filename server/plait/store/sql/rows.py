"""The rows of threads, and those that writes make."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from plait.clock import read_wall_clock
from plait.store.protocol import ThreadKey, Write
from plait.store.sql.pruning import make_prunes
from plait.store.sql.tables import CHANGES, CLIENTS, RECORDS, REMOVED, SNAPSHOTS, THREADS, Table

__all__ = ["QUESTION", "ClaimedHead", "Known", "Rows", "StoredRow", "change_rows", "client_rows", "encode"]

QUESTION: Final = 1 << 40
"""A question for the outcome of a write adds this to `ClaimedHead.writes`."""


class ClaimedHead(NamedTuple):
    """The row of a thread: its id, what is stored, the number of its owner, and how many writes it has had.

    The count tells whether a write whose answer was lost is stored. Its lower 40 bits count writes; the others count
    such questions, so that a write that arrives after the question no longer fits.
    """

    id: int
    # None if no thread is stored.
    epoch: str | None
    version: int | None
    fence: int
    writes: int

    @property
    def stored(self) -> tuple[str, int] | None:
        """The stored epoch and version; None if no thread is stored."""
        return None if self.epoch is None or self.version is None else (self.epoch, self.version)

    @classmethod
    def read(cls, row: Any) -> "ClaimedHead":
        """Return the head in a row of its columns."""
        id, epoch, version, fence, writes = row[:5]
        return cls(id, None if epoch is None else epoch.decode(), version, fence, writes)


class StoredRow(NamedTuple):
    """All columns of a thread's row, as they are stored and in their order."""

    id: int
    kind: bytes
    name: bytes
    fence: int
    origin: Any
    writes: int
    epoch: bytes | None = None
    version: int | None = None
    state_version: int | None = None
    secret: bytes | None = None
    stateless: bool | None = None
    due: int | None = None
    created_at: int | None = None
    changed_at: int | None = None
    user_id: bytes | None = None

    @property
    def head(self) -> ClaimedHead:
        """The head of the thread."""
        return ClaimedHead.read((self.id, self.epoch, self.version, self.fence, self.writes))


class Known:
    """The threads that a store knows, and what is left to save of them."""

    def __init__(self) -> None:
        # Of the threads that it has claimed.
        self.heads: dict[ThreadKey, ClaimedHead] = {}
        # By id: when threads have changed, unless it is stored.
        self.changed: dict[int, int] = {}
        # Whether deleted threads have rows left.
        self.has_removed = False


def encode(key: ThreadKey) -> tuple[bytes, bytes]:
    """Return the kind and the name as they are stored. Raises UnicodeEncodeError."""
    return key.kind.encode(), key.name.encode()


def change_rows(writes: Iterable[tuple[int, Write]]) -> list[tuple[Any, ...]]:
    """Return the changes of writes, each with the id of its thread. Raises UnicodeEncodeError."""
    return [(id, row.version, row.ops, row.source.encode(), row.at) for id, write in writes for row in write.changes]


def client_rows(writes: Iterable[tuple[int, Write]]) -> list[tuple[Any, ...]]:
    """Return the last row of each client of writes. Raises UnicodeEncodeError."""
    last = {(id, row.client): row for id, write in writes for row in write.clients}
    return [(id, client.encode(), row.ref, row.refused, row.at) for (id, client), row in last.items()]


class Rows:
    """Collects what one transaction does to several threads, at most a deletion and a write to each."""

    def __init__(self) -> None:
        self._threads: list[StoredRow] = []
        self._removed: list[tuple[int]] = []
        # The id of the thread with each write.
        self._writes: list[tuple[int, Write]] = []
        # By id: when an existing thread has changed.
        self.changed: dict[int, int] = {}

    @property
    def has_removed(self) -> bool:
        """Whether threads are deleted, whose rows are to be removed."""
        return bool(self._removed)

    @property
    def prunes(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The statements that shorten logs, and their values."""
        return make_prunes((id, write.prune) for id, write in self._writes if write.prune is not None)

    @property
    def dropped(self) -> list[tuple[int, bytes, bytes]]:
        """The keys of the records that are deleted. Raises UnicodeEncodeError."""
        return [key for key, value in self._records.items() if value is None]

    @property
    def upserts(self) -> Iterator[tuple[Table, Sequence[Sequence[Any]]]]:
        """The rows that are inserted or replaced, by table. Raises UnicodeEncodeError."""
        writes = self._writes
        snapshots = [(id, each.version, each.state) for id, write in writes for each in write.snapshots]
        kept = [(*key, value) for key, value in self._records.items() if value is not None]
        for table, rows in (
            (THREADS, self._threads),
            (REMOVED, self._removed),
            (CHANGES, change_rows(writes)),
            (CLIENTS, client_rows(writes)),
            (SNAPSHOTS, snapshots),
            (RECORDS, kept),
        ):
            if rows:
                yield table, rows

    def add(self, row: StoredRow, writes: Sequence[Write], new_ids: Sequence[int]) -> StoredRow:
        """Add the writes of a thread, and return its row after them; a deletion takes one of the `new_ids`."""
        row = row._replace(writes=row.writes + 1)
        for write in writes:
            if write.is_deletion:
                self._removed.append((row.id,))
                row = StoredRow(new_ids[0], *row[1:6])
            else:
                row = self._follow(row, write)
                self._writes.append((row.id, write))
        self._threads.append(row)
        return row

    def question(self, row: StoredRow) -> StoredRow:
        """Change a row so that a write that has not arrived yet no longer fits, and return it."""
        row = row._replace(writes=row.writes + QUESTION)
        self._threads.append(row)
        return row

    # Inside

    @property
    def _records(self) -> dict[tuple[int, bytes, bytes], bytes | None]:
        """The last value of each record."""
        return {
            (id, each.part.encode(), each.key.encode()): each.value
            for id, write in self._writes
            for each in write.records
        }

    def _follow(self, row: StoredRow, write: Write) -> StoredRow:
        """Return a row after one of its writes."""
        changed_at = read_wall_clock() if write.changed_at is None else write.changed_at
        if row.epoch is None:
            return row._replace(
                epoch=write.epoch.encode(),
                version=write.version,
                state_version=write.state_version or 1,
                secret=write.secret,
                stateless=write.is_stateless,
                due=write.due or 0,
                created_at=write.created_at,
                changed_at=changed_at,
                user_id=None if write.user is None else write.user.encode(),
            )
        if write.changes or write.records or write.changed_at is not None:
            self.changed[row.id] = changed_at
        return row._replace(
            version=write.version,
            state_version=row.state_version if write.state_version is None else write.state_version,
            due=row.due if write.due is None else write.due,
        )
