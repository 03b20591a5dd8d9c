"""The directory of a cluster: the nodes that are alive, and the owners of the shards.

The engine of the shared store keeps the directory in tables or a stream of its own. Each change is a compare-and-set.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

import msgspec

from plait.store.shards import SHARDS

__all__ = ["FREE", "NO_VIEW", "Directory", "DirectoryView", "NodeRecord", "ShardRecord", "merge_versions"]


class NodeRecord(msgspec.Struct, frozen=True):
    """One node of a cluster."""

    # Unique for each start of a node, so that a restarted node is not taken for its predecessor.
    id: str
    # The name that the operator has chosen, such as `a`.
    name: str
    # The address at which the node answers the links of other nodes: host and port.
    address: str
    # The number of beats: signs of life.
    beats: int = 0
    is_dead: bool = False
    # The `state_version` of each kind in the node's code.
    versions: Mapping[str, int] = {}
    # Whether the node must get no shards, as it gives its own away, or its app has not started yet.
    is_leaving: bool = False
    # The names of the nodes to which the node has links.
    links: Sequence[str] = ()


class ShardRecord(NamedTuple):
    """The owner of one shard."""

    # The id of the node; empty if no node has owned the shard yet.
    node: str
    # A number that grows with each owner, and is never used twice.
    epoch: int
    # The highest `state_version` of each kind at which threads of the shard may be stored; 1 for a missing kind.
    versions: Mapping[str, int] = {}


FREE: Final = ShardRecord("", 0)
"""A shard that no node has owned."""


def merge_versions(before: Mapping[str, int], recorded: Mapping[str, int]) -> dict[str, int]:
    """Return the versions of a shard after further ones are recorded."""
    return {kind: max(each.get(kind, 0) for each in (before, recorded)) for kind in (*before, *recorded)}


class DirectoryView(msgspec.Struct, frozen=True):
    """The whole directory at one moment."""

    nodes: Sequence[NodeRecord]
    shards: Sequence[ShardRecord]

    def alive(self) -> dict[str, NodeRecord]:
        """Return the nodes that are not dead, by id."""
        return {each.id: each for each in self.nodes if not each.is_dead}

    def without(self, ids: Collection[str]) -> "DirectoryView":
        """Return a directory in which these nodes are dead."""
        dead = {each.id: msgspec.structs.replace(each, is_dead=True) for each in self.nodes if each.id in ids}
        return DirectoryView([dead.get(each.id, each) for each in self.nodes], self.shards) if dead else self

    def including(self, id: str) -> "DirectoryView":
        """Return a directory in which a node may have shards."""
        nodes = [msgspec.structs.replace(each, is_leaving=False) if each.id == id else each for each in self.nodes]
        return DirectoryView(nodes, self.shards)

    def moved(self, epochs: Mapping[int, int], to: str) -> "DirectoryView":
        """Return a directory in which a node owns these shards, at these epochs."""
        shards = list(self.shards)
        for shard, epoch in epochs.items():
            shards[shard] = ShardRecord(to, epoch, shards[shard].versions)
        return DirectoryView(self.nodes, shards) if epochs else self

    def recorded(self, versions: Mapping[int, Mapping[str, int]]) -> "DirectoryView":
        """Return a directory in which these shards have threads of these versions."""
        shards = list(self.shards)
        for shard, each in versions.items():
            shards[shard] = shards[shard]._replace(versions=merge_versions(shards[shard].versions, each))
        return DirectoryView(self.nodes, shards)


NO_VIEW: Final = DirectoryView((), (FREE,) * SHARDS)
"""The directory before the first node has joined."""


class Directory(AbstractAsyncContextManager["Directory"], Protocol):
    """Changes the directory, after it is entered. Every method raises StoreError if its outcome is not known.

    `join` and `beat` also raise StoreError if the engine may not be used, and Replaced if another server is the
    primary.
    """

    async def read(self) -> DirectoryView:
        """Return the directory at one moment during this call."""
        ...

    async def join(self, node: NodeRecord) -> NodeRecord | None:
        """Add a node, and return None. Add nothing, and return the record, if a node of the same name is not dead."""
        ...

    async def beat(self, id: str, *, is_leaving: bool = False, links: Sequence[str] = ()) -> bool:
        """Count a beat of a node, and store its data. Return False, and store nothing, if it is dead or removed."""
        ...

    async def mark_dead(self, id: str, beats: int) -> bool:
        """Mark a node as dead if it has this number of beats; return whether it was marked."""
        ...

    async def remove(self, id: str) -> None:
        """Remove a node that is stopping or dead, and owns no shard."""
        ...

    async def take(self, id: str, shards: Mapping[int, int]) -> dict[int, int]:
        """Make a node the owner of shards at these epochs whose owners are dead; return the new epochs.

        Other shards stay as they are, and are not in the answer. Takes nothing if the node is dead.
        """
        ...

    async def give(self, id: str, shards: Mapping[int, int], to: str) -> dict[int, int]:
        """Make another node the owner of shards that a node owns at these epochs; return the new epochs.

        Gives nothing if either node is dead. A node that gives shards to itself only raises the epochs.
        """
        ...

    async def record(self, id: str, versions: Mapping[int, Mapping[str, int]]) -> Collection[int]:
        """Raise the versions of kinds in shards to at least these; return the shards that the node owns.

        Other shards stay as they are.
        """
        ...
