"""The content of a directory's cells: the nodes, the owners of all shards, and the versions in them."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import json, msgpack

from plait.cluster.directory import FREE, DirectoryView, NodeRecord, ShardRecord, merge_versions
from plait.store.cells import NO_CELL, Cell, Reading
from plait.store.shards import SHARDS

__all__ = ["CellContent", "StoredNode", "find_node_cell"]

_NODES: Final = "node/"
# The owner and the epoch of each shard, in about 25 kB.
_OWNERS: Final = "shards"
_VERSIONS: Final = "versions/"
# The number of shards with their versions in one cell. One cell for each shard would be more than NATS returns at once.
_TOGETHER: Final = 32


class StoredNode(NamedTuple):
    """A node, and its cell."""

    cell: str
    revision: int
    record: NodeRecord


class CellContent:
    """A reading of all cells. Cells that have not changed since `former`, an earlier reading, are not decoded again."""

    def __init__(self, reading: Reading, former: "CellContent | None" = None) -> None:
        self.reading = reading
        self.nodes = [
            StoredNode(name, cell.revision, json.decode(cell.value, type=NodeRecord))
            for name, cell in reading.cells.items()
            if name.startswith(_NODES) and cell.value
        ]
        self._alive = {each.record.id: each for each in self.nodes if not each.record.is_dead}
        self._others = {name: cell for name, cell in reading.cells.items() if not name.startswith(_NODES)}
        self.shards = self._read_shards(former)

    @property
    def view(self) -> DirectoryView:
        """The directory in these cells."""
        return DirectoryView(sorted((each.record for each in self.nodes), key=lambda node: node.name), self.shards)

    def find(self, id: str) -> StoredNode | None:
        """Return the node with an id, unless it is dead."""
        return self._alive.get(id)

    def find_name(self, name: str) -> NodeRecord | None:
        """Return the node with a name, unless it is dead."""
        return next((each.record for each in self._alive.values() if each.record.name == name), None)

    def find_obsolete(self) -> list[str]:
        """Return the cells of dead nodes without shards."""
        owners = {each.node for each in self.shards}
        return [each.cell for each in self.nodes if each.record.is_dead and each.record.id not in owners]

    def move(
        self, to: str, shards: Mapping[int, int], by: str, *, takes: bool
    ) -> tuple[dict[str, bytes | None], dict[int, int]]:
        """Make a node the owner of shards at these epochs; return the cell to swap, and the new epochs.

        The node takes shards of dead owners, or another node gives it shards of its own. Neither node may be dead.
        """
        if not {to, by} <= self._alive.keys():
            return {}, {}
        moved, epochs = [each[:2] for each in self.shards], {}
        for shard, epoch in shards.items():
            owner, before = moved[shard]
            may_move = owner not in self._alive if takes else owner == by
            if may_move and before == epoch:
                # Above all earlier epochs, even if the engine has lost the last of them.
                epochs[shard] = max(epoch, self.reading.timeline) + 1
                moved[shard] = (to, epochs[shard])
        return {_OWNERS: msgpack.encode(moved)} if epochs else {}, epochs

    def record(self, id: str, versions: Mapping[int, Mapping[str, int]]) -> tuple[dict[str, bytes], list[int]]:
        """Raise the versions of a node's shards to at least these; return the cells to swap, and the node's shards."""
        own = [shard for shard in versions if self.shards[shard].node == id]
        raised = [each.versions for each in self.shards]
        for shard in own:
            raised[shard] = merge_versions(raised[shard], versions[shard])
        changed = {shard // _TOGETHER for shard in own if raised[shard] != self.shards[shard].versions}
        return {f"{_VERSIONS}{each}": json.encode(raised[each * _TOGETHER :][:_TOGETHER]) for each in changed}, own

    # Inside

    def _read_shards(self, former: "CellContent | None") -> Sequence[ShardRecord]:
        decoded: Mapping[str, Cell] = {}
        owners = self._others.get(_OWNERS, NO_CELL)
        if former is not None and former.reading.timeline != self.reading.timeline:
            former = None  # It may contain lost data.
        if former is not None and former._others.get(_OWNERS, NO_CELL) == owners:
            shards, decoded = list(former.shards), former._others
        elif owners.value:
            shards = msgpack.decode(owners.value, type=list[ShardRecord])
        else:
            shards = [FREE] * SHARDS
        for name, cell in self._others.items():
            if name.startswith(_VERSIONS) and decoded.get(name) != cell:
                first = int(name.removeprefix(_VERSIONS)) * _TOGETHER
                for shard, versions in enumerate(json.decode(cell.value, type=list[dict[str, int]]), first):
                    shards[shard] = shards[shard]._replace(versions=versions)
        return shards


def find_node_cell(name: str) -> str:
    """Return the name of the cell for the node with a name."""
    return _NODES + name
