"""The callbacks of a node for shards that move."""

from collections.abc import Collection, Set
from typing import Final

from plait.cluster.owners import NodeId

__all__ = ["NO_THREADS", "Moves"]


class Moves:
    """Callbacks for shards that move; these are of a node without threads and links."""

    async def vacate(self, shards: Collection[int]) -> None:
        """End the use of shards, before they are given away: nothing wakes there, and what is written is durable."""

    def lose(self) -> None:
        """Drop all threads, and what waits to be sent: the node was dead for the others."""

    def gain(self) -> None:
        """Check the threads of this node after it has got shards, or can serve again."""

    def find_busy(self) -> Set[int]:
        """Return the shards with work that may take long: they are given away last, and are not shared."""
        return frozenset()

    def find_linked(self) -> Collection[NodeId]:
        """Return the nodes to which there are links, which the others are told."""
        return ()

    def close_links(self, alive: Collection[NodeId]) -> None:
        """Close the links to all nodes but these."""


NO_THREADS: Final = Moves()
"""The moves of a process that has no threads."""
