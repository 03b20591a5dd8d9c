"""Copies a thread that stays in use: its state and parts at one moment, without the waiting work."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from plait.actor.actor import Actor
from plait.actor.kind import Kind
from plait.clock import read_wall_clock
from plait.errors import InvalidState, NotFound
from plait.limits import Limits
from plait.node.filling import Filling
from plait.state.migrations import migrate_state
from plait.state.state_history import replay_json
from plait.store.protocol import Store, StoredThread, ThreadView, Write
from plait.store.thread_rows import INCOMPLETE, Record, ThreadKey

__all__ = ["Fork"]

_NOTHING: Final = ("", "")


class Fork(Filling):
    """A copy of a thread under another name, with its state at the version `at` if that is given."""

    advice = "fork to another name"

    def __init__(self, kind: Kind, source: str, name: str, *, at: int | None, limits: Limits) -> None:
        super().__init__(kind, name)
        self.source = ThreadKey(kind.name, source)
        self._at = at
        self._limits = limits

    async def write(self, store: Store, fence: int) -> None:
        async with store.view(self.source) as view:
            if view is None or view.thread.due == INCOMPLETE:
                raise NotFound(f"there is no thread {self.source}")
            thread = view.thread
            if self._at is not None and self._at != thread.version:
                thread = await self._find_earlier(store, thread, self._at)
            first = self._begin(
                fence,
                state=await asyncio.to_thread(replay_json, self.source, thread) if thread.has_state else None,
                state_version=thread.state_version,
                created_at=read_wall_clock(),
                user=thread.user,
            )
            await self._write_pages(store, first, view)

    def finish(self, actor: Actor) -> Sequence[Record]:
        return [record for part in self._parts.values() for record in part.leave_work(actor)]

    # Inside

    async def _write_pages(self, store: Store, first: Write, view: ThreadView) -> None:
        """Store a first write, which creates the thread, with the records of a view in pages."""
        write, after = first, _NOTHING
        while page := await view.records(after=after):
            await store.submit(msgspec.structs.replace(write, records=[each for each in page if self._takes(each)]))
            write, after = Write(self.key, self.epoch, 0, 0, fence=first.fence), (page[-1].part, page[-1].key)
        if write is first:
            await store.submit(write)

    async def _find_earlier(self, store: Store, current: StoredThread, at: int) -> StoredThread:
        """Return the thread at an earlier version. Raises NotFound, and InvalidState for a state of another type."""
        stored = await store.load(self.source, version=at) if 0 <= at < current.version else None
        if stored is None or stored.epoch != current.epoch or not stored.has_state:
            raise NotFound(f"version {at} of {self.source} does not exist, or is no longer kept")
        after = at
        while after < current.version and (rows := await store.changes(self.source, after=after, size=1 << 20)):
            if any(row.source == "migration" for row in rows):
                raise InvalidState(f"version {at} is from before a migration, when the state had another type")
            after = rows[-1].version
        # The class may have changed since then, without a migration.
        data = await asyncio.to_thread(replay_json, self.source, stored)
        self.kind.state_type.read(migrate_state(self.key, self.kind, stored) or data, self._limits)
        return stored
