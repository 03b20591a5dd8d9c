"""Reads all of a thread, as the writes that make it, and all schemas."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from plait.errors import CorruptThread
from plait.store.nats.contents import Contents, Moved, read_changes, read_records, read_values
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import Subjects, decode_client, to_change
from plait.store.protocol import Write
from plait.store.thread_rows import ChangeRow, Snapshot

__all__ = ["export", "read_schema", "read_schemas"]

# The maximum size of the values in one write, and the maximum number of rows.
_SIZE: Final = 512 * 1024
_ROWS: Final = 900


async def export(stream: JetStream, contents: Contents) -> AsyncIterator[Write]:
    """Yield the writes that make a thread. Raises CorruptThread and StoreError."""
    try:
        async for write in _export(stream, contents):
            yield write
    except Moved:
        raise CorruptThread(f"{contents.known.head.key} cannot be read: some of its rows are missing") from None


async def _export(stream: JetStream, contents: Contents) -> AsyncIterator[Write]:
    thread, key, start = contents.thread, contents.known.head.key, contents.start
    last, changed_at = thread.version, thread.changed_at
    first = min(
        [segment.first for segment, _ in contents.segments[:1]] + [row[0] for row in thread.changes[:1]], default=None
    )
    base = last if first is None else max(first - 1, thread.floor)
    snapshots = await _read_snapshots(stream, contents, base - 1, base)
    if not snapshots and not (base == 0 and (first is not None or thread.is_stateless)):
        raise CorruptThread(f"{key} cannot be read: the snapshot of version {base} is missing")
    yield Write(
        *(key, thread.epoch, None, base, (), snapshots),
        state_version=thread.state_version,
        secret=thread.secret,
        due=thread.due or None,
        created_at=thread.created_at,
        user=thread.user,
        begins_at=base,
        changed_at=changed_at,
    )
    version = base
    async for rows in _read_log(stream, contents, base):
        end = rows[-1].version
        if [row.version for row in rows] != list(range(version + 1, end + 1)):
            raise CorruptThread(f"{key} cannot be read: changes are missing after version {version}")
        snapshots = await _read_snapshots(stream, contents, version, end)
        yield Write(key, thread.epoch, version, end, rows, snapshots, changed_at=changed_at)
        version = end
    if version != last:
        raise CorruptThread(f"{key} cannot be read: changes are missing after version {version}")
    names = [rest for _, rest in sorted(contents.clients.items())]
    clients = await read_values(stream, start, names, thread.rows)
    ordered = [decode_client(value) for rest in names if (value := clients.get(rest, (0, None))[1]) is not None]
    for at in range(0, len(ordered), _ROWS):
        yield Write(key, thread.epoch, last, last, clients=ordered[at : at + _ROWS], changed_at=changed_at)
    left = sorted(contents.records)
    while left:
        records = await read_records(stream, contents, left, _ROWS, _SIZE)
        if not records:
            break
        yield Write(key, thread.epoch, last, last, records=records, changed_at=changed_at)
        after = records[-1].part, records[-1].key
        left = [name for name in left if name > after]


async def _read_log(stream: JetStream, contents: Contents, after: int) -> AsyncIterator[list[ChangeRow]]:
    """Yield changes after a version; a snapshot ends a page."""
    ends = {version for version in contents.snapshots if version > after}
    page: list[ChangeRow] = []
    size = 0
    messages: Sequence[str | None] = [*(rest for _, rest in contents.segments), None]
    for rest in messages:
        rows = contents.thread.changes if rest is None else await read_changes(stream, contents.start, [rest])
        for row in rows:
            if row[0] <= after:
                continue
            page.append(to_change(row))
            size += len(row[1])
            if len(page) >= _ROWS or size >= _SIZE or row[0] in ends:
                yield page
                page, size = [], 0
    if page:
        yield page


async def _read_snapshots(stream: JetStream, contents: Contents, after: int, to: int) -> list[Snapshot]:
    wanted = {version: rest for version, rest in sorted(contents.snapshots.items()) if after < version <= to}
    values = await read_values(stream, contents.start, list(wanted.values()), contents.thread.rows)
    found = [(version, values.get(rest, (0, None))[1]) for version, rest in wanted.items()]
    return [Snapshot(version, state) for version, state in found if state is not None]


async def read_schema(stream: JetStream, subjects: Subjects, kind: str, hash: str) -> bytes | None:
    """Return a stored schema; None if there is none."""
    subject = subjects.schema(kind, hash)
    return (await read_values(stream, "", [subject])).get(subject, (0, None))[1]


async def read_schemas(stream: JetStream, subjects: Subjects) -> list[tuple[str, str, bytes]]:
    """Return all stored schemas, each with its kind and hash."""
    found = [each for each in (await stream.names(subjects.schemas)).subjects if each.count(".") == 3]
    values = await read_values(stream, "", found)
    schemas = [(*subjects.read_schema(each), values[each][1]) for each in found if each in values]
    return sorted((kind, hash, value) for kind, hash, value in schemas if value is not None)
