"""Fills a new thread in pages: what an import and a fork have in common."""

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar

import msgspec

from plait.actor.actor import Actor
from plait.actor.kind import Kind, check_name
from plait.agents.session_names import SESSION, decode_session
from plait.errors import Conflict
from plait.kv.user_names import find_user
from plait.parts.part import find_parts
from plait.store.protocol import Store, ThreadKey, Write
from plait.store.thread_rows import INCOMPLETE, Record, Snapshot

__all__ = ["Filling"]


class Filling:
    """The data of a new thread. Until the write after the last page, the thread is incomplete."""

    # The action if there is a thread with the name.
    advice: ClassVar[str]

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind = kind
        self.key = ThreadKey(kind.name, check_name(name))
        self.epoch = secrets.token_bytes(8).hex()
        self._parts = find_parts(kind.cls)

    def conflict(self) -> Conflict:
        """Return the error for a name that a thread has."""
        return Conflict(f"there is a thread {self.key} already: {self.advice}")

    async def write(self, store: Store, fence: int) -> None:
        """Store all in pages. Raises StoreError, and what reading raises."""
        raise NotImplementedError

    def finish(self, actor: Actor) -> Sequence[Record]:
        """Return the records of the write that completes the thread, which was loaded from the pages."""
        return ()

    # Inside

    async def _write_pages(self, store: Store, first: Write, pages: AsyncIterator[Sequence[Record]]) -> None:
        """Store a first write, which creates the thread, with pages of records."""
        write = first
        async for page in pages:
            await store.submit(msgspec.structs.replace(write, records=[each for each in page if self._takes(each)]))
            write = Write(self.key, self.epoch, 0, 0, fence=first.fence)
        if write is first:
            await store.submit(write)

    def _begin(
        self, fence: int, *, state: bytes | None, state_version: int, created_at: int, user: str | None
    ) -> Write:
        """Return the first write, without records."""
        return Write(
            self.key,
            self.epoch,
            None,
            0,
            snapshots=() if state is None else (Snapshot(0, state),),
            state_version=state_version,
            secret=secrets.token_bytes(16),
            fence=fence,
            due=INCOMPLETE,
            created_at=created_at,
            user=find_user(self.key.name) or user,
        )

    def _takes(self, record: Record) -> bool:
        """Whether a record is one of a part that the class has, or of the thread itself."""
        if (record.part, record.key) == SESSION:
            return decode_session(self.key.name, record.value or b"") is not None
        return record.part in self._parts
