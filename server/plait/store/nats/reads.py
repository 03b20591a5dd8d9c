"""Reads threads, and parts of them. What is read is of one moment, or read again."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from plait.errors import CorruptThread, Fenced, Indeterminate, StoreError
from plait.store.base import EngineStore
from plait.store.nats.cache import ContentsCache
from plait.store.nats.contents import (
    Contents,
    Moved,
    find_contents,
    read_changes,
    read_head,
    read_records,
    read_row,
    read_values,
    select_records,
)
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import Change, Known, Name, Subjects, decode_client, make_name, to_change
from plait.store.outcomes import Unreachable, describe
from plait.store.protocol import StoredThread, ThreadHeader
from plait.store.thread_rows import KNOWN_CLIENTS, ChangeRow, ClientRow, Record, RecordRange, ThreadKey
from plait.store.whole import StoredSchema

__all__ = ["Reads", "keep", "load_contents", "telling"]

# How often something is read again that is written all the time, and the seconds in between.
_TRIES: Final = 40
_READ_AGAIN: Final = 0.05
# Rows that are read at once, where it is not known how many are needed.
_SEGMENTS: Final = 8

T = TypeVar("T")


class Reads(EngineStore):
    """The methods of a store that read its threads."""

    _stream: JetStream
    _subjects: Subjects
    # Of the threads that this process writes.
    _heads: dict[ThreadKey, Known]
    _cache: ContentsCache

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        return await self._load(key, version, records)

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        with telling(key):
            known = await read_head(self._stream, self._subjects, key)
        if known is None or (thread := known.head.thread) is None:
            return None
        return ThreadHeader(thread.epoch, thread.version, thread.created_at, thread.user, thread.due, thread.changed_at)

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        async def read() -> ClientRow | None:
            name = make_name(Name("client", text=client))
            known, value = await read_row(self._stream, self._subjects, key, name)
            if known is None or known.head.thread is None:
                return None
            _require_finished(known)
            return None if value is None else decode_client(value)

        return await self._repeat(key, read)

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        async def read() -> bytes | None:
            rest = make_name(Name("record", part=part, text=name))
            known, value = await read_row(self._stream, self._subjects, key, rest)
            if known is not None and known.head.thread is not None:
                _require_finished(known)
            return value

        return await self._repeat(key, read)

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        with telling(key):
            for text in (wanted.part, wanted.prefix, wanted.after, wanted.before or ""):
                text.encode()  # Raises UnicodeEncodeError.

        async def read(contents: Contents) -> list[Record]:
            names = select_records(contents, wanted)
            return await read_records(self._stream, contents, names, wanted.limit, wanted.size)

        return await self._read(key, read) or []

    async def schema(self, kind: str, hash: str) -> bytes | None:
        with telling("a schema"):
            subject = self._subjects.schema(kind, hash)
            return (await read_values(self._stream, "", [subject])).get(subject, (0, None))[1]

    async def schemas(self) -> list[StoredSchema]:
        with telling("the schemas"):
            info = await self._stream.names(self._subjects.schemas)
            found = [each for each in info.subjects if each.count(".") == 3]
            values = await read_values(self._stream, "", found)
        schemas = ((*self._subjects.read_schema(each), values[each][1]) for each in found if each in values)
        return sorted((kind, hash, value) for kind, hash, value in schemas if value is not None)

    # Inside

    async def _changes(
        self, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
    ) -> list[ChangeRow]:
        async def read(contents: Contents) -> list[ChangeRow]:
            segments = contents.segments
            wanted = [each for each in segments if (each[0].first < version if is_reverse else each[0].last > version)]
            rows = self._read_changes(contents, wanted, reverse=is_reverse)
            return await _take_changes(rows, version.__gt__ if is_reverse else version.__lt__, limit, size)

        return await self._read(key, read) or []

    async def _load(
        self, key: ThreadKey, version: int | None, ranges: Sequence[RecordRange], known: Known | None = None
    ) -> StoredThread | None:
        async def load(contents: Contents) -> StoredThread | None:
            return await load_contents(self._stream, contents, version, ranges)

        return await self._read(key, load, known)

    async def _read(
        self, key: ThreadKey, work: Callable[[Contents], Awaitable[T]], known: Known | None = None
    ) -> T | None:
        """Do something with what a thread has, None if there is none; again if it is written in between.

        With `known`, begin with that head. Raises CorruptThread if something is missing and it is not written.
        """
        contents: Contents | None = None

        async def read() -> T | None:
            nonlocal known, contents
            if contents is not None:  # Rows are missing: a write came between, or the thread is damaged.
                before, contents = contents, None
                self._cache.drop(key)
                now = await read_head(self._stream, self._subjects, key)
                if now is not None and now.sequence == before.known.sequence and not before.thread.unfinished:
                    raise CorruptThread(f"{key} cannot be read: some of its rows are missing")
                known = now
            contents = await self._find_contents(key, known)
            if contents is None:
                return None
            _require_finished(contents.known)
            return await work(contents)

        return await self._repeat(key, read)

    async def _find_contents(self, key: ThreadKey, known: Known | None = None) -> Contents | None:
        """Return what a thread has, None if it is not stored; with `known`, begin with that head."""
        if known is None and self._cache.has(key):
            known = await read_head(self._stream, self._subjects, key)
        if known is not None and (found := self._cache.find(known)) is not None:
            return found
        contents = await find_contents(self._stream, self._subjects, key, known)
        if contents is not None and key in self._heads:
            self._cache.add(contents)
        return contents

    async def _list_snapshots(self, key: ThreadKey) -> list[int]:
        contents = await self._read(key, keep)
        return [] if contents is None else list(contents.snapshots)

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        async def read(contents: Contents) -> list[ClientRow]:
            rests = [rest for id, rest in sorted(contents.clients.items()) if id > after]
            found: list[ClientRow] = []
            while rests and len(found) < limit:  # Some may have been deleted.
                some, rests = rests[:limit], rests[limit:]
                values = await read_values(self._stream, contents.start, some, contents.thread.rows)
                found += [decode_client(row) for rest in some if (row := values.get(rest, (0, None))[1]) is not None]
            return found[:limit]

        return await self._read(key, read) or []

    async def _list_records(self, key: ThreadKey, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        async def read(contents: Contents) -> list[Record]:
            names = contents.names[bisect_right(contents.names, after) :]
            return await read_records(self._stream, contents, names, limit, size)

        return await self._read(key, read) or []

    async def _repeat(self, key: ThreadKey, read: Callable[[], Awaitable[T]]) -> T:
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(_READ_AGAIN)
            with suppress(Moved), telling(key):
                return await read()
        raise StoreError(f"{key} cannot be read: it is being written all the time")

    async def _read_changes(
        self, contents: Contents, segments: Sequence[tuple[Any, str]], *, reverse: bool
    ) -> AsyncIterator[Change]:
        """Yield changes in order, not more messages at once than are likely to be needed."""
        last = contents.thread.changes
        if reverse:
            for row in reversed(last):
                yield row
            segments = segments[::-1]
        for start in range(0, len(segments), _SEGMENTS):
            some = segments[start : start + _SEGMENTS]
            rows = await read_changes(self._stream, contents.start, (rest for _, rest in some))
            rows.sort(key=lambda row: row[0], reverse=reverse)
            for row in rows:
                if row[0] > contents.thread.floor:
                    yield row
        if not reverse:
            for row in last:
                yield row


async def keep(contents: Contents) -> Contents:
    """Return what a thread has."""
    return contents


@contextmanager
def telling(what: object, failure: str = "cannot be read") -> Iterator[None]:
    """Make other errors StoreErrors that say what has failed."""
    try:
        yield
    except (OverflowError, TypeError, ValueError) as error:
        raise StoreError(f"{what} {failure}: {describe(error)}") from error
    except CorruptThread:
        raise
    except StoreError as error:
        if isinstance(error, Fenced | Indeterminate):
            raise
        kind = Unreachable if isinstance(error, Unreachable) else StoreError
        raise kind(f"{what} {failure}: {error}") from error


async def _take_changes(
    rows: AsyncIterator[Change], is_wanted: Callable[[int], bool], limit: int, size: int | None
) -> list[ChangeRow]:
    found: list[ChangeRow] = []
    total = 0
    if limit <= 0:
        return found
    async for row in rows:
        if is_wanted(row[0]):
            found.append(to_change(row))
            total += len(row[1])
            if len(found) >= limit or (size is not None and total >= size):
                break
    return found


def _require_finished(known: Known) -> None:
    if known.head.thread is not None and known.head.thread.unfinished:
        raise Moved


async def load_contents(
    stream: JetStream, contents: Contents, version: int | None, ranges: Sequence[RecordRange] = ()
) -> StoredThread | None:
    """Return the thread with these rows, at `version` if one is given. Raises Moved and CorruptThread."""
    thread, key = contents.thread, contents.known.head.key
    to = thread.version if version is None else version
    if not min(contents.snapshots, default=0) <= to <= thread.version:
        return None
    since = max((at for at in contents.snapshots if at <= to), default=None)
    begin = since or 0
    clients = {*contents.clients}
    at = None if since is None else contents.snapshots[since]
    segments = [rest for segment, rest in contents.segments if segment.last > begin and segment.first <= to]
    changes, snapshot, records = await asyncio.gather(
        read_changes(stream, contents.start, segments),
        read_values(stream, contents.start, [] if at is None else [at], thread.rows),
        asyncio.gather(
            *(
                read_records(stream, contents, select_records(contents, each), each.limit, each.size, is_exact=True)
                for each in ranges
            )
        ),
    )
    state = None if at is None else snapshot.get(at, (0, None))[1]
    if at is not None and state is None:
        raise Moved
    found = [to_change(row) for row in (*changes, *thread.changes) if begin < row[0] <= to]
    if [row.version for row in found] != list(range(begin + 1, to + 1)):
        raise Moved
    if state is None and not found and not (thread.is_stateless and to == 0):
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are stored")
    return StoredThread(
        *(thread.epoch, to, state, found, thread.state_version, thread.secret),
        frozenset(clients) if version is None and len(clients) <= KNOWN_CLIENTS else None,
        *(thread.due, thread.created_at, thread.user),
        tuple(records),
    )
