"""A store over the rows of an engine that several processes have open: each thread has one owner, who writes to it."""

import asyncio
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Self

import msgspec

from plait.clock import read_wall_clock
from plait.errors import CorruptThread, Fenced, StoreError
from plait.store.outcomes import make_fenced, retell
from plait.store.protocol import StoredThread
from plait.store.rows import reads
from plait.store.rows.engine import INDEX, LOST, Change, Engine, Known, Owner, ReadPlan, Reads
from plait.store.rows.layout import only
from plait.store.rows.parts import OWNER
from plait.store.rows.planning import plan_head
from plait.store.rows.server import ServerEngine
from plait.store.rows.spaces import Spaces, write_all
from plait.store.rows.store import RowStore
from plait.store.thread_rows import RecordRange, ThreadKey

__all__ = ["SharedRowStore"]

# How often a thread is claimed that another one, or a late attempt, has claimed before its new epoch was stored.
_CLAIMS: Final = 3
# The bits of the number of a space, which is random: processes take them without asking each other.
_BITS: Final = 62


class _RandomSpaces(Spaces):
    """The spaces of an engine that several processes have open: they take numbers without asking each other."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.left = sys.maxsize

    def take_number(self) -> int:
        return secrets.randbits(_BITS) + 1


class SharedRowStore(RowStore):
    """A store over an engine that `make` connects to a URL.

    `readonly=True` only reads. A subclass names `make`.
    """

    make: ClassVar[Callable[..., Any]]
    recent = 64
    _make_spaces = _RandomSpaces

    def __init__(self, url: Any, *, readonly: bool = False) -> None:
        self.url = url
        self._server: ServerEngine[Any] = type(self).make(url, readonly=readonly)
        self._server.connector.on_loss = self._on_loss
        # Of the threads that this store has claimed.
        self._owners: dict[ThreadKey, Owner] = {}
        self._last_fence = 0
        # Names this store in the rows of owners.
        self._name = secrets.token_hex(4)
        # Set when a claim of the thread has ended.
        self._claiming: dict[ThreadKey, asyncio.Event] = {}
        super().__init__(self._server, readonly=readonly)

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def engine(self) -> Any:
        """The object that connects to the server, for the cells of the store."""
        return self._server.connector

    def reader(self) -> Self:
        """Return a read-only store of the same data."""
        return type(self)(self.url, readonly=True)

    async def claim_and_load(
        self, key: ThreadKey, *, records: Sequence[RecordRange] = ()
    ) -> tuple[int, StoredThread | None]:
        found: StoredThread | None = None
        is_read = False

        async def claim(key: ThreadKey) -> int:
            nonlocal found, is_read
            fence, found = await self._claim(key, records)
            is_read = not self._has_writes(key)
            return fence

        fence = await self._change_owner(key, claim)
        try:
            return fence, found if is_read else await self.load(key, records=records)
        except BaseException:
            self.release(key, fence)
            raise

    # Inside

    async def _next_fence(self, key: ThreadKey) -> int:
        fence, _ = await self._claim(key, None)
        return fence

    async def _claim(self, key: ThreadKey, ranges: Sequence[RecordRange] | None) -> tuple[int, StoredThread | None]:
        """Become the owner of a thread, and load it with the records of ranges, if these are given."""
        if self._readonly:
            raise StoreError("the store is read-only")
        # The row of the last owner must be the last one that is written.
        while (earlier := self._claiming.get(key)) is not None:
            await earlier.wait()
        self._claiming[key] = claimed = asyncio.Event()
        try:
            for _ in range(_CLAIMS - 1):
                # An earlier attempt of the claim may have arrived after it, at the moment of a failover.
                with suppress(Fenced):
                    return await self._replace_owner(key, ranges)
            return await self._replace_owner(key, ranges)
        finally:
            del self._claiming[key]
            claimed.set()

    async def _replace_owner(
        self, key: ThreadKey, ranges: Sequence[RecordRange] | None
    ) -> tuple[int, StoredThread | None]:
        # Above those of earlier owners, unless a clock is wrong: only in this store, no two may be equal.
        self._last_fence = max(read_wall_clock(), self._last_fence + 1)
        owner = Owner(self._last_fence, self._name, self._server.origin)
        self._known.pop(key, None)
        try:
            try:
                await self._server.claim(key, owner)
            except StoreError as error:
                raise retell(error, f"{key} cannot be claimed: {error}") from error
            # A loss that was noticed before does not concern it.
            owner.origin, self._owners[key] = self._server.origin, owner
            plan = ReadPlan(_load_claimed, key, owner, ranges, self.recent)
            try:
                known, stored = await self._read(key, plan, self._server.read_owned)
            except CorruptThread:  # A later owner may have pruned the log between two reads.
                known, stored = await self._read(key, plan)
            # Nothing is written over a damaged row.
            if known.head not in (None, LOST) and self._server.may_have_lost(known.head.origin):
                known, stored = await self._renew(key, known, stored)
        except BaseException:
            # The row of the owner is removed.
            self._owners[key], self._stale[key] = owner, None
            self._save_later()
            raise
        if not owner.is_lost:
            self._known[key] = known
        return owner.fence, stored

    async def _renew(
        self, key: ThreadKey, known: Known, stored: StoredThread | None
    ) -> tuple[Known, StoredThread | None]:
        """Give a thread a new epoch, as the engine may lack changes of it that clients have seen."""
        change = plan_head(key, known, self._server.origin)
        await write_all(self._server, [change])
        known = change.after or known
        epoch = known.head.epoch if known.head is not None else ""
        return known, stored and msgspec.structs.replace(stored, epoch=epoch)

    def _find_known(self, key: ThreadKey, fence: int) -> Reads[Known]:
        if (owner := self._owners.get(key)) is None or owner.is_lost or owner.fence != fence:
            raise make_fenced(key)
        return msgspec.structs.replace((yield from super()._find_known(key, fence)), owner=owner)

    def _forget(self, key: ThreadKey) -> Iterable[Change]:
        """Forget a thread without an owner; unless it is known to be stored, remove the row of its owner."""
        if key in self._claiming:  # It has its next owner in a moment.
            return
        owner, known = self._owners.pop(key, None), self._known.get(key)
        yield from super()._forget(key)
        if owner is not None and not owner.is_lost and (known is None or known.head is None):
            yield Change(key, (), (only(INDEX, OWNER + key.kind, key.name),), owner=owner)

    def _on_loss(self) -> None:
        """End all claims, as the server may have lost durable writes."""
        for owner in self._owners.values():
            owner.is_lost = True
        self._owners.clear()
        self._known.clear()
        self._lose_claims()


def _load_claimed(
    key: ThreadKey, owner: Owner, ranges: Sequence[RecordRange] | None, recent: int
) -> Reads[tuple[Known, StoredThread | None]]:
    """Return a thread as its owner knows it and, with ranges, the thread with the records of these."""
    if ranges is None:
        found = yield from reads.find(key)
        return Known(owner=owner) if found is None else Known(*found, found[0].changed_at, owner=owner), None
    loaded = yield from reads.load(key, None, ranges, recent=recent)
    if loaded is None:
        return Known(owner=owner), None
    stored, head = loaded
    # The row may be a second older than the last change.
    changed_at = max(head.changed_at, stored.changes[-1].at if stored.changes else 0)
    return Known(head, stored.version, changed_at, owner=owner), stored
