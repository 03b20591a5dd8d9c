"""Writes of tests that do not say who owns their threads: the test itself does."""

import asyncio
from weakref import WeakKeyDictionary

import msgspec

from plait.store.protocol import Store, ThreadKey, Write

__all__ = ["claim_now", "submit"]

_FENCES: WeakKeyDictionary[Store, dict[ThreadKey, int]] = WeakKeyDictionary()


def claim_now(store: Store, key: ThreadKey) -> int:
    """Claim a thread that has no waiting writes, in a store whose claims then need not wait."""
    claim = store.claim(key)
    try:
        claim.send(None)
    except StopIteration as end:
        fence: int = end.value
        return fence
    raise AssertionError(f"a claim of {key} waits")


def submit(store: Store, write: Write) -> asyncio.Future[int]:
    """Submit a write; one without a fence is of the test's own, which claims each thread once."""
    if not write.fence:
        fences = _FENCES.setdefault(store, {})
        if write.key not in fences:
            fences[write.key] = claim_now(store, write.key)
        write = msgspec.structs.replace(write, fence=fences[write.key])
    return store.submit(write)
