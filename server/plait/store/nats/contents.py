"""Reads what a thread has: its head, the names of its rows, and their values."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from plait.store.nats.api import StoredMessage
from plait.store.nats.jetstream import JetStream
from plait.store.nats.layout import (
    Change,
    Known,
    Name,
    Segment,
    StoredHead,
    Subjects,
    ThreadHead,
    count_chunks,
    decode_rows,
    join_chunks,
    name_record,
    read_names,
)
from plait.store.page import take_page
from plait.store.thread_rows import Record, RecordRange, ThreadKey

__all__ = [
    "Contents",
    "Moved",
    "find_contents",
    "read_changes",
    "read_head",
    "read_records",
    "read_row",
    "read_values",
    "select_records",
]


# Records that are read at once.
_RECORDS: Final = 64


class Moved(Exception):
    """A row that a head or a name has told of is not there: another write came in between, or data is damaged."""


class Contents(NamedTuple):
    """The head of a stored thread, and which rows it has beside it. Rows of deleted values may be among them.

    A write replaces the head, and changes the others: callers copy what they need before they await something.
    """

    known: Known
    thread: StoredHead
    # The beginning of the subjects of the rows.
    start: str
    # In ascending order, each with the rest of its subject.
    segments: list[tuple[Segment, str]]
    snapshots: dict[int, str]
    clients: dict[str, str]
    # By part and key, and in the order of these.
    records: dict[tuple[str, str], str]
    names: list[tuple[str, str]]


async def read_head(stream: JetStream, subjects: Subjects, key: ThreadKey) -> Known | None:
    """Return the head of a thread, None if it has none. Raises StoreError and UnicodeEncodeError."""
    found = await stream.last([subjects.head(key)])
    return decode_head(key, found[0]) if found else None


def decode_head(key: ThreadKey, stored: StoredMessage) -> Known:
    """Return the head of a thread. A head without data was given up, and is about to be removed."""
    return Known(stored.sequence, decode_rows(stored.data, ThreadHead) if stored.data else ThreadHead(*key, 0, ""))


async def read_row(
    stream: JetStream, subjects: Subjects, key: ThreadKey, rest: str
) -> tuple[Known | None, bytes | None]:
    """Return the head of a thread, and the value of one of its rows, of the same moment. Raises Moved."""
    head = subjects.head(key)
    found = {each.subject: each for each in await stream.last([head, subjects.rows(key, "*") + rest])}
    if (stored := found.get(head)) is None:
        return None, None
    known = decode_head(key, stored)
    if known.head.thread is None:
        return known, None
    if rest in known.head.thread.rows:
        return known, known.head.thread.rows[rest]
    start = subjects.rows(key, known.head.thread.generation)
    row = found.get(start + rest)
    match count_chunks(row.data) if row is not None else 0:
        case 0:
            return known, None
        case 1:
            assert row is not None
            return known, join_chunks([row.data])
        case _:
            return known, (await read_values(stream, start, [rest]))[rest][1]


async def find_contents(
    stream: JetStream, subjects: Subjects, key: ThreadKey, known: Known | None = None
) -> Contents | None:
    """Return what a thread has, None if it is not stored. Raises StoreError and UnicodeEncodeError."""
    rows = subjects.rows(key, "*").removesuffix("*.") + ">"
    if known is None:
        known, info = await asyncio.gather(read_head(stream, subjects, key), stream.names(rows))
    else:
        info = await stream.names(rows)
    if known is None or (thread := known.head.thread) is None:
        return None
    if info.last_sequence < known.sequence:  # The names are older.
        info = await stream.names(rows)
    start = subjects.rows(key, thread.generation)
    names: dict[str, dict[str, Name]] = {"changes": {}, "snapshot": {}, "client": {}, "record": {}}
    for name, rest in read_names([*info.subjects, *(start + rest for rest in thread.rows)], start):
        if thread.rows.get(rest, b"") is not None:
            names[name.what][rest] = name
    records = {(name.part, name.text): rest for rest, name in names["record"].items()}
    return Contents(
        known,
        thread,
        start,
        sorted(
            (name.segment, rest)
            for rest, name in names["changes"].items()
            if name.segment is not None and name.segment.last > thread.floor
        ),
        {name.version: rest for rest, name in names["snapshot"].items() if name.version >= thread.floor},
        {name.text: rest for rest, name in names["client"].items()},
        records,
        sorted(records),
    )


async def read_values(
    stream: JetStream, start: str, rests: Sequence[str], kept: Mapping[str, bytes | None] | None = None
) -> dict[str, tuple[int, bytes | None]]:
    """Return the sequence and value of each row, None if it was deleted. Raises Moved, and StoreError.

    Those that the head has `kept` have the sequence 0.
    """
    values: dict[str, tuple[int, bytes | None]] = {}
    if kept:
        values = {rest: (0, kept[rest]) for rest in rests if rest in kept}
        rests = [rest for rest in rests if rest not in kept]
    found = {each.subject: each for each in await stream.last([start + rest for rest in rests])}
    counts = {rest: count_chunks(found[start + rest].data) for rest in rests if start + rest in found}
    if further := [f"{start}{rest}.{number}" for rest, count in counts.items() for number in range(1, count)]:
        found |= {each.subject: each for each in await stream.last(further)}
    for rest, count in counts.items():
        parts = [found.get(f"{start}{rest}.{number}" if number else start + rest) for number in range(count)]
        first = found[start + rest].sequence
        value: bytes | None = None
        if count:
            # The messages of one value follow each other.
            if any(each is None or each.sequence != first + number for number, each in enumerate(parts)):
                raise Moved
            value = join_chunks([each.data for each in parts if each is not None])
        values[rest] = first, value
    return values


async def read_changes(stream: JetStream, start: str, rests: Iterable[str]) -> list[Change]:
    """Return the changes of messages. Raises Moved, and StoreError."""
    wanted = list(rests)
    values = await read_values(stream, start, wanted)
    found: list[Change] = []
    for rest in wanted:
        if (value := values.get(rest, (0, None))[1]) is None:
            raise Moved
        found += decode_rows(value, list[Change])
    return found


def select_records(contents: Contents, wanted: RecordRange) -> list[tuple[str, str]]:
    """Return the parts and keys of a range in order, without regard to its limit."""
    names, part, after, before = contents.names, wanted.part, wanted.after, wanted.before
    start = max(bisect_left(names, (part, wanted.prefix)), bisect_right(names, (part, after)))
    end = bisect_left(names, (part, before)) if before is not None else bisect_left(names, (f"{part}\0", ""))
    found = names[start:end]
    if wanted.prefix:
        found = list(takewhile(lambda name: name[1].startswith(wanted.prefix), found))
    return found[::-1] if wanted.reverse else found


async def read_records(
    stream: JetStream,
    contents: Contents,
    names: Sequence[tuple[str, str]],
    limit: int,
    size: int | None,
    *,
    is_exact: bool = False,
) -> list[Record]:
    """Return the first of these records that are not deleted. Raises Moved; if it must be exact, if one is newer."""
    found: list[Record] = []
    total, start = 0, 0
    while len(found) < limit and start < len(names) and (size is None or total < max(size, 1)):
        some = names[start : start + min(_RECORDS, limit - len(found))]
        start += len(some)
        wanted = [name_record(name) for name in some]
        values = await read_values(stream, contents.start, wanted, contents.thread.rows)
        for name, rest in zip(some, wanted, strict=True):
            sequence, value = values.get(rest, (0, None))
            if is_exact and sequence > contents.known.sequence:
                raise Moved
            if value is not None:
                found.append(Record(*name, value))
                total += len(value)
    return take_page(found, lambda record: len(record.value or b""), size)
