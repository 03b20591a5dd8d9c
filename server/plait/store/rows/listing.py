"""Lists threads by the rows of the index, as `reads.py` reads threads."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from plait.store.page import PLACES, find_end
from plait.store.protocol import DueThread, Order, ThreadQuery, ThreadRow
from plait.store.rows.engine import INDEX, LOST, Head, Key, ReadPlan, Reads, Row, Span
from plait.store.rows.layout import (
    due_key,
    find_version,
    part_of_user,
    read_due,
    read_head,
    span_of,
    span_of_head,
    spans_of_last,
    time_key,
)
from plait.store.rows.parts import CHANGED, CREATED, DUE, THREAD
from plait.store.thread_rows import INCOMPLETE, ThreadKey

__all__ = ["is_sorted_here", "list_due", "list_sorted", "list_threads"]

_Found = tuple[ThreadKey, Head]

_PARTS: Final[dict[Order, str]] = {"name": THREAD, "created": CREATED, "changed": CHANGED}
_PLACES: Final[dict[Order, Callable[[_Found], Any]]] = {
    "name": lambda found: found[0],
    "created": lambda found: (found[1].created_at, found[0]),
    "changed": lambda found: (found[1].changed_at, found[0]),
}
# The most threads that are read at once to be sorted.
_PAGE: Final = 500
_DIGITS: Final = len(time_key(0))


def list_threads(query: ThreadQuery) -> Reads[list[ThreadRow]]:
    """Return the rows of `Store.threads`, in an order that the index has."""
    found = yield from _find_heads(query)
    if query.has_versions:
        return (yield from _show(found))
    return [_make_row(key, head, head.version) for key, head in found]


def is_sorted_here(query: ThreadQuery) -> bool:
    """Whether the index does not have the order: by time, it has no names."""
    return query.order != "name" and query.prefix != ""


def _name_page(query: ThreadQuery, found: Sequence[_Found]) -> ThreadQuery:
    """Return the query of the next threads by name, after those that it has found."""
    after = ThreadRow(found[-1][0], 0, 0, 0) if found else None
    return msgspec.structs.replace(query, order="name", after=after, limit=_PAGE)


def _sort(query: ThreadQuery, found: Sequence[_Found]) -> list[_Found]:
    """Return the first threads of a query by time, in its order."""
    place = _PLACES[query.order]
    if (after := query.after) is not None:
        start = PLACES[query.order](after)
        found = [each for each in found if place(each) < start]
    return sorted(found, key=place, reverse=True)[: query.limit]


async def list_sorted(query: ThreadQuery, read: Callable[[ReadPlan[Any]], Awaitable[Any]]) -> list[ThreadRow]:
    """Return the rows of `Store.threads` in an order that the index does not have: reads some threads at a time."""
    found: list[_Found] = []
    page = _name_page(query, ())
    while some := await read(ReadPlan(_find_heads, page)):
        found, page = _sort(query, [*found, *some]), _name_page(query, some)
        await asyncio.sleep(0)
    shown: list[ThreadRow] = await read(ReadPlan(_show, found))
    return shown


def _find_heads(query: ThreadQuery) -> Reads[list[_Found]]:
    """Return the threads of a query, in an order that the index has, without those that are not complete."""
    is_by_name, after = query.order == "name", query.after
    base = _PARTS[query.order] if query.user is None else part_of_user(query.user, query.order)
    kinds = [query.kind] if query.kind is not None else (yield from _list_kinds(base))
    found: list[_Found] = []
    for kind in kinds:
        if is_by_name and after is not None and kind < after.key.kind:
            continue
        span = _find_names(base + kind, kind, query) if is_by_name else _find_times(base + kind, kind, query)
        left = query.limit - len(found) if is_by_name else query.limit
        if left > 0:
            found += yield from _find_some(kind, span, left, query.order)
    return found if is_by_name else _sort(query, found)


def _show(found: Sequence[_Found]) -> Reads[list[ThreadRow]]:
    """Return the rows of threads."""
    spans = [spans_of_last(head.space) for _, head in found]
    changes = yield [of_changes for of_changes, _ in spans]
    # A thread whose log has no changes has the version of its snapshot.
    pairs = zip(spans, changes, strict=True)
    snapshots = iter((yield [of_snapshots for (_, of_snapshots), rows in pairs if not rows]))
    return [
        _make_row(key, head, find_version([rows or next(snapshots)], head))
        for (key, head), rows in zip(found, changes, strict=True)
    ]


def _make_row(key: ThreadKey, head: Head, version: int) -> ThreadRow:
    return ThreadRow(key, version, head.created_at, head.changed_at, head.user)


def list_due(until: int, after: DueThread | None, limit: int) -> Reads[list[DueThread]]:
    """Return the threads that are due at `until` or before, the earliest first."""
    start = "" if after is None else due_key(*after) + "\0"
    (rows,) = yield [span_of(INDEX, DUE, start, time_key(until + 1))._replace(limit=limit, keys_only=True)]
    return [DueThread(*read_due(key)) for _, key, _ in rows]


def _list_kinds(base: str) -> Reads[list[str]]:
    """Return the kinds of threads that have rows in the parts that begin with `base`."""
    kinds: list[str] = []
    start, end = base, find_end(base) or ""
    while True:
        (rows,) = yield [Span(INDEX, (start,), (end,), limit=1, keys_only=True)]
        if not rows:
            return kinds
        kinds.append(rows[0][0].removeprefix(base))
        start = rows[0][0] + "\0"


def _find_names(part: str, kind: str, query: ThreadQuery) -> Span:
    """Return the span of the names of a kind that a query finds, in their order."""
    start = query.prefix
    if query.after is not None and kind == query.after.key.kind:
        start = max(start, query.after.key.name + "\0")
    return span_of(INDEX, part, start, find_end(query.prefix))


def _find_times(part: str, kind: str, query: ThreadQuery) -> Span:
    """Return the span of the times and names of a kind that a query finds, the last ones first."""
    if query.after is None:
        return span_of(INDEX, part)._replace(reverse=True)
    of, name = query.after.key
    at = query.after.created_at if query.order == "created" else query.after.changed_at
    end = time_key(at, name) if kind == of else time_key(at + (kind < of))
    return span_of(INDEX, part, "", end)._replace(reverse=True)


def _find_some(kind: str, span: Span, limit: int, order: Order) -> Reads[list[_Found]]:
    """Return up to `limit` threads of a kind, by a span of the index."""
    found: list[_Found] = []
    part, has_heads = span.start[0], span.start[0] == THREAD + kind
    while len(found) < limit:
        most = limit - len(found)
        (rows,) = yield [span._replace(limit=most, keys_only=not has_heads)]
        keys = [ThreadKey(kind, str(key) if order == "name" else str(key)[_DIGITS:]) for _, key, _ in rows]
        heads = [[row] for row in rows] if has_heads else (yield [span_of_head(key) for key in keys])
        for key, row, (_, place, _) in zip(keys, heads, rows, strict=True):
            if (head := _read_head(row, place, order)) is not None and head.due != INCOMPLETE:
                found.append((key, head))
        if len(rows) < most:
            break
        last = rows[-1][1]
        span = span._replace(end=(part, last)) if span.reverse else span._replace(start=(part, f"{last}\0"))
    return found


def _read_head(rows: Sequence[Row], place: Key, order: Order) -> Head | None:
    """Return the head of a thread that was found at a place of the index; a LOST one has the time of the place."""
    head = read_head(rows)
    if head is LOST and order != "name":
        at = int(str(place)[:_DIGITS])
        return msgspec.structs.replace(LOST, created_at=at, changed_at=at)
    return head
