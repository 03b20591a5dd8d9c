"""The callbacks of a cluster's node: shards have moved, or the others have found the node dead."""

from collections.abc import Collection

from plait.cluster.owners import Moves, NodeId
from plait.web.server_context import ServerContext

__all__ = ["NodeMoves"]


class NodeMoves(Moves):
    """The moves of a node. Turns of threads that move get `timeout` seconds to end."""

    def __init__(self, context: ServerContext, timeout: float) -> None:
        self._context = context
        self._timeout = timeout

    async def vacate(self, shards: Collection[int]) -> None:
        """Stop the threads of shards."""
        await self._context.node.moving.vacate(shards, self._timeout)

    def lose(self) -> None:
        """Drop all threads and all waiting output, and close all sockets and links."""
        context = self._context
        # Drop the output first, so that the close frames are kept.
        context.write_batcher.drop()
        context.node.lose()
        context.relays.cut_off()
        context.links.drop()

    def gain(self) -> None:
        """Check the threads of new shards."""
        self._context.node.gain()

    def find_busy(self) -> frozenset[int]:
        """Return the shards with runs."""
        return self._context.node.moving.find_busy()

    def find_linked(self) -> Collection[NodeId]:
        """Return the nodes to which there are links."""
        return self._context.links.linked

    def close_links(self, alive: Collection[NodeId]) -> None:
        """Close the links to dead nodes."""
        self._context.links.close_others(alive)
