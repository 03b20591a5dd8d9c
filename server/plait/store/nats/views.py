"""Views of threads: their records stay those of one moment, while this process writes them."""

from bisect import bisect_right
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final

from plait.errors import StoreError
from plait.store.nats.contents import Contents, Moved, read_values
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import name_record
from plait.store.nats.planning import Plan
from plait.store.page import take_page
from plait.store.thread_rows import Record, ThreadKey

__all__ = ["View", "Views"]

# Records that are read at once.
_AT_ONCE: Final = 64


class View:
    """The records of a thread at one moment."""

    def __init__(self, stream: JetStream, contents: Contents) -> None:
        self._stream = stream
        self.contents = contents
        self._names = list(contents.names)
        # The rows that the head does not keep.
        self._rests = set(contents.records.values()) - set(contents.thread.rows)
        # Values that have been replaced or deleted since, by the rest of their subject.
        self._saved: dict[str, bytes | None] = {}

    async def read(self, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        """Return records after a part and a key. Raises StoreError."""
        found: list[Record] = []
        total, start = 0, bisect_right(self._names, after)
        while len(found) < limit and start < len(self._names) and total < max(size, 1):
            some = self._names[start : start + min(_AT_ONCE, limit - len(found))]
            start += len(some)
            for name, value in zip(some, await self._read(some), strict=True):
                if value is not None:
                    found.append(Record(*name, value))
                    total += len(value)
        return take_page(found, lambda record: len(record.value or b""), size)

    async def save(self, plan: Plan) -> None:
        """Keep the values that a write replaces or deletes."""
        rests = [rest for rest in plan.rows if rest in self._rests and rest not in self._saved]
        values = await read_values(self._stream, self.contents.start, rests)
        for rest in rests:
            self._saved[rest] = values.get(rest, (0, None))[1]

    async def _read(self, names: list[tuple[str, str]]) -> list[bytes | None]:
        rests = [name_record(name) for name in names]
        try:
            wanted = [rest for rest in rests if rest not in self._saved]
            values = await read_values(self._stream, self.contents.start, wanted, self.contents.thread.rows)
        except Moved:
            values = {}
        found: list[bytes | None] = []
        for rest in rests:
            if rest in self._saved:
                found.append(self._saved[rest])
                continue
            sequence, value = values.get(rest, (None, None))
            if sequence is None or sequence > self.contents.known.sequence:
                raise StoreError(f"{self.contents.known.head.key} was written by another process while it was read")
            found.append(value)
        return found


class Views:
    """The open views of a store."""

    def __init__(self) -> None:
        self._open: dict[ThreadKey, list[View]] = {}

    def has(self, key: ThreadKey) -> bool:
        """Whether a thread has a view."""
        return key in self._open

    @contextmanager
    def hold(self, view: View) -> Iterator[None]:
        """Keep a view as it is."""
        key = view.contents.known.head.key
        self._open.setdefault(key, []).append(view)
        try:
            yield
        finally:
            self._open[key].remove(view)
            if not self._open[key]:
                del self._open[key]

    def save(self, key: ThreadKey, plan: Plan) -> Awaitable[None] | None:
        """Keep for the views of a thread what a write replaces; return what is to be awaited, if there is a view."""
        if not plan.rows or key not in self._open:
            return None
        return self._save(self._open[key], plan)

    async def _save(self, views: list[View], plan: Plan) -> None:
        for view in list(views):
            try:
                await view.save(plan)
            except Moved:
                continue  # Its reader is told that it has changed.
