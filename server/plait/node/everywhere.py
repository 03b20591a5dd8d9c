"""The threads of all nodes: here, or at the node that owns them."""

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import Any

from plait.actor.handle import ThreadCalls
from plait.actor.kind import Kind
from plait.cluster.owners import NodeId
from plait.node.forking import Fork
from plait.node.importing import Import
from plait.node.listing import merge_listings
from plait.node.local_thread import LocalThread, OwnThreads
from plait.node.remote_nodes import RemoteNodes
from plait.node.remote_requests import ExportThread, ForkThread, ImportThread, Listed, ListThreads
from plait.node.remote_thread import RemoteThread
from plait.node.transfers import Transfers
from plait.parts.env.app_env import AppEnv
from plait.store.thread_rows import ThreadKey

__all__ = ["Everywhere"]


class Everywhere:
    """Handles requests of server code: with the threads of `node` here, and by asking `nodes` about all others."""

    def __init__(self, node: OwnThreads, transfers: Transfers, nodes: RemoteNodes) -> None:
        self._node = node
        self._transfers = transfers
        self.nodes = nodes

    def find(self, kind: Kind, key: ThreadKey) -> ThreadCalls:
        """Return the calls of a thread. Raises RuntimeError in another event loop than the app's."""
        self._node.check_loop()
        if self._is_here(key):
            return LocalThread(self._node, kind, key)
        return RemoteThread(self.nodes, kind, key, self._node.limits, services={AppEnv: self._node.env})

    async def call_part(self, key: ThreadKey, part: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a part of a thread, even of a kind that plait itself uses."""
        return await self.find(self._node.find_any_kind(key.kind), key).call_part(part, method, args, kwargs)

    async def interrupt(self, key: ThreadKey, message: Any) -> bool:
        """Interrupt the run of a thread, and return whether there is one."""
        return bool(await self.find(self._node.find_any_kind(key.kind), key).call_thread("interrupt", message))

    async def destroy(self, key: ThreadKey) -> None:
        """Destroy a thread, as `Node.destroy` does."""
        await self.find(self._node.find_any_kind(key.kind), key).call_thread("destroy")

    async def export_thread(self, key: ThreadKey) -> AsyncGenerator[bytes]:
        """Iterate over the file of a thread, as `Transfers.export_thread` does."""
        if self._is_here(key):
            found = self._transfers.export_thread(key)
        else:
            found = self.nodes.stream(key, ExportThread(key), reads=True)
        async with aclosing(found):
            async for lines in found:
                yield lines

    async def import_thread(self, work: Import, *, replace: bool) -> None:
        """Store an exported thread, as `Transfers.import_thread` does."""
        if self._is_here(work.key):
            await self._transfers.import_thread(work, replace=replace)
        else:
            await self.nodes.ask(work.key, ImportThread(work.key, replace), upload=work.read_pieces())

    async def fork_thread(self, work: Fork, name: str, at: int | None) -> None:
        """Fork a thread, as `Transfers.fork_thread` does. Raises ValueError if different processes keep the two."""
        source, owners = ThreadKey(work.key.kind, name), self.nodes.owners
        if len(owners.keepers) > 1 and owners.find(work.key) != owners.find(source):
            raise ValueError(f"{source} and {work.key} belong to different processes: fork to another name")
        if self._is_here(work.key):
            await self._transfers.fork_thread(work)
        else:
            await self.nodes.ask(work.key, ForkThread(work.key, name, at))

    async def list_threads(self, query: ListThreads, *, silent: Collection[NodeId] = ()) -> AsyncIterator[Listed]:
        """Iterate over the stored threads, a page of each node at a time, without the stores of `silent` nodes."""
        owners = self.nodes.owners
        listings = [
            self._node.list_own(query) if node == owners.node else self.nodes.list(node, query)
            for node in owners.keepers
            if node not in silent
        ]
        async for listed in merge_listings(listings, query.order, query.limit):
            yield listed

    async def list_names(self, kind: str) -> AsyncIterator[str]:
        """Iterate over the names of the stored threads of a kind, even one that plait itself uses."""
        async for listed in self.list_threads(ListThreads(kind=kind, has_inner=True)):
            yield listed.row.key.name

    def _is_here(self, key: ThreadKey) -> bool:
        """Whether this node owns a thread. Raises Unavailable if only this node can own it, but may not serve now."""
        owners = self.nodes.owners
        if owners.is_alone:
            owners.check(key)
            return True
        return owners.owns(key)
