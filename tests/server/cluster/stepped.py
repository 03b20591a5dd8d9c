"""A directory in memory, whose calls are made in steps, and fail, as a test chooses."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Literal, Self, TypeVar

import msgspec

from plait.cluster.directory import FREE, DirectoryView, NodeRecord, ShardRecord, merge_versions
from plait.errors import StoreError

T = TypeVar("T")

Outcome = Literal["done", "refused", "unanswered"]
"""The outcome of a call: it is done, or it is not done and fails, or it is done and its answer is lost."""


class _Pause:
    def __await__(self) -> Generator[None, Outcome, Outcome]:
        return (yield)


class SteppedDirectory:
    """Every call waits for the driver before its effect, and for another step before its answer."""

    def __init__(self, shards: int) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.shards: list[ShardRecord] = [FREE] * shards
        # The shards of each call of `record`.
        self.recorded: list[list[int]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self) -> DirectoryView:
        def work() -> DirectoryView:
            return DirectoryView(list(self.nodes.values()), list(self.shards))

        return await self._call(work)

    async def join(self, node: NodeRecord) -> NodeRecord | None:
        def work() -> NodeRecord | None:
            other = next((each for each in self.nodes.values() if each.name == node.name and not each.is_dead), None)
            if other is not None and other.id != node.id:
                return other
            self.nodes[node.id] = node
            return None

        return await self._call(work)

    async def beat(self, id: str, *, is_leaving: bool = False, links: Sequence[str] = ()) -> bool:
        def work() -> bool:
            node = self.nodes.get(id)
            if node is None or node.is_dead:
                return False
            self.nodes[id] = msgspec.structs.replace(node, beats=node.beats + 1, is_leaving=is_leaving, links=links)
            return True

        return await self._call(work)

    async def mark_dead(self, id: str, beats: int) -> bool:
        def work() -> bool:
            node = self.nodes.get(id)
            if node is None or node.is_dead or node.beats != beats:
                return False
            self.nodes[id] = msgspec.structs.replace(node, is_dead=True)
            return True

        return await self._call(work)

    async def remove(self, id: str) -> None:
        def work() -> None:
            self.nodes.pop(id, None)

        await self._call(work)

    async def take(self, id: str, shards: Mapping[int, int]) -> dict[int, int]:
        def work() -> dict[int, int]:
            return self._change(id, {shard: epoch for shard, epoch in shards.items() if self._is_lost(shard)}, id)

        return await self._call(work)

    async def give(self, id: str, shards: Mapping[int, int], to: str) -> dict[int, int]:
        def work() -> dict[int, int]:
            return self._change(
                to, {shard: epoch for shard, epoch in shards.items() if self.shards[shard].node == id}, id
            )

        return await self._call(work)

    async def record(self, id: str, versions: Mapping[int, Mapping[str, int]]) -> list[int]:
        def work() -> list[int]:
            own = [shard for shard in versions if self.shards[shard].node == id]
            for shard in own:
                before = self.shards[shard]
                self.shards[shard] = before._replace(versions=merge_versions(before.versions, versions[shard]))
            self.recorded.append(own)
            return own

        return await self._call(work)

    def _is_lost(self, shard: int) -> bool:
        node = self.nodes.get(self.shards[shard].node)
        return node is None or node.is_dead

    def _change(self, to: str, shards: Mapping[int, int], by: str) -> dict[int, int]:
        if any(id not in self.nodes or self.nodes[id].is_dead for id in (to, by)):
            return {}
        changed = {}
        for shard, epoch in shards.items():
            if self.shards[shard].epoch == epoch:
                self.shards[shard] = ShardRecord(to, epoch + 1, self.shards[shard].versions)
                changed[shard] = epoch + 1
        return changed

    async def _call(self, work: Callable[[], T]) -> T:
        outcome = await _Pause()
        if outcome == "refused":
            raise StoreError("the engine is away")
        result = work()
        await _Pause()
        if outcome == "unanswered":
            raise StoreError("the answer is lost")
        return result
