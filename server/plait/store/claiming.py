"""Claims and loads a thread in two steps."""

from collections.abc import Sequence

from plait.store.protocol import RecordRange, Store, StoredThread, ThreadKey

__all__ = ["claim_then_load"]


async def claim_then_load(
    store: Store, key: ThreadKey, records: Sequence[RecordRange]
) -> tuple[int, StoredThread | None]:
    """Claim a thread and load it; if it cannot be loaded, release it. Raises CorruptThread and StoreError."""
    fence = await store.claim(key)
    try:
        return fence, await store.load(key, records=records)
    except BaseException:
        store.release(key, fence)
        raise
