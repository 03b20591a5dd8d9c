"""Copies a store to another one, thread by thread. A copy that was killed can be resumed; each thread is verified."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from plait.errors import StoreError
from plait.store.deletion import delete_thread
from plait.store.protocol import Store, ThreadKey, ThreadQuery, ThreadRow, Write
from plait.store.thread_rows import Record
from plait.store.whole import WholeStore

__all__ = ["UNFINISHED", "check_finished", "copy_store"]

UNFINISHED: Final = ThreadKey("~copy", "unfinished")
"""The thread that a target has until its copy is finished. A record names the source."""

_PART: Final = "copy"
_SOURCE: Final = "source"
# Threads that are copied at the same time, so that their writes share transactions.
_AT_ONCE: Final = 32
_PAGE: Final = 1000


async def check_finished(store: Store) -> None:
    """Raise StoreError if a store is the target of a copy that was not finished."""
    if await store.find(UNFINISHED) is not None:
        raise StoreError("the store is an unfinished copy: run `plait store copy` again, which goes on where it ended")


async def copy_store(source: WholeStore, target: WholeStore, name: str, show: Callable[[int, int], None]) -> int:
    """Copy all threads and schemas of a store to an empty one, and return the number of threads.

    Both must be open, and nothing else may write to them. `name` identifies the source: a target that has a part of a
    copy of the same source is completed. `show` is called with how many threads are copied, of how many. Raises
    StoreError.
    """
    await check_finished(source)
    await _begin(target, name)
    for schema in await source.schemas():
        await target.add_schema(*schema)
    keys = [key async for key in _list(source)]
    wanted = set(keys)
    for key in [key async for key in _list(target)]:
        if key not in wanted and key != UNFINISHED:
            await _delete(target, key)
    for start in range(0, len(keys), _AT_ONCE):
        show(start, len(keys))
        await _copy_threads(source, target, keys[start : start + _AT_ONCE])
    show(len(keys), len(keys))
    await _delete(target, UNFINISHED)
    return len(keys)


async def _begin(target: WholeStore, name: str) -> None:
    """Mark an empty target as unfinished. Raises StoreError if it is neither empty nor a part of the same copy."""
    if await target.find(UNFINISHED) is not None:
        if (found := await target.record(UNFINISHED, _PART, _SOURCE)) != name.encode():
            other = (found or b"").decode(errors="replace")
            raise StoreError(f"the target has a part of a copy of {other}, not of {name}: name an empty one")
        return
    if await target.threads(ThreadQuery(limit=1)):
        raise StoreError("the target is not empty: name another one")
    fence = await target.claim(UNFINISHED)
    mark = Record(_PART, _SOURCE, name.encode())
    await target.submit(Write(UNFINISHED, secrets.token_hex(8), None, 0, records=(mark,), fence=fence))
    target.release(UNFINISHED, fence)


async def _list(store: Store) -> AsyncIterator[ThreadKey]:
    after: ThreadRow | None = None
    while rows := await store.threads(ThreadQuery(after=after, limit=_PAGE)):
        for row in rows:
            yield row.key
        after = rows[-1]


async def _copy_threads(source: WholeStore, target: WholeStore, keys: Sequence[ThreadKey]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for key in keys:
                group.create_task(_copy(source, target, key))
    except* StoreError as errors:
        raise errors.exceptions[0] from None


async def _copy(source: WholeStore, target: WholeStore, key: ThreadKey) -> None:
    """Copy a thread, unless the target has the same one."""
    if await target.find(key) is not None:
        if await _hash(target.export(key)) == await _hash(source.export(key)):
            return
        await _delete(target, key)
    fence = await target.claim(key)
    read = _Hash()
    async for write in source.export(key):
        read.add(write)
        await target.submit(msgspec.structs.replace(write, fence=fence))
    target.release(key, fence)
    if await _hash(target.export(key)) != read.digest():
        raise StoreError(f"{key} was not copied correctly: check the disk, and copy again")


async def _delete(store: Store, key: ThreadKey) -> None:
    fence = await store.claim(key)
    if (found := await store.find(key)) is not None:
        await delete_thread(store, key, found, fence=fence)
    store.release(key, fence)


async def _hash(writes: AsyncIterator[Write]) -> bytes:
    found = _Hash()
    async for write in writes:
        found.add(write)
    return found.digest()


class _Hash:
    """A hash of all of a thread, in whichever writes it is read."""

    def __init__(self) -> None:
        self._head = b""
        # Of the changes, the snapshots, the clients and the records.
        self._rows = tuple(hashlib.blake2b(digest_size=32) for _ in range(4))

    def add(self, write: Write) -> None:
        """Add the next write of the thread."""
        if write.after is None:
            head = msgspec.structs.replace(write, changes=(), snapshots=(), clients=(), records=(), version=0)
            self._head = msgspec.msgpack.encode(head)
        for hashed, rows in zip(
            self._rows, (write.changes, write.snapshots, write.clients, write.records), strict=True
        ):
            for row in rows:
                hashed.update(msgspec.msgpack.encode(row))

    def digest(self) -> bytes:
        """Return the hash."""
        return b"".join([self._head, *(hashed.digest() for hashed in self._rows)])
