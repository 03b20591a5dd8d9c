"""Copies a store to another one, thread by thread. A copy that was killed can be resumed; each thread is verified."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from plait.errors import PlaitError, StoreError
from plait.store.deletion import delete_thread
from plait.store.protocol import Store, ThreadQuery, Write
from plait.store.thread_rows import Record, ThreadKey
from plait.store.whole import StoredSchema, WholeStore

__all__ = ["UNFINISHED", "Source", "check_finished", "copy_store", "copy_threads", "list_keys"]

UNFINISHED: Final = ThreadKey("~copy", "unfinished")
"""The thread that a target has until its copy is finished. A record names the source."""

_PART: Final = "copy"
_SOURCE: Final = "source"
# Threads that are copied at the same time, so that their writes share transactions.
_AT_ONCE: Final = 32
_PAGE: Final = 1000


class Source(Protocol):
    """A store or a file whose threads are copied."""

    def export(self, key: ThreadKey) -> AsyncGenerator[Write]:
        """Yield the writes of a thread, as `Store.export`."""
        ...

    async def schemas(self) -> list[StoredSchema]:
        """Return all stored schemas."""
        ...


async def check_finished(store: Store) -> None:
    """Raise StoreError if a store is the target of a copy that was not finished."""
    if await store.find(UNFINISHED) is not None:
        raise StoreError(
            "the store is an unfinished copy: run `plait store copy` or `import` again, which goes on where it ended"
        )


async def copy_store(source: WholeStore, target: WholeStore, name: str, show: Callable[[int, int], None]) -> int:
    """Copy all threads and schemas of a store to an empty one, and return the number of threads.

    Both must be open, and nothing else may write to them. `name` identifies the source: a target that has a part of a
    copy of the same source is completed. `show` is called with how many threads are copied, of how many. Raises
    StoreError.
    """
    await check_finished(source)
    return await copy_threads(source, await list_keys(source), target, name, show)


async def copy_threads(
    source: Source,
    keys: Sequence[ThreadKey],
    target: WholeStore,
    name: str,
    show: Callable[[int, int], None],
    *,
    has_new_epochs: bool = False,
) -> int:
    """Copy threads and all schemas, as `copy_store`; with new epochs, if the source may be older than its clients."""
    epoch = await _begin(target, name)
    copying = _Copying(source, target, epoch if has_new_epochs else None)
    for schema in await source.schemas():
        await target.add_schema(*schema)
    wanted = set(keys)
    for key in await list_keys(target):
        if key not in wanted and key != UNFINISHED:
            await _delete(target, key)
    for start in range(0, len(keys), _AT_ONCE):
        show(start, len(keys))
        await copying.copy_threads(keys[start : start + _AT_ONCE])
    show(len(keys), len(keys))
    await _delete(target, UNFINISHED)
    return len(keys)


async def _begin(target: WholeStore, name: str) -> str:
    """Mark an empty target as unfinished, and return the epoch of the mark.

    Raises StoreError if it is neither empty nor a part of the same copy.
    """
    if (mark := await target.find(UNFINISHED)) is not None:
        if (found := await target.record(UNFINISHED, _PART, _SOURCE)) != name.encode():
            other = (found or b"").decode(errors="replace")
            raise StoreError(f"the target has a part of a copy of {other}, not of {name}: name an empty one")
        return mark.epoch
    if await target.threads(ThreadQuery(limit=1)):
        raise StoreError("the target is not empty: name another one")
    fence = await target.claim(UNFINISHED)
    source, epoch = Record(_PART, _SOURCE, name.encode()), secrets.token_hex(8)
    await target.submit(Write(UNFINISHED, epoch, None, 0, records=(source,), fence=fence))
    target.release(UNFINISHED, fence)
    return epoch


async def list_keys(store: Store) -> list[ThreadKey]:
    """Return all threads of a store, by kind and name."""
    found, after = list[ThreadKey](), None
    while rows := await store.threads(ThreadQuery(after=after, limit=_PAGE)):
        found += [row.key for row in rows]
        after = rows[-1]
    return found


class _Copying:
    """Copies threads, with new epochs that are made with the epoch of the copy, if that is given."""

    def __init__(self, source: Source, target: WholeStore, epoch: str | None) -> None:
        self._source = source
        self._target = target
        self._epoch = epoch

    async def copy_threads(self, keys: Sequence[ThreadKey]) -> None:
        """Copy some threads at once. Raises StoreError."""
        try:
            async with asyncio.TaskGroup() as group:
                for key in keys:
                    group.create_task(self._copy(key))
        except* PlaitError as errors:  # A file may have changed since it was checked.
            raise errors.exceptions[0] from None

    async def _copy(self, key: ThreadKey) -> None:
        """Copy a thread, unless the target has the same one."""
        target = self._target
        if await target.find(key) is not None:
            if await _hash(target.export(key)) == await _hash(self._read(key)):
                return
            await _delete(target, key)
        fence = await target.claim(key)
        read = _Hash()
        async with aclosing(self._read(key)) as writes:
            async for write in writes:
                read.add(write)
                await target.submit(msgspec.structs.replace(write, fence=fence))
        target.release(key, fence)
        if await _hash(target.export(key)) != read.digest():
            raise StoreError(f"{key} was not copied correctly: check the disk, and copy again")

    async def _read(self, key: ThreadKey) -> AsyncGenerator[Write]:
        async with aclosing(self._source.export(key)) as writes:
            async for write in writes:
                yield write if self._epoch is None else _renew(write, self._epoch)


def _renew(write: Write, epoch: str) -> Write:
    """Return a write with a new epoch, the same one for all writes of a thread in this copy."""
    made = hashlib.blake2b(write.epoch.encode(), key=epoch.encode(), digest_size=8)
    return msgspec.structs.replace(write, epoch=made.hexdigest())


async def _delete(store: Store, key: ThreadKey) -> None:
    fence = await store.claim(key)
    if (found := await store.find(key)) is not None:
        await delete_thread(store, key, found, fence=fence)
    store.release(key, fence)


async def _hash(writes: AsyncGenerator[Write]) -> bytes:
    found = _Hash()
    async with aclosing(writes):
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
