"""Plans the rows of the heads of threads, and finds the rows that a write prunes."""

import secrets
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from plait.errors import StoreError
from plait.store.batches import WriteGroup
from plait.store.outcomes import Unreachable, describe, make_refusal
from plait.store.protocol import Write
from plait.store.pruning import find_expired
from plait.store.rows.engine import INDEX, NO_SPACE, Change, Head, Key, Known, Log, Range, Reads, Row
from plait.store.rows.layout import encode_head, find_places, only, read_changes, read_clients, span_of
from plait.store.rows.parts import CHANGE, CLIENT, SNAPSHOT, THREAD
from plait.store.thread_rows import DAY, ChangeRow, Prune, ThreadKey

__all__ = [
    "Pruned",
    "RowsToWrite",
    "add_head",
    "clear",
    "count_new",
    "find_pruned",
    "follow",
    "make_head",
    "plan_head",
    "refuse",
]

# Changes that are read at once to find those outside a bound, and the bytes that they reach.
_SOME: Final = 64
_SOME_BYTES: Final = 1024 * 1024


RowsToWrite = list[tuple[int, str, Key, bytes]]
"""Rows as those of a `Change`."""


class Pruned(NamedTuple):
    """The rows that a write prunes, whatever its space is, and the log afterwards."""

    gone: list[Range]
    log: Log


def plan_head(key: ThreadKey, known: Known, origin: str | None = None) -> Change:
    """Return the change that stores the version and time of a stored thread in its row.

    With an `origin`, which is that of its engine, the thread gets a new epoch.
    """
    assert known.head is not None
    head = msgspec.structs.replace(known.head, version=known.version, changed_at=known.changed_at)
    if origin is not None:
        head = msgspec.structs.replace(head, origin=origin, epoch=secrets.token_hex(8))
    rows: RowsToWrite = []
    gone: list[Range] = []
    add_head(key, known.head, head, rows, gone)
    return Change(key, rows, gone, after=msgspec.structs.replace(known, head=head), owner=known.owner)


def refuse(key: ThreadKey, failure: Exception) -> StoreError:
    """Return the error of writes that cannot be planned. After a failed read, its cause is the engine's error."""
    cause = failure
    while isinstance(cause, StoreError) and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    return make_refusal(key, cause, describe(cause), is_unreachable=isinstance(failure, Unreachable))


def count_new(batch: Sequence[WriteGroup]) -> int:
    """Return how many threads the writes of a batch create at most."""
    return sum([write.after is None for group in batch for write in group.writes])


def clear(change: Change, strays: Sequence[Range]) -> Change:
    """Return the change of a thread whose row was LOST so that it also removes the rows that find the thread."""
    rows = [row for row in change.rows if row[2] != NO_SPACE]
    written = {(space, part, key) for space, part, key, _ in rows}
    gone = [*change.gone, *[each for each in strays if each[:3] not in written]]
    return msgspec.structs.replace(change, rows=rows, gone=gone)


def make_head(write: Write, space: int, now: int, origin: str) -> Head:
    if "\0" in write.key.kind:
        raise ValueError("a kind has no control characters")
    return Head(
        write.epoch,
        space,
        write.version,
        write.created_at,
        now,
        write.state_version or 1,
        write.due or 0,
        write.user,
        write.secret,
        write.is_stateless,
        origin,
    )


def add_head(key: ThreadKey, before: Head | None, head: Head | None, rows: RowsToWrite, gone: list[Range]) -> None:
    """Add the row of a thread, and the rows of the index that differ from those of before."""
    if head is None:
        gone.append(only(INDEX, THREAD + key.kind, key.name))
    else:
        rows.append(encode_head(key, head))
    old, new = find_places(key, before), find_places(key, head)
    rows += [(INDEX, *place, b"") for place in new - old]
    gone += [only(INDEX, *place) for place in old - new]


# Pruning


def find_pruned(known: Known, write: Write, prune: Prune, now: int) -> Reads[Pruned]:
    """Return what a write prunes: all before the newest snapshot outside a bound, and clients that have expired."""
    space = NO_SPACE if known.head is None or write.after is None else known.head.space
    log = Log(()) if space == NO_SPACE else known.log
    if log is None:
        (found,) = yield [span_of(space, SNAPSHOT)._replace(keys_only=True)]
        log = Log(tuple([int(key) for _, key, _ in found]))
    log, bound, gone = follow(log, write), prune.version, list[Range]()
    if prune.at:
        bound = max(bound, (yield from _find_old(space, write, prune.at, now)))
    if prune.bytes is not None:
        log = yield from _find_large(space, write, prune.bytes, log)
        bound = max(bound, log.start - 1)
    oldest = max([at for at in log.snapshots if at <= bound], default=0)
    if oldest > log.base:
        if log.size >= 0:
            log = yield from _skip(space, write, log, log.size, oldest)
        gone += [(space, CHANGE, 0, oldest + 1), (space, SNAPSHOT, 0, oldest)]
        log = msgspec.structs.replace(log, base=oldest, snapshots=tuple([at for at in log.snapshots if at >= oldest]))
    if log.day != now // DAY:
        (found,) = yield [span_of(space, CLIENT)]
        pushed = {row.client: row.at for row in (*read_clients(write.key, found), *write.clients)}
        gone += [only(space, CLIENT, id) for id in find_expired(pushed, now)]
        log = msgspec.structs.replace(log, day=now // DAY)
    return Pruned(gone, log)


def follow(log: Log, write: Write) -> Log:
    """Return a log after a write that prunes nothing."""
    snapshots = (*log.snapshots, *[each.version for each in write.snapshots])
    size = log.size if log.size < 0 else log.size + _measure(write.changes)
    # Not `replace`, which takes three times as long.
    return Log(snapshots, log.base, log.day, log.start, size)


def _read_log(
    space: int, write: Write, start: int, *, limit: int = _SOME, size: int = _SOME_BYTES
) -> Generator[Any, list[list[Row]], list[ChangeRow]]:
    """Return the next changes from a version on; those that the write brings are not stored yet."""
    (rows,) = yield [span_of(space, CHANGE, start)._replace(limit=limit, size=min(size, _SOME_BYTES))]
    return read_changes(write.key, rows) or [row for row in write.changes if row.version >= start]


def _find_old(space: int, write: Write, at: int, now: int) -> Reads[int]:
    """Return the last version before the first recent change that was made before a time; 0 if there is none.

    The clock may have been wrong: times in the future are ignored.
    """
    # Most often, the first change is recent.
    bound, start, limit = 0, 0, 1
    while changes := (yield from _read_log(space, write, start, limit=limit)):
        for row in changes:
            if at <= row.at <= now:
                return bound
            if row.at < at:
                bound = row.version
        start, limit = changes[-1].version + 1, _SOME
    return bound


def _find_large(space: int, write: Write, most: int, log: Log) -> Reads[Log]:
    """Return the log so that its `start` is the first of the last changes with at most so many bytes."""
    start, size = log.start, log.size
    if size < 0:
        start, size = write.version + 1 - len(write.changes), _measure(write.changes)
        while size <= most:
            (rows,) = yield [span_of(space, CHANGE, 0, start)._replace(reverse=True, limit=_SOME, size=_SOME_BYTES)]
            if not rows:
                break
            changes = read_changes(write.key, rows)
            start, size = changes[-1].version, size + _measure(changes)
    return (yield from _skip(space, write, msgspec.structs.replace(log, start=start, size=size), most, start - 1))


def _skip(space: int, write: Write, log: Log, most: int, last: int) -> Reads[Log]:
    """Return the log with a `start` that is after `last`, and from which on the changes have at most `most` bytes."""
    start, size = log.start, log.size
    while size > most or start <= last:
        # Decode no more changes than are skipped, which are few if each write skips some.
        limit, left = (min(_SOME, last - start + 1), _SOME_BYTES) if start <= last else (_SOME, size - most)
        if not (found := (yield from _read_log(space, write, start, limit=limit, size=left))):
            break
        for row in found:
            if size > most or start <= last:
                start, size = row.version + 1, size - len(row.ops)
    return msgspec.structs.replace(log, start=start, size=size)


def _measure(changes: Sequence[ChangeRow]) -> int:
    return sum([len(row.ops) for row in changes])
