"""A store that has all threads in memory, as they are in the files."""

from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext

import msgspec

from plait.store.base import EngineStore
from plait.store.page import PLACES, take_page
from plait.store.protocol import (
    ALL_THREADS,
    READ,
    DueThread,
    StoredThread,
    ThreadHeader,
    ThreadQuery,
    ThreadRow,
    ThreadView,
    Write,
)
from plait.store.pruning import find_expired, find_oldest
from plait.store.thread_rows import (
    INCOMPLETE,
    KNOWN_CLIENTS,
    ChangeRow,
    ClientRow,
    Prune,
    Record,
    RecordRange,
    Snapshot,
    ThreadKey,
)

__all__ = ["LoadedStore", "MemoryRow"]


class MemoryRow(msgspec.Struct):
    """A thread."""

    epoch: str
    secret: bytes
    created_at: int
    user: str | None
    changed_at: int
    due: int = 0
    version: int = 0
    state_version: int = 1
    changes: list[ChangeRow] = []
    # By version, in order.
    snapshots: dict[int, bytes] = {}
    clients: dict[str, ClientRow] = {}
    # By part and key.
    records: dict[str, dict[str, bytes]] = {}

    def apply(self, write: Write, now: int) -> None:
        """Apply a write that follows this version."""
        self.version = write.version
        self.state_version = write.state_version or self.state_version
        if write.due is not None:
            self.due = write.due
        if write.changed_at is not None:
            self.changed_at = write.changed_at
        elif write.changes or any(each.part != READ for each in write.records):
            self.changed_at = now
        self.changes += write.changes
        self.snapshots.update((each.version, each.state) for each in write.snapshots)
        self.clients.update((row.client, row) for row in write.clients)
        for record in write.records:
            part = self.records.setdefault(record.part, {})
            if record.value is None:
                part.pop(record.key, None)
            else:
                part[record.key] = record.value
        if write.prune is not None:
            self.prune(write.prune, now)

    def prune(self, prune: Prune, now: int) -> None:
        """Remove everything older than the newest snapshot that is outside a bound."""
        oldest = find_oldest(self.changes, self.snapshots, prune, now)
        self.changes = [row for row in self.changes if row.version > oldest]
        self.snapshots = {at: state for at, state in self.snapshots.items() if at >= oldest}
        for id in find_expired({id: row.at for id, row in self.clients.items()}, now):
            del self.clients[id]

    def as_write(self, key: ThreadKey) -> Write:
        """Return the write that makes this thread in an empty store."""
        return Write(
            *(key, self.epoch, None, self.version, tuple(self.changes)),
            snapshots=[Snapshot(*each) for each in self.snapshots.items()],
            clients=list(self.clients.values()),
            state_version=self.state_version,
            secret=self.secret,
            records=[Record(part, *each) for part, values in self.records.items() for each in values.items()],
            due=self.due or None,
            created_at=self.created_at,
            user=self.user,
            begins_at=self.version - len(self.changes),
            changed_at=self.changed_at,
        )


class LoadedStore(EngineStore):
    """The methods of a store that has all threads in memory."""

    def __init__(self, *, title: str = "the store", most: int = 1) -> None:
        self._threads: dict[ThreadKey, MemoryRow] = {}
        self._schemas: dict[tuple[str, str], bytes] = {}
        super().__init__(title=title, most=most)

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        row = self._find_row(key)
        if row is None:
            return None
        to = row.version if version is None else version
        if not min(row.snapshots, default=0) <= to <= row.version:
            return None
        since = max((at for at in row.snapshots if at <= to), default=0)
        changes = [each for each in row.changes if since < each.version <= to]
        clients = frozenset(row.clients) if version is None and len(row.clients) <= KNOWN_CLIENTS else None
        return StoredThread(
            row.epoch,
            to,
            row.snapshots.get(since),
            changes,
            row.state_version,
            row.secret,
            clients,
            row.due,
            row.created_at,
            row.user,
            tuple(self._records(row, each) for each in records),
        )

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        row = self._threads.get(key)
        if row is None:
            return None
        return ThreadHeader(row.epoch, row.version, row.created_at, row.user, row.due, row.changed_at)

    async def _changes(
        self, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
    ) -> list[ChangeRow]:
        row = self._find_row(key)
        if row is None or not row.changes:
            return []
        # Their versions have no gaps.
        rows, at = row.changes, version - row.changes[0].version + (not is_reverse)
        at = min(max(0, at), len(rows))
        return take_page(rows[max(0, at - limit) : at][::-1] if is_reverse else rows[at : at + limit], _ops_size, size)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        row = self._find_row(key)
        return row.clients.get(client) if row else None

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        row = self._find_row(key)
        return row.records.get(part, {}).get(name) if row else None

    async def records_of_each(
        self, keys: Sequence[ThreadKey], *places: tuple[str, str]
    ) -> list[Sequence[bytes | None]]:
        found = map(self._threads.get, keys)
        return [[row.records.get(part, {}).get(name) if row else None for part, name in places] for row in found]

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        row = self._find_row(key)
        return self._records(row, wanted) if row else []

    async def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        # A view sorts the records once for all pages.
        viewing = self.view(key) if view is None else nullcontext(view)
        async with viewing as found, aclosing(super().export(key, view=found)) as writes:
            async for write in writes:
                yield write

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        stored, row = await self.load(key), self._find_row(key)
        if stored is None or row is None:
            yield None
            return
        values = {(part, name): value for part, found in row.records.items() for name, value in found.items()}
        names = sorted(values)

        async def read(after: tuple[str, str], limit: int, size: int) -> list[Record]:
            start = bisect_right(names, after)
            found = (Record(*name, values[name]) for name in names[start : start + limit])
            return take_page(found, _value_size, size)

        yield ThreadView(stored, read)

    async def schema(self, kind: str, hash: str) -> bytes | None:
        return self._schemas.get((kind, hash))

    async def add_schema(self, kind: str, hash: str, schema: bytes) -> None:
        self._schemas[kind, hash] = schema

    async def threads(self, query: ThreadQuery = ALL_THREADS) -> list[ThreadRow]:
        kind, prefix, user, order, after = query.kind, query.prefix, query.user, query.order, query.after
        found = [
            ThreadRow(key, row.version, row.created_at, row.changed_at, row.user)
            for key, row in self._threads.items()
            if kind in (None, key.kind) and key.name.startswith(prefix) and user in (None, row.user)
            if row.due != INCOMPLETE
        ]
        place, is_reversed = PLACES[order], order != "name"
        found.sort(key=place, reverse=is_reversed)
        if after is not None:
            last = place(after)
            found = [row for row in found if (place(row) < last if is_reversed else place(row) > last)]
        return found[: query.limit]

    async def due_threads(self, *, until: int, after: DueThread | None = None, limit: int = 100) -> list[DueThread]:
        found = sorted(DueThread(row.due, key) for key, row in self._threads.items() if 0 < row.due <= until)
        return [each for each in found if after is None or each > after][:limit]

    # Inside

    async def _list_snapshots(self, key: ThreadKey) -> Iterable[int]:
        row = self._find_row(key)
        return row.snapshots if row else ()

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        row = self._find_row(key)
        return [each for id, each in sorted(row.clients.items()) if id > after][:limit] if row else []

    def _find_row(self, key: ThreadKey) -> MemoryRow | None:
        """Return a thread for a read."""
        return self._threads.get(key)

    def _records(self, row: MemoryRow, wanted: RecordRange) -> list[Record]:
        part, before = wanted.part, wanted.before
        values = row.records.get(part, {})
        names = [name for name in values if name.startswith(wanted.prefix) and name > wanted.after]
        names = sorted((name for name in names if before is None or name < before), reverse=wanted.reverse)
        return take_page((Record(part, name, values[name]) for name in names[: wanted.limit]), _value_size, wanted.size)

    def _head(self, key: ThreadKey) -> tuple[str, int] | None:
        """Return the epoch and version of a thread."""
        row = self._threads.get(key)
        return (row.epoch, row.version) if row else None

    def _apply(self, key: ThreadKey, writes: Sequence[Write], now: int) -> None:
        """Apply writes that follow what is there."""
        for write in writes:
            if write.is_deletion:
                del self._threads[key]
                continue
            row = self._threads.get(key)
            if row is None:
                row = self._threads[key] = MemoryRow(write.epoch, write.secret, write.created_at, write.user, now)
            row.apply(write, now)


def _ops_size(row: ChangeRow) -> int:
    return len(row.ops)


def _value_size(record: Record) -> int:
    return len(record.value or b"")
