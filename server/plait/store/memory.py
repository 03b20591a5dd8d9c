"""A store in the memory of this process, for tests and for data that may be lost."""

import asyncio
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from plait.errors import StoreError
from plait.store.outcomes import Outcome
from plait.store.page import take_page
from plait.store.rows.engine import INDEX, Change, Key, Reader, ReadPlan, Row, Span
from plait.store.rows.running import run_reads
from plait.store.rows.store import RowStore

__all__ = ["MemoryRows", "MemoryStore"]

T = TypeVar("T")


class MemoryStore(RowStore):
    """Keeps threads in memory; they are lost with the object."""

    def __init__(self) -> None:
        self._rows = MemoryRows()
        super().__init__(self._rows)

    def clear(self) -> None:
        """Remove everything. Raises StoreError while the store is open."""
        if self._is_entered:
            raise StoreError(f"{self._title} is open, and cannot be emptied: its app is running already")
        self._rows.clear()


class _Part:
    """The rows of a part, with their keys in order."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        # All of them are numbers, or all are text.
        self.keys: list[Any] = []
        self.values: dict[Key, bytes] = {}

    def add(self, key: Any) -> None:
        """Add the key of a new row."""
        if not self.keys or key > self.keys[-1]:
            self.keys.append(key)
        else:
            insort(self.keys, key)

    def remove(self, start: Any, end: Any) -> None:
        """Remove the rows from a key up to another one."""
        first, last = bisect_left(self.keys, start), bisect_left(self.keys, end)
        for key in self.keys[first:last]:
            del self.values[key]
        del self.keys[first:last]

    def copy(self) -> "_Part":
        """Return a copy."""
        found = _Part()
        found.keys, found.values = [*self.keys], {**self.values}
        return found


_Space = dict[str, _Part]


class MemoryRows:
    """Keeps rows in dicts; they are lost with the object."""

    title = "the store"
    durability = "changes are lost when the process ends"

    def __init__(self) -> None:
        self._spaces: dict[int, _Space] = {}

    async def open(self) -> bool:
        return False

    async def close(self) -> None: ...

    async def probe(self, *, writes: bool) -> None: ...

    def explain(self, error: BaseException) -> str | None:
        return None

    def is_trouble(self, cause: BaseException) -> bool:
        return False

    async def read(self, plan: ReadPlan[T], /) -> T:
        return run_reads(plan, self._read)

    @asynccontextmanager
    async def view(self) -> AsyncIterator[Reader]:
        copied: dict[int, _Space] = {}

        def read_span(span: Span) -> list[Row]:
            number = span.number
            if number != INDEX and number not in copied:
                copied[number] = {name: part.copy() for name, part in self._spaces.get(number, {}).items()}
            return _read_span((copied if number != INDEX else self._spaces).get(number), span)

        async def read(plan: ReadPlan[T], /) -> T:
            return run_reads(plan, lambda spans: [read_span(span) for span in spans])

        yield read

    def write(self, changes: Sequence[Change], /) -> asyncio.Future[Sequence[Outcome]]:
        done: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()
        spaces = self._spaces
        for change in changes:
            for number, name, key, value in change.rows:
                try:
                    part = spaces[number][name]
                except KeyError:
                    part = spaces.setdefault(number, {}).setdefault(name, _Part())
                if key not in part.values:
                    part.add(key)
                part.values[key] = value
            for gone in change.gone:
                self._remove(*gone)
            for number in change.spaces:
                spaces.pop(number, None)
        done.set_result([change.outcome for change in changes])
        return done

    def clear(self) -> None:
        """Remove all rows."""
        self._spaces.clear()

    # Inside

    def _read(self, spans: Sequence[Span]) -> list[list[Row]]:
        return [_read_span(self._spaces.get(span.number), span) for span in spans]

    def _remove(self, number: int, name: str, start: Key, end: Key) -> None:
        space = self._spaces.get(number)
        if space is None or (part := space.get(name)) is None:
            return
        part.remove(start, end)
        if not part.keys:
            del space[name]
            if not space:
                del self._spaces[number]


def _read_span(space: _Space | None, span: Span) -> list[Row]:
    return take_page(_find(space or {}, span), lambda row: len(row[2] or b""), span.size)


def _find(space: _Space, span: Span) -> Iterator[Row]:
    left, (first, *start), (last, *end) = span.limit, span.start, span.end
    for name in sorted([name for name in space if first <= name <= last], reverse=span.reverse):
        part = space[name]
        begin = bisect_left(part.keys, start[0]) if start and name == first else 0
        stop = len(part.keys)
        if name == last:
            stop = bisect_left(part.keys, end[0]) if end else 0
        if span.reverse:
            keys = part.keys[max(begin, stop - left) : stop][::-1]
        else:
            keys = part.keys[begin : min(stop, begin + left)]
        left -= len(keys)
        for key in keys:
            yield name, key, b"" if span.keys_only else part.values[key]
