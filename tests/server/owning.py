"""Writes of tests that do not say who owns their threads: the test itself does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import msgspec

from plait.store.protocol import Store, Write
from plait.store.thread_rows import ThreadKey

__all__ = ["claim_now", "own", "owned", "submit"]

_FENCES: WeakKeyDictionary[Store, dict[ThreadKey, int]] = WeakKeyDictionary()


def claim_now(store: Store, key: ThreadKey) -> int:
    """Claim a thread that has no waiting writes, in a store whose claims then need not wait."""
    assert not store.is_shared, f"own {key} before it is written"
    claim = store.claim(key)
    try:
        claim.send(None)
    except StopIteration as end:
        fence: int = end.value
        return fence
    raise AssertionError(f"a claim of {key} waits")


async def own(store: Store, *keys: ThreadKey) -> None:
    """Claim threads for the test, unless it has done so already. Claims that wait must be made before `submit`."""
    fences = _FENCES.setdefault(store, {})
    for key in keys:
        if key not in fences:
            fences[key] = await store.claim(key)


@asynccontextmanager
async def owned(store: Store, *keys: ThreadKey) -> AsyncIterator[Store]:
    """Open a store, and claim threads."""
    async with store:
        await own(store, *keys)
        yield store


def submit(store: Store, write: Write) -> asyncio.Future[int]:
    """Submit a write; one without a fence is of the test's own, which claims each thread once."""
    if not write.fence:
        fences = _FENCES.setdefault(store, {})
        if write.key not in fences:
            fences[write.key] = claim_now(store, write.key)
        write = msgspec.structs.replace(write, fence=fences[write.key])
    return store.submit(write)
