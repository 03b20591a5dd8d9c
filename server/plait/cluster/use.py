"""Finds out whether servers use a shared store, for commands that need it alone."""

import asyncio
from typing import Final

from plait.cluster.cell_directory import find_directory
from plait.cluster.directory import Directory, NodeRecord
from plait.cluster.member import SINGLE
from plait.errors import Unavailable
from plait.store.protocol import Store

__all__ = ["check_unused"]

# Seconds in which a running server beats at least once.
_LOOK: Final = 1.5


async def check_unused(store: Store) -> None:
    """Raise Unavailable if a server uses a shared store, and StoreError. A killed server does not count."""
    directory = find_directory(store) if store.is_shared else None
    if directory is None:
        return
    async with directory:
        if (node := await _find_beating(directory)) is not None:
            name = "a server" if node.name == SINGLE else f"the node {node.name!r}"
            raise Unavailable(f"the store is in use by {name}, at {node.address}: stop all servers first")


async def _find_beating(directory: Directory) -> NodeRecord | None:
    before = (await directory.read()).alive()
    if not before:
        return None
    await asyncio.sleep(_LOOK)
    after = (await directory.read()).alive()
    return next((node for id, node in after.items() if id not in before or node.beats != before[id].beats), None)
