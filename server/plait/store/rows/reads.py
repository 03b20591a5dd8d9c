"""Reads threads from rows: each function yields the spans that it needs, and returns what is in them."""

import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import msgspec

from plait.errors import CorruptThread, StoreError
from plait.store.outcomes import describe, retell
from plait.store.page import find_end
from plait.store.protocol import StoredThread, ThreadHeader, ThreadView
from plait.store.rows.engine import INDEX, LOST, Engine, Head, Key, Place, Range, Reader, ReadPlan, Reads, Row, Span
from plait.store.rows.layout import (
    check_value,
    decode_head,
    encode_head,
    find_version,
    finds,
    only,
    read_changes,
    read_clients,
    read_head,
    read_records,
    read_snapshot,
    span_of,
    span_of_head,
    span_of_one,
    spans_of_last,
)
from plait.store.rows.parts import CHANGE, CHANGED, CLIENT, CREATED, DUE, OWN, SCHEMA, SNAPSHOT, THREAD, USER
from plait.store.thread_rows import KNOWN_CLIENTS, ChangeRow, ClientRow, Record, RecordRange, ThreadKey
from plait.store.whole import StoredSchema

__all__ = [
    "RowReader",
    "find",
    "find_head",
    "find_strays",
    "list_clients",
    "list_snapshots",
    "load",
    "load_changes",
    "load_client",
    "load_page",
    "load_record",
    "load_records",
    "load_records_of_each",
    "load_schema",
    "load_schemas",
    "make_header",
    "renew_epochs",
]

T = TypeVar("T")


def find_head(key: ThreadKey) -> Reads[Head | None]:
    """Return the row of a thread; None if there is none."""
    (rows,) = yield [span_of_head(key)]
    return decode_head(key, rows)


def renew_epochs() -> Reads[list[tuple[int, str, Key, bytes]]]:
    """Return the rows of all threads with new epochs, without those that are damaged."""
    (rows,) = yield [Span(INDEX, (THREAD,), (find_end(THREAD) or "",))]
    found: list[tuple[int, str, Key, bytes]] = []
    for row in rows:
        key, head = ThreadKey(row[0].removeprefix(THREAD), str(row[1])), read_head([row])
        if head is not None and head is not LOST:
            found.append(encode_head(key, msgspec.structs.replace(head, epoch=secrets.token_hex(8))))
    return found


def find(key: ThreadKey) -> Reads[tuple[Head, int] | None]:
    """Return the row of a thread, which may be LOST, and its version; None if there is none."""
    rows, *last = yield [span_of_head(key), *spans_of_last(key)]
    head = read_head(rows)
    return None if head is None else (head, find_version(last, head))


def find_strays(key: ThreadKey) -> Reads[list[Range]]:
    """Return the rows of the index by which a thread is found whose own row is lost."""
    parts = [span_of(INDEX, CREATED + key.kind), span_of(INDEX, CHANGED + key.kind), span_of(INDEX, DUE)]
    found = yield [span._replace(keys_only=True) for span in (*parts, Span(INDEX, (USER,), (find_end(USER) or "",)))]
    return [only(INDEX, part, place) for rows in found for part, place, _ in rows if finds(key, part, place)]


def make_header(head: Head, version: int) -> ThreadHeader:
    """Return the header of a thread."""
    return ThreadHeader(head.epoch, version, head.created_at, head.user, head.due, head.changed_at)


def load(
    key: ThreadKey, version: int | None, ranges: Sequence[RecordRange] = (), *, recent: int = 0
) -> Reads[tuple[StoredThread, Head] | None]:
    """Return a thread, at `version` if one is given, with the records of ranges; and its row.

    Up to `recent` of the last changes are read at once, as those are mostly all that is needed.
    """
    head: Head | None = None
    space: int | ThreadKey = key
    if not recent:  # A further step takes no time, and most threads that are looked for are new.
        (heads,) = yield [span_of_head(key)]
        if (head := decode_head(key, heads)) is None:
            return None
        space = head.space
    first = span_of(space, SNAPSHOT)._replace(limit=1)
    last = first._replace(reverse=True) if version is None else _snapshot_until(space, version)
    clients = span_of(space, CLIENT)._replace(limit=KNOWN_CLIENTS + 1, keys_only=True)
    latest = span_of(space, CHANGE)._replace(reverse=True, limit=recent, size=_RECENT_BYTES)
    spans = [*spans_of_last(space), first._replace(keys_only=True), last, clients]
    spans += [_span_of_range(space, each) for each in ranges]
    spans += () if head else (latest, span_of_head(key))
    newest, newest_snapshot, oldest, snapshots, ids, *found = yield spans
    if head is None and (head := decode_head(key, found.pop())) is None:
        return None
    records = found[: len(ranges)]
    stored = max([0, *[int(rows[0][1]) for rows in (newest, newest_snapshot) if rows]])
    if stored < head.version:
        raise CorruptThread(f"{key} cannot be read: changes are missing after version {stored}, up to {head.version}")
    to = stored if version is None else version
    if not (int(oldest[0][1]) if oldest else 0) <= to <= stored:
        return None
    snapshot = read_snapshot(key, snapshots)
    since = snapshot.version if snapshot else 0
    changes = [row for row in reversed(read_changes(key, found[-1] if recent else ())) if since < row.version <= to]
    if not changes or changes[0].version > since + 1:
        (rows,) = yield [span_of(head.space, CHANGE, since + 1, to + 1)]
        changes = read_changes(key, rows)
    if snapshot is None and not changes and not (head.is_stateless and to == 0):
        raise CorruptThread(f"{key} cannot be read: neither a snapshot nor changes are stored")
    if len(changes) != to - since or any(row.version != since + n for n, row in enumerate(changes, 1)):
        raise CorruptThread(f"{key} cannot be read: changes are missing between versions {since} and {to}")
    known = frozenset([str(id) for _, id, _ in ids]) if version is None and len(ids) <= KNOWN_CLIENTS else None
    return StoredThread(
        *(head.epoch, to, snapshot.state if snapshot else None, changes, head.state_version, head.secret, known),
        *(head.due, head.created_at, head.user, tuple([read_records(key, rows) for rows in records])),
    ), head


def load_changes(
    key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
) -> Reads[list[ChangeRow]]:
    """Return changes after a version, in order, or those before it, newest first."""
    found = list[ChangeRow]()
    start, end, total = (0, min(version, _LAST), 0) if is_reverse else (min(version, _LAST - 1) + 1, _LAST, 0)
    while len(found) < limit and (size is None or not found or total < size):
        # A row has more bytes than its operations, so a page may end too early.
        span = span_of(key, CHANGE, max(0, start), max(0, end))
        left = None if size is None else max(1, size - total)
        rows = yield from _find_rows(span._replace(reverse=is_reverse, limit=limit - len(found), size=left))
        if not rows:
            break
        changes = read_changes(key, rows)
        found += changes
        total += sum([len(row.ops) for row in changes])
        start, end = (start, changes[-1].version) if is_reverse else (changes[-1].version + 1, end)
    return found


def load_client(key: ThreadKey, client: str) -> Reads[ClientRow | None]:
    """Return the row of a client; None if there is none."""
    rows = yield from _find_rows(span_of_one(key, CLIENT, client))
    return read_clients(key, rows)[0] if rows else None


def list_clients(key: ThreadKey, after: str, limit: int) -> Reads[list[ClientRow]]:
    """Return the rows of a thread's clients after one."""
    rows = yield from _find_rows(span_of(key, CLIENT, after + "\0")._replace(limit=limit))
    return read_clients(key, rows)


def list_snapshots(key: ThreadKey) -> Reads[list[int]]:
    """Return the versions of a thread's snapshots."""
    rows = yield from _find_rows(span_of(key, SNAPSHOT)._replace(keys_only=True))
    return [int(version) for _, version, _ in rows]


def load_record(key: ThreadKey, part: str, name: str) -> Reads[bytes | None]:
    """Return the value of a record; None if there is none."""
    rows = yield from _find_rows(span_of_one(key, part, name))
    return check_value(key, rows[0]) if rows else None


def load_records_of_each(
    keys: Sequence[ThreadKey], places: Sequence[tuple[str, str]]
) -> Reads[list[Sequence[bytes | None]]]:
    """Return the values of the same records of several threads; None for one that is missing or damaged."""
    found = yield [span_of_one(key, *place) for key in keys for place in places]
    values, count = [rows[0][2] if rows else None for rows in found], len(places)
    return [values[at * count : (at + 1) * count] for at in range(len(keys))]


def load_records(key: ThreadKey, wanted: RecordRange) -> Reads[list[Record]]:
    """Return the records of a range."""
    return read_records(key, (yield from _find_rows(_span_of_range(key, wanted))))


def load_page(space: int | ThreadKey, after: tuple[str, str], limit: int, size: int) -> Reads[list[Record]]:
    """Return records of all parts after a part and a key, of a thread or of the space that it had."""
    start: Place = (after[0], after[1] + "\0") if any(after) else ("",)
    return read_records(space, (yield from _find_rows(Span(space, start, (OWN,), limit=limit, size=size))))


def load_schema(kind: str, hash: str) -> Reads[bytes | None]:
    """Return a schema; None if there is none."""
    (rows,) = yield [span_of_one(INDEX, SCHEMA + kind, hash)]
    return check_value(f"a schema of {kind}", rows[0]) if rows else None


def load_schemas() -> Reads[list[StoredSchema]]:
    """Return all schemas, each with its kind and hash."""
    (rows,) = yield [Span(INDEX, (SCHEMA,), (find_end(SCHEMA) or "",))]
    return [(row[0].removeprefix(SCHEMA), str(row[1]), check_value("a schema", row)) for row in rows]


# Inside

_LAST: Final = 2**63 - 1
# The bytes of the last changes that are read at once.
_RECENT_BYTES: Final = 64 * 1024


def _find_rows(span: Span) -> Reads[list[Row]]:
    """Return the rows of a span. Raises CorruptThread if those of its thread cannot be found."""
    if isinstance(space := span.space, int):
        (rows,) = yield [span]
        return rows
    heads, rows = yield [span_of_head(space), span]
    decode_head(space, heads)
    return rows


def _snapshot_until(space: int | ThreadKey, version: int) -> Span:
    return span_of(space, SNAPSHOT, 0, max(0, min(version, _LAST - 1) + 1))._replace(reverse=True, limit=1)


def _span_of_range(space: int | ThreadKey, wanted: RecordRange) -> Span:
    part, prefix = wanted.part, wanted.prefix
    start = max(prefix, wanted.after + "\0" if wanted.after else "")
    ends = [end for end in (wanted.before, find_end(prefix)) if end is not None]
    span = span_of(space, part, start, min(ends) if ends else None)
    return span._replace(reverse=wanted.reverse, limit=wanted.limit, size=wanted.size)


class RowReader:
    """The methods of a store that read its threads from the rows of an engine."""

    # Of the changes of a thread, how many are read at once.
    recent = 0

    _engine: Engine

    async def load(
        self, key: ThreadKey, *, version: int | None = None, records: Sequence[RecordRange] = ()
    ) -> StoredThread | None:
        found = await self._read(key, ReadPlan(load, key, version, records, recent=self.recent))
        return found and found[0]

    async def find(self, key: ThreadKey) -> ThreadHeader | None:
        found = await self._read(key, ReadPlan(find, key))
        return found and make_header(*found)

    async def _changes(
        self, key: ThreadKey, version: int, limit: int, size: int | None, *, is_reverse: bool
    ) -> list[ChangeRow]:
        return await self._read(key, ReadPlan(load_changes, key, version, limit, size, is_reverse=is_reverse))

    async def client(self, key: ThreadKey, client: str) -> ClientRow | None:
        return await self._read(key, ReadPlan(load_client, key, client))

    async def record(self, key: ThreadKey, part: str, name: str) -> bytes | None:
        return await self._read(key, ReadPlan(load_record, key, part, name))

    async def records(self, key: ThreadKey, wanted: RecordRange) -> list[Record]:
        return await self._read(key, ReadPlan(load_records, key, wanted))

    async def records_of_each(
        self, keys: Sequence[ThreadKey], *places: tuple[str, str]
    ) -> list[Sequence[bytes | None]]:
        return await self._read("records", ReadPlan(load_records_of_each, keys, places))

    @asynccontextmanager
    async def view(self, key: ThreadKey) -> AsyncIterator[ThreadView | None]:
        async with self._engine.view() as read:
            if (found := await self._read(key, ReadPlan(load, key, None, recent=self.recent), read)) is None:
                yield None
                return
            stored, head = found

            async def read_page(after: tuple[str, str], limit: int, size: int) -> list[Record]:
                return await self._read(key, ReadPlan(load_page, head.space, after, limit, size), read)

            yield ThreadView(stored, read_page)

    async def schema(self, kind: str, hash: str) -> bytes | None:
        return await self._read("a schema", ReadPlan(load_schema, kind, hash))

    async def schemas(self) -> list[StoredSchema]:
        return await self._read("the schemas", ReadPlan(load_schemas))

    async def _list_snapshots(self, key: ThreadKey) -> Iterable[int]:
        return await self._read(key, ReadPlan(list_snapshots, key))

    async def _list_clients(self, key: ThreadKey, after: str, limit: int) -> list[ClientRow]:
        return await self._read(key, ReadPlan(list_clients, key, after, limit))

    async def _list_records(self, key: ThreadKey, after: tuple[str, str], limit: int, size: int) -> list[Record]:
        return await self._read(key, ReadPlan(load_page, key, after, limit, size))

    async def _read(self, what: object, plan: ReadPlan[T], read: Reader | None = None) -> T:
        try:
            return await (read or self._engine.read)(plan)
        except CorruptThread:
            raise
        except StoreError as error:
            raise retell(error, f"{what} cannot be read: {error}") from error
        except ValueError as error:
            raise CorruptThread(f"{what} cannot be read: {describe(error)}") from error
