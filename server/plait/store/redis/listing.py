"""Lists threads. A list is read in pages, each at its own moment."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from plait.store.page import PLACES
from plait.store.protocol import DueThread, ThreadKey, ThreadQuery, ThreadRow
from plait.store.redis.layout import Keys, decode, join, split
from plait.store.redis.scripts import PAGE
from plait.store.thread_rows import INCOMPLETE

__all__ = ["list_due", "list_threads"]

Run = Callable[..., Awaitable[list[Any]]]

# The most and the fewest threads that are read at once.
_MOST: Final = 1000
_FEWEST: Final = 100


async def list_threads(run: Run, keys: Keys, query: ThreadQuery) -> list[ThreadRow]:
    """Return the rows of `Store.threads`."""
    query.prefix.encode()  # Raises UnicodeEncodeError.
    if query.user is not None and query.order != "name":  # A user has few threads.
        place = PLACES[query.order]
        rows = [row async for page in _by_name(run, keys, query) for row in await _read(run, keys, query, page)]
        rows.sort(key=place, reverse=True)
        return [row for row in rows if query.after is None or place(row) < place(query.after)][: query.limit]
    found: list[ThreadRow] = []
    async for page in _by_name(run, keys, query) if query.order == "name" else _by_time(run, keys, query):
        found += await _read(run, keys, query, page)
        if len(found) >= query.limit:
            break
    return found[: query.limit]


async def list_due(run: Run, keys: Keys, *, until: int, after: DueThread | None, limit: int) -> list[DueThread]:
    """Return the threads that are due at `until` or before, the earliest first."""
    found: list[DueThread] = []
    place = None if after is None else (after.due, join(*after.key))
    async for page in _by_place(run, keys("due"), place, limit):
        found += [DueThread(at, ThreadKey(*split(member))) for at, member in page if at <= until]
        if len(found) >= limit or (page and page[-1][0] > until):
            break
    return found[:limit]


async def _by_name(run: Run, keys: Keys, query: ThreadQuery) -> AsyncIterator[Sequence[bytes]]:
    names = keys("names") if query.user is None else keys("user", query.user.encode())
    prefix = b"" if query.kind is None else query.kind.encode() + b"\0" + query.prefix.encode()
    first, last = b"[" + prefix, b"(" + prefix + b"\xff" if prefix else b"+"
    if query.order == "name" and query.after is not None and (after := join(*query.after.key)) >= prefix:
        first = b"(" + after
    count = _count(query.limit)
    while True:
        (page,) = await run(("ZRANGEBYLEX", names, first, last, "LIMIT", 0, count))
        yield page
        if len(page) < count:
            return
        first = b"(" + page[-1]


async def _by_time(run: Run, keys: Keys, query: ThreadQuery) -> AsyncIterator[Sequence[bytes]]:
    place = None
    if (after := query.after) is not None:
        place = (after.created_at if query.order == "created" else after.changed_at), join(*after.key)
    async for page in _by_place(run, keys(query.order), place, query.limit, is_reverse=True):
        yield [member for _, member in page]


async def _by_place(
    run: Run, key: bytes, after: tuple[int, bytes] | None, limit: int, *, is_reverse: bool = False
) -> AsyncIterator[Sequence[tuple[int, bytes]]]:
    """Yield the times and members of a sorted set after a place, in pages."""
    count = _count(limit)
    while True:
        at, member = after or ("+inf" if is_reverse else "-inf", b"")
        (page,) = await run(("EVAL", PAGE, 1, key, member, at, count, int(is_reverse)))
        rows = [(int(float(at)), member) for member, at in zip(page[::2], page[1::2], strict=True)]
        yield [row for row in rows if after is None or (row < after if is_reverse else row > after)]
        if len(rows) < count:
            return
        after = rows[-1]


async def _read(run: Run, keys: Keys, query: ThreadQuery, members: Sequence[bytes]) -> list[ThreadRow]:
    """Return the rows of threads that are those of a query and are after its place."""
    wanted = [(member, ThreadKey(*split(member))) for member in members]
    wanted = [
        (member, key) for member, key in wanted if query.kind in (None, key.kind) and key.name.startswith(query.prefix)
    ]
    heads = await run(*(("HMGET", keys("h", member), "v", "cr", "ch", "u", "due") for member, _ in wanted))
    place, found = PLACES[query.order], list[ThreadRow]()
    for (_, key), (version, created_at, changed_at, user, due) in zip(wanted, heads, strict=True):
        if created_at is None or int(due) == INCOMPLETE or query.user not in (None, decode(user)):
            continue
        row = ThreadRow(key, int(version), int(created_at), int(changed_at), decode(user))
        if query.order == "name" or query.after is None or place(row) < place(query.after):
            found.append(row)
    return found


def _count(limit: int) -> int:
    return min(max(limit, _FEWEST), _MOST)
