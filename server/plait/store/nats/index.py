"""Lists threads: an index of all heads in memory, which is brought up to date before each answer."""

import asyncio
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from plait.store.nats.api import StoredMessage
from plait.store.nats.jetstream import READ_AGAIN, Deadline, JetStream
from plait.store.nats.layout import GIVEN_UP, Known, Subjects, ThreadHead, decode_rows
from plait.store.outcomes import Unreachable
from plait.store.page import PLACES, sort_in_steps
from plait.store.protocol import DueThread, ThreadQuery, ThreadRow
from plait.store.thread_rows import INCOMPLETE, ThreadKey

__all__ = ["Index"]

T = TypeVar("T")

# Heads that are read at once.
_AT_ONCE: Final = 500
# Seconds that heads may take to arrive.
_PATIENCE: Final = 10.0


class _IndexRow(msgspec.Struct, gc=False):
    """The columns of one thread in listings."""

    key: ThreadKey
    version: int
    created_at: int
    changed_at: int
    user: str | None
    due: int
    sequence: int


class Index:
    """Knows the heads of all threads, as they were when `refresh` was called or later."""

    def __init__(self, stream: JetStream, subjects: Subjects) -> None:
        self._stream = stream
        self._subjects = subjects
        # A copy of the stream that has this message has all heads that were durable before it.
        stream.barrier = subjects.barrier(secrets.token_hex(8))
        self._turn = asyncio.Lock()
        self._rows: dict[str, _IndexRow] = {}
        self._of_users: dict[str, dict[str, _IndexRow]] = {}
        # The last sequence that was read, and when.
        self._sequence = 0
        self._read_at = 0.0
        # By their order, kind and user: the entries of rows; those that were asked for since the last change.
        self._sorted: dict[tuple[str, str | None, str | None], list[Any]] = {}
        self._sorting = asyncio.Lock()
        # Threads that were deleted, and whose rows may not be removed yet.
        self._unclean: dict[ThreadKey, Known] = {}

    def reset(self) -> None:
        """Forget everything, as the stream may have lost something."""
        self._rows, self._of_users, self._sorted, self._sequence, self._unclean = {}, {}, {}, 0, {}

    async def refresh(self) -> None:
        """Read the heads that have changed. Raises StoreError."""
        async with self._turn:
            now = time.monotonic()
            if now - self._read_at > GIVEN_UP / 2:  # Heads that were given up may be gone.
                self.reset()
            deadline = Deadline(_PATIENCE)
            barrier = await self._stream.publish(self._stream.make_barrier())
            if self._sequence > barrier:  # It is another stream.
                self.reset()
            while self._sequence < barrier:
                found = await self._stream.after(self._sequence, self._subjects.heads, _AT_ONCE)
                for stored in found:
                    self._apply(stored)
                if found:
                    self._sequence = found[-1].sequence
                else:
                    await deadline.rest(Unreachable("a copy of the stream is too far behind"), READ_AGAIN)
            self._read_at = now

    def take_unclean(self) -> list[Known]:
        """Return the heads, among those that were read, of threads that were deleted and may have rows left."""
        found, self._unclean = list(self._unclean.values()), {}
        return found

    async def threads(self, query: ThreadQuery) -> list[ThreadRow]:
        """Return the rows of `Store.threads`."""
        kind, prefix, user, order, after = query.kind, query.prefix, query.user, query.order, query.after

        def make(row: _IndexRow) -> ThreadRow | None:
            if row.due == INCOMPLETE or kind not in (None, row.key.kind):
                return None
            return ThreadRow(row.key, row.version, row.created_at, row.changed_at, row.user)

        place = PLACES[order]
        rows = await self._sort((order, kind, user), make, place)
        is_reversed = order != "name"
        found: list[ThreadRow] = []
        start, step = (len(rows) - 1, -1) if is_reversed else (0, 1)
        if after is not None:
            at = bisect_right(rows, place(after), key=place)
            start = at - 1 if is_reversed else at
            while is_reversed and start >= 0 and place(rows[start]) >= place(after):
                start -= 1
        while 0 <= start < len(rows) and len(found) < query.limit:
            row = rows[start]
            start += step
            if row.key.name.startswith(prefix):
                found.append(row)
        return found

    async def due(self, until: int, after: DueThread | None, limit: int) -> list[DueThread]:
        """Return the rows of `Store.due_threads`."""

        def make(row: _IndexRow) -> DueThread | None:
            return DueThread(row.due, row.key) if row.due else None

        rows = await self._sort(("due", None, None), make, lambda thread: thread)
        start = 0 if after is None else bisect_right(rows, after)
        return [each for each in rows[start : start + limit] if each.due <= until]

    # Inside

    def _apply(self, stored: StoredMessage) -> None:
        name = stored.subject.rpartition(".")[2]
        if name.startswith("-"):
            return
        head = decode_rows(stored.data, ThreadHead) if stored.data else None
        if head is not None and head.removed:
            self._unclean[head.key] = Known(stored.sequence, head)
        if (before := self._rows.pop(stored.subject, None)) is not None:
            self._sorted = {}
            if before.user is not None:
                del self._of_users[before.user][stored.subject]
        if head is None or (thread := head.thread) is None:
            return
        self._sorted = {}
        row = self._rows[stored.subject] = _IndexRow(
            head.key,
            thread.version,
            thread.created_at,
            thread.changed_at,
            thread.user,
            thread.due,
            stored.sequence,
        )
        if row.user is not None:
            self._of_users.setdefault(row.user, {})[stored.subject] = row

    async def _sort(
        self, name: tuple[str, str | None, str | None], make: Callable[[_IndexRow], T | None], place: Callable[[T], Any]
    ) -> list[T]:
        """Return the entries of all rows in order, as they are now; other tasks run in between."""
        known = self._sorted  # The next change replaces it, and drops what it has outdated.
        if (found := known.get(name)) is None:
            user = name[-1]
            rows = list((self._rows if user is None else self._of_users.get(user, {})).values())
            async with self._sorting:
                if (found := known.get(name)) is None:  # Another caller may have sorted them.
                    found = known[name] = await sort_in_steps(rows, make, place)
        return found
