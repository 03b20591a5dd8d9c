"""Deletes a sleeping thread."""

from plait.store.protocol import Store, ThreadHeader, Write
from plait.store.thread_rows import ThreadKey

__all__ = ["delete_thread"]


async def delete_thread(store: Store, key: ThreadKey, found: ThreadHeader, *, fence: int) -> None:
    """Delete a thread whose stored header is `found`; `fence` is the owner's number. Raises StoreError."""
    await store.submit(Write(key, found.epoch, found.version, found.version, fence=fence, is_deletion=True))
