"""The messages of a directory in NATS: the table, which has all nodes and shards, and the beats of each node."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import msgspec
from msgspec.structs import replace

from plait.cluster.directory import FREE, NodeRecord, ShardRecord, merge_versions
from plait.store.shards import SHARDS

__all__ = ["Beats", "Found", "Numbered", "Table"]


class Beats(msgspec.Struct, frozen=True, omit_defaults=True):
    """The message that a node sends each second."""

    count: int = 0
    is_leaving: bool = False
    links: Sequence[str] = ()
    # Whether none may follow.
    is_dead: bool = False


class Numbered(NamedTuple):
    """Beats with the sequence number of their message, on which the next ones depend."""

    beats: Beats
    number: int


class _Table(msgspec.Struct, frozen=True):
    """A shard is the place of its owner in `owners`, its epoch, and the place of its versions in `versions`."""

    first: int
    nodes: Sequence[NodeRecord]
    owners: Sequence[str]
    versions: Sequence[Mapping[str, int]]
    shards: Sequence[tuple[int, int, int]]


class Table(NamedTuple):
    """Nodes, without their beats, and shards. A change returns another table."""

    # All epochs are above this number.
    first: int
    nodes: Mapping[str, NodeRecord]
    shards: Sequence[ShardRecord]

    @classmethod
    def make(cls, first: int) -> Self:
        """Return the table of a new directory."""
        return cls(first, {}, (FREE,) * SHARDS)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a message."""
        found = msgspec.json.decode(data, type=_Table)
        shards = [ShardRecord(found.owners[owner], epoch, found.versions[at]) for owner, epoch, at in found.shards]
        return cls(found.first, {node.id: node for node in found.nodes}, shards)

    def encode(self) -> bytes:
        """Make a message, of about 20 kB: ids and versions are in it once, and not with each shard."""
        owners: dict[str, int] = {}
        places: dict[tuple[tuple[str, int], ...], int] = {}
        shards = []
        for each in self.shards:
            versions = tuple(sorted(each.versions.items()))
            owner, at = owners.setdefault(each.node, len(owners)), places.setdefault(versions, len(places))
            shards.append((owner, each.epoch, at))
        every = [dict(versions) for versions in places]
        return msgspec.json.encode(_Table(self.first, list(self.nodes.values()), list(owners), every, shards))

    def find_alive(self, id: str) -> NodeRecord | None:
        """Return a node; None if it is dead or not there."""
        node = self.nodes.get(id)
        return None if node is None or node.is_dead else node

    def find_name(self, name: str) -> NodeRecord | None:
        """Return the node of a name that is not dead."""
        return next((each for each in self.nodes.values() if each.name == name and not each.is_dead), None)

    def add(self, node: NodeRecord) -> Self:
        """Add a node, and remove those that are dead and own no shard."""
        owners = {each.node for each in self.shards}
        kept = {id: each for id, each in self.nodes.items() if not each.is_dead or id in owners}
        return self._replace(nodes={**kept, node.id: node})

    def mark_dead(self, id: str) -> Self:
        """Mark a node as dead."""
        return self._replace(nodes={**self.nodes, id: replace(self.nodes[id], is_dead=True)})

    def remove(self, id: str) -> Self:
        """Remove a node."""
        return self._replace(nodes={other: node for other, node in self.nodes.items() if other != id})

    def move(self, to: str, shards: Mapping[int, int], by: str, *, takes: bool) -> tuple[Self, dict[int, int]]:
        """Make a node the owner of shards that have these epochs; return those that are moved with the new ones.

        It takes shards whose owners are dead, or another node gives it its own. Neither node may be dead.
        """
        owner, moved, epochs = self.find_alive(to), list(self.shards), {}
        if owner is None or self.find_alive(by) is None:
            return self, {}
        for shard, epoch in shards.items():
            before = self.shards[shard]
            may_move = self.find_alive(before.node) is None if takes else before.node == by
            if may_move and before.epoch == epoch:
                # Above all former ones, also if a former stream had these shards.
                epochs[shard] = max(epoch, self.first) + 1
                moved[shard] = ShardRecord(to, epochs[shard], before.versions)
        return self._replace(shards=moved), epochs

    def record(self, id: str, versions: Mapping[int, Mapping[str, int]]) -> tuple[Self, list[int]]:
        """Raise the versions of kinds in shards of a node to at least these; return the shards that are its own."""
        shards, own = list(self.shards), [shard for shard in versions if self.shards[shard].node == id]
        for shard in own:
            shards[shard] = shards[shard]._replace(versions=merge_versions(shards[shard].versions, versions[shard]))
        return self._replace(shards=shards), own


class Found(NamedTuple):
    """The stored directory at one moment: the table, the number of its message or 0, and all beats."""

    table: Table
    number: int
    beats: Mapping[str, Numbered]

    def find_beats(self, id: str) -> Numbered:
        """Return the beats of a node. Those of a dead one are removed after a while."""
        return self.beats.get(id, Numbered(Beats(is_dead=True), 0))
