"""Fills a new thread in pages, for imports and forks."""

import secrets
from collections.abc import Sequence
from typing import ClassVar

from plait.actor.actor import Actor
from plait.actor.kind import Kind, check_name
from plait.agents.session_names import SESSION, decode_session
from plait.errors import Conflict
from plait.kv.user_names import find_user
from plait.parts.part import find_parts
from plait.store.protocol import READ, Store, Write
from plait.store.thread_rows import INCOMPLETE, Record, Snapshot, ThreadKey

__all__ = ["Filling"]


class Filling:
    """The data of a new thread. Until the write after the last page, the thread is incomplete."""

    # The advice in the error for an existing name.
    advice: ClassVar[str]

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind = kind
        self.key = ThreadKey(kind.name, check_name(name))
        self.epoch = secrets.token_bytes(8).hex()
        # When the last change or record became durable; None for now.
        self.changed_at: int | None = None
        self._parts = find_parts(kind.cls)

    def conflict(self) -> Conflict:
        """Return the error for a name of an existing thread."""
        return Conflict(f"there is a thread {self.key} already: {self.advice}")

    async def write(self, store: Store, fence: int) -> None:
        """Store the data in pages. Raises StoreError, and the errors of reading the source."""
        raise NotImplementedError

    def finish(self, actor: Actor) -> Sequence[Record]:
        """Return the records for the write that completes the thread, after it was loaded from the pages."""
        return ()

    # Inside

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
        """Whether a record belongs to a part of the class, or to the thread itself."""
        if (record.part, record.key) == SESSION:
            return decode_session(self.key.name, record.value or b"") is not None
        return record.part in self._parts or record.part == READ
