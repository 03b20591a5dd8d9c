"""The deletion of a thread that is asleep."""

from plait.store.protocol import Store, ThreadHeader, ThreadKey, Write

__all__ = ["delete_thread"]


async def delete_thread(store: Store, key: ThreadKey, found: ThreadHeader, *, fence: int) -> None:
    """Delete a thread as it was found in the store; `fence` is the number of its owner. Raises StoreError."""
    await store.submit(Write(key, found.epoch, found.version, found.version, fence=fence, is_deletion=True))
