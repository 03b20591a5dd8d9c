"""The store of one engine: it opens and closes, owns threads, and tells whether writes fail."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from plait.errors import CorruptThread, StoreError
from plait.store.batches import GroupCommitter
from plait.store.page import take_page
from plait.store.protocol import StoredThread, ThreadHeader, ThreadView, Write
from plait.store.thread_rows import ChangeRow, ClientRow, Record, RecordRange, Snapshot, ThreadKey

__all__ = ["EngineStore"]

# The most rows of one write of an export, which are one publication in NATS, and the most bytes of their values.
_ROWS: Final = 900
_SIZE: Final = 512 * 1024


class EngineStore(GroupCommitter):
    """A store in one engine. A subclass opens, reads, writes and closes the engine.

    Errors call the store `title`. `most` is that of a GroupCommitter.
    """

    def __init__(self, *, title: str = "the store", most: int = 1) -> None:
        super().__init__(most=most)
        self._title = title
        self._on_claims_lost: Callable[[], None] | None = None
        # Whether the store is open, being opened or being closed.
        self._is_entered = False

    @property
    def is_shared(self) -> bool:
        return False

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise StoreError(f"{self._title} is already open: open it once, or give each app its own store")
        self._is_entered = True
        try:
            await self._open()
        except BaseException as error:
            await self._end()
            if (reason := self._explain(error)) is not None:
                raise StoreError(f"cannot open {self._title}: {reason}") from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def claim_and_load(
        self, key: ThreadKey, *, records: Sequence[RecordRange] = ()
    ) -> tuple[int, StoredThread | None]:
        fence = await self.claim(key)
        try:
            return fence, await self._load_claimed(key, records)
        except BaseException:
            self.release(key, fence)
            raise

    def watch_claims(self, on_lost: Callable[[], None], may_write: Callable[[], bool] | None = None) -> None:
        self._on_claims_lost = on_lost
        if self.is_shared:
            self._may_write = may_write

    async def check_writes(self) -> None:
        if not self._is_open:
            raise StoreError("the store is closed")
        health, now = self._health, asyncio.get_running_loop().time()
        is_in_trouble = health.trouble is not None
        if is_in_trouble:
            if not health.should_try(now):
                raise StoreError(f"the store cannot be written: {health.trouble}")
            health.postpone(now)
        await self._probe(writes=is_in_trouble)
        if is_in_trouble:
            health.record_success()

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        raise NotImplementedError

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        raise NotImplementedError

    async def changes(
        self, key: ThreadKey, *, after: int, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._changes(key, after, limit, size, is_reverse=False)

    async def changes_before(
        self, key: ThreadKey, version: int, *, limit: int = 1000, size: int | None = None
    ) -> list[ChangeRow]:
        return await self._changes(key, version, limit, size, is_reverse=True)

    async def export(self, key: ThreadKey, *, view: ThreadView | None = None) -> AsyncGenerator[Write]:
        header, stored = await self.find(key), await self.load(key) if view is None else view.thread
        if stored is None or (header is None and view is None):
            return
        if header is None or header.epoch != stored.epoch:
            raise CorruptThread(f"{key} cannot be read: it was deleted, or its epoch is new")
        last, first = stored.version, await self.changes(key, after=0, limit=1)
        base = first[0].version - 1 if first else last
        if base > last:
            raise CorruptThread(f"{key} cannot be read: all changes up to version {last} are missing")
        snapshots = sorted(each for each in await self._list_snapshots(key) if each <= last)
        if base and base not in snapshots:
            raise CorruptThread(f"{key} cannot be read: the snapshot of version {base} is missing")

        async def make(after: int | None, to: int, **rows: Any) -> Write:
            ends = [each for each in snapshots if (base - 1 if after is None else after) < each <= to]
            states = [await self._load_snapshot(key, each) for each in ends]
            return Write(key, stored.epoch, after, to, snapshots=states, changed_at=header.changed_at, **rows)

        yield await make(
            None,
            base,
            state_version=stored.state_version,
            secret=stored.secret,
            due=stored.due or None,
            created_at=stored.created_at,
            user=stored.user,
            begins_at=base,
        )
        version = base
        while version < last:
            end = next((each for each in snapshots if each > version), last)
            changes = await self.changes(key, after=version, limit=min(_ROWS, end - version), size=_SIZE)
            end = version + len(changes)
            if not changes or [row.version for row in changes] != list(range(version + 1, end + 1)):
                raise CorruptThread(f"{key} cannot be read: changes are missing after version {version}")
            yield await make(version, end, changes=changes)
            version = end
        client, after = "", ("", "")
        while clients := take_page(await self._list_clients(key, client, _ROWS), lambda row: len(row.refused), _SIZE):
            yield await make(last, last, clients=clients)
            client = clients[-1].client
        while records := await (
            self._list_records(key, after, _ROWS, _SIZE)
            if view is None
            else view.records(after=after, limit=_ROWS, size=_SIZE)
        ):
            yield await make(last, last, records=records)
            after = records[-1].part, records[-1].key
        # What was not of the view may be of another thread with the name.
        if view is not None and ((found := await self.find(key)) is None or found.epoch != stored.epoch):
            raise CorruptThread(f"{key} cannot be read: it was deleted, or its epoch is new")

    # For subclasses

    async def _open(self) -> None:
        self._accept_writes()

    async def _close(self) -> None:
        """Close what is open of the engine. The writes have ended."""

    async def _load_claimed(self, key: ThreadKey, records: Sequence[RecordRange]) -> StoredThread | None:
        """Load a thread that this store has just claimed."""
        return await self.load(key, records=records)

    async def _changes(
        self, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
    ) -> list[ChangeRow]:
        """Return changes after a version, in order, or those before it, newest first."""
        raise NotImplementedError

    async def _list_snapshots(self, key: ThreadKey) -> Iterable[int]:
        """Return the versions of a thread's snapshots."""
        raise NotImplementedError

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        """Return the rows of a thread's clients after one."""
        raise NotImplementedError

    async def _list_records(self, key: ThreadKey, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        """Return records of all parts after a part and a key."""
        raise NotImplementedError

    async def _probe(self, *, writes: bool) -> None:
        """Raise StoreError if the engine cannot be reached or, with `writes`, if a test write fails."""

    def _explain(self, error: BaseException) -> str | None:
        """Return why the store cannot be opened; None if the error is another one, which is raised as it is."""
        return str(error) if isinstance(error, StoreError) else None

    # Inside

    async def _load_snapshot(self, key: ThreadKey, version: int) -> Snapshot:
        found = await self.load(key, version=version)
        if found is None or found.snapshot is None:
            raise CorruptThread(f"{key} cannot be read: the snapshot of version {version} is missing")
        return Snapshot(version, found.snapshot)

    async def _end(self) -> None:
        await self._end_writes()
        await self._close()
        self._is_entered = False

    def _lose_claims(self) -> None:
        """End all claims, as the engine may have lost durable writes."""
        self._end_claims()
        if self._on_claims_lost is not None:
            # Not here, as it may cancel the caller.
            asyncio.get_running_loop().call_soon(self._on_claims_lost)
