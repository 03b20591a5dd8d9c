"""Plans the next head and rows of a thread for a group of writes."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from plait.store.nats.layout import (
    Change,
    Known,
    Name,
    Segment,
    StoredHead,
    ThreadHead,
    encode_rows,
    is_pruned,
    make_name,
)
from plait.store.protocol import READ, Write

__all__ = ["LARGE", "MOST_IN_HEAD", "Plan", "Room", "make_plan"]

MOST_IN_HEAD: Final = 4 * 1024
"""Bytes of changes and rows that are kept in the head, so that a small write is one message.

A head with a larger write keeps `LARGE` times as many: messages that are published together cost the server a sync
each. Other heads stay small, as all of them are read for listings.
"""

LARGE: Final = 16

# Bytes of changes in a message of their own, apart from the last one.
_SEGMENT: Final = 64 * 1024
# The bytes of a row besides its value.
_ROW: Final = 48


class Room(NamedTuple):
    """The bytes of changes and rows that a head keeps, and those that it keeps if one of its writes has more."""

    most: int
    most_of_large: int


class Plan(NamedTuple):
    """The head after some writes, and the rows that are stored with it."""

    head: ThreadHead
    # By the rest of the subject; None deletes a row.
    rows: dict[str, bytes | None]
    # The generations whose rows are to be removed.
    removed: Sequence[int]


def make_plan(
    known: Known, writes: Sequence[Write], *, now: int, floor: int = 0, expired: Sequence[str] = (), room: Room
) -> Plan:
    """Return what writes make of a thread: at most a deletion and one more. The head keeps rows that have `room`.

    The changes up to `floor`, and the rows of `expired` clients, are pruned. Raises TypeError, OverflowError and
    UnicodeEncodeError.
    """
    head, rows, removed = known.head, dict[str, bytes | None](), list[int]()
    thread = head.thread
    for write in writes:
        if write.is_deletion:
            assert thread is not None
            removed.append(thread.generation)
            thread = None
        else:
            thread = _create(write, known.sequence, now) if thread is None else _advance(thread, write, now)
            thread = _add_rows(thread, write, rows, floor=floor, expired=expired, room=room)
    head = msgspec.structs.replace(head, writes=head.writes + 1, thread=thread, removed=[*head.removed, *removed])
    return Plan(head, rows, removed)


def _create(write: Write, generation: int, now: int) -> StoredHead:
    return StoredHead(
        epoch=write.epoch,
        version=write.version,
        state_version=write.state_version or 1,
        secret=write.secret,
        is_stateless=write.is_stateless,
        due=write.due or 0,
        created_at=write.created_at,
        changed_at=now if write.changed_at is None else write.changed_at,
        user=write.user,
        generation=generation,
    )


def _advance(thread: StoredHead, write: Write, now: int) -> StoredHead:
    changed_at = thread.changed_at
    if write.changed_at is not None:
        changed_at = write.changed_at
    elif write.changes or any(each.part != READ for each in write.records):
        changed_at = now
    return msgspec.structs.replace(
        thread,
        version=write.version,
        state_version=thread.state_version if write.state_version is None else write.state_version,
        due=thread.due if write.due is None else write.due,
        changed_at=changed_at,
    )


def _add_rows(
    thread: StoredHead,
    write: Write,
    rows: dict[str, bytes | None],
    *,
    floor: int,
    expired: Sequence[str],
    room: Room,
) -> StoredHead:
    """Add the rows of a write, and return the head with those that it keeps."""
    floor = max(thread.floor, floor)
    made: list[Change] = [(row.version, row.ops, row.source, row.at) for row in write.changes]
    changes: list[Change] = [*thread.changes, *made]
    kept, added = dict(thread.rows), dict[str, bytes | None]()
    if floor:
        changes = [row for row in changes if row[0] > floor]
        kept = {rest: value for rest, value in kept.items() if not is_pruned(rest, floor)}
    for row in write.clients:
        added[make_name(Name("client", text=row.client))] = encode_rows((row.client, row.ref, row.refused, row.at))
    for id in expired:
        added[make_name(Name("client", text=id))] = None
    for snapshot in write.snapshots:
        if snapshot.version >= floor:
            added[make_name(Name("snapshot", version=snapshot.version))] = snapshot.state
    for record in write.records:
        added[make_name(Name("record", part=record.part, text=record.key))] = record.value
    kept |= added
    size, most = _measure(changes, kept), room.most
    if size > most and max(_measure(made, added), _measure(thread.changes, thread.rows)) > most:
        most = room.most_of_large
    # A deleted row may be large.
    if size > most or (thread.has_chunks and any(value is None for value in kept.values())):
        rows.update(_make_segments(changes))
        rows.update(kept)
        changes, kept = [], {}
    return msgspec.structs.replace(thread, floor=floor, changes=changes, rows=kept)


def _measure(changes: Sequence[Change], rows: Mapping[str, bytes | None]) -> int:
    size = sum([len(row[1]) + _ROW for row in changes])
    return size + sum([len(rest) + len(value or b"") + _ROW for rest, value in rows.items()])


def _make_segments(changes: Sequence[Change]) -> dict[str, bytes | None]:
    """Return the messages of changes, by the rest of their subjects."""
    found: dict[str, bytes | None] = {}
    start, size = 0, 0
    for index, row in enumerate(changes):
        size += len(row[1]) + _ROW
        if size >= _SEGMENT or index == len(changes) - 1:
            some = changes[start : index + 1]
            times = [row[3] for row in some]
            segment = Segment(some[-1][0], some[0][0], sum(len(row[1]) for row in some), min(times), max(times))
            found[make_name(Name("changes", segment))] = encode_rows(some)
            start, size = index + 1, 0
    return found
