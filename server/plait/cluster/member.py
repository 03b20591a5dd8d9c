"""One node of a cluster: beats, watches the others, and takes, shares and gives away shards. No I/O of its own.

All safety is in three rules. A node serves only until `LEASE` seconds after the beginning of its last successful beat.
A silent node is marked as dead, by compare-and-set on its beats, no earlier than `SILENCE` seconds after the marking
node has read them, which is later. And the owner of a shard is changed only by this owner, or by a node that finds the
owner dead.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from plait.cluster.directory import NO_VIEW, Directory, DirectoryView, NodeRecord, ShardRecord
from plait.cluster.lease import NodeLease, boot_time
from plait.cluster.owners import NO_THREADS, Moves
from plait.cluster.rendezvous import find_winner
from plait.errors import StoreError, Unavailable
from plait.store.outcomes import OutageLog, Replaced

__all__ = ["SILENCE", "SINGLE", "Member"]

log = logging.getLogger("plait.cluster")

SILENCE: Final = 4.0
"""Seconds without a beat after which a node is marked as dead."""

SINGLE: Final = "single"
"""The name of a process that is not a node of a cluster, and shares its store with no other process."""

_SHARED_AT_ONCE: Final = 16
_GIVEN_AT_ONCE: Final = 64


class _Seen(NamedTuple):
    """The beats of another node, and the time at which this number was first read."""

    beats: int
    at: float


class Member:
    """A node's place in the cluster. One task calls `beat`, and another one `observe`, both about once a second."""

    def __init__(
        self,
        record: NodeRecord,
        directory: Directory,
        moves: Moves = NO_THREADS,
        *,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self.record = record
        self.lease = NodeLease(clock)
        # Whether the other nodes have marked this node as dead: it must join again, with a new id.
        self.is_dead = False
        # Whether other nodes may give this node shards: not while its app starts. Shards without an owner are taken
        # anyway.
        self.is_open = True
        # Whether this node is giving its shards away, and takes no others.
        self.is_leaving = False
        # The last reading of the directory, with the changes of this node since then.
        self.view = NO_VIEW
        self._directory = directory
        self._moves = moves
        self._clock = clock
        # The shards of this node with their epochs, and the ones of them that it is giving away.
        self._owned: dict[int, int] = {}
        self._leaving: set[int] = set()
        self._seen: dict[str, _Seen] = {}
        # The number of lost shards that no node may take.
        self._waiting = 0
        # The numbers of ownerless shards that this node has taken, and of failed beats.
        self.taken = self.failed_beats = 0
        self.outage = OutageLog()
        # State versions to record next, and the lock of the caller that is recording.
        self._unrecorded: dict[int, dict[str, int]] = {}
        self._recording = asyncio.Lock()

    # Answers from memory

    @property
    def owned(self) -> Mapping[int, int]:
        """The epochs of this node's shards, as far as it knows. It may serve these shards while its lease holds."""
        return self._owned

    def owns(self, shard: int) -> bool:
        """Whether this node may serve a shard now."""
        return shard in self._owned and shard not in self._leaving and self.lease.holds

    # Actions of the node

    async def join(self, pause: Callable[[float], Awaitable[None]]) -> None:
        """Become a node of the cluster. Wait for the end of a rival: a node of the same name, or one without a cluster.

        Raises Unavailable if the rival is alive, and StoreError.
        """
        began = self._clock()
        first: NodeRecord | None = None
        while True:
            at = self._clock()
            # Other nodes give shards to a node as soon as they read its record.
            record = replace(self.record, is_leaving=not self.is_open)
            other = self._find_rival(await self._directory.read()) or await self._directory.join(record)
            if other is None:
                # A rival with another name may have joined since.
                if (other := self._find_rival(await self._directory.read())) is None:
                    self.lease.extend(at)
                    return
                await self._directory.remove(self.record.id)
            if first is None or other.id != first.id:
                first, began = other, self._clock()
            elif self._clock() - began >= SILENCE:
                if other.beats != first.beats:
                    raise Unavailable(_explain_rival(self.record, other))
                await self._directory.mark_dead(other.id, other.beats)
            await pause(SILENCE / 16)

    async def beat(self) -> bool:
        """Tell the others that this node is alive, and extend its lease; return False without an answer."""
        began = self._clock()
        try:
            is_alive = await self._directory.beat(
                self.record.id, is_leaving=self.is_leaving or not self.is_open, links=self._find_linked()
            )
        except StoreError as error:
            self.failed_beats += 1
            if isinstance(error, Replaced):  # Waiting output may show lost data.
                self.lease.end()
                self._moves.lose()
            if self.outage.is_due(began, str(error)):
                log.warning("a beat of the node %s failed: %s", self.record.name, error)
            return False
        self.outage.end()
        if is_alive:
            self.lease.extend(began)
        else:
            self._die()
        return True

    async def record_version(self, shard: int, kind: str, version: int) -> bool:
        """Record that threads of a kind may be stored at a state version; return whether this is recorded.

        False means that another node owns the shard. Raises StoreError.
        """
        while self.view.shards[shard].versions.get(kind, 1) < version:
            self._unrecorded.setdefault(shard, {})[kind] = version
            async with self._recording:
                if shard not in (wanted := self._unrecorded):
                    continue  # Another caller has recorded this version with its own, or has failed to.
                self._unrecorded = {}
                own = await self._directory.record(self.record.id, wanted)
                self.view = self.view.recorded({each: wanted[each] for each in own})
            if shard not in own:
                return False
        return True

    async def observe(self) -> None:
        """Read the directory, mark silent nodes as dead, take the shards of dead nodes, and share with new nodes."""
        try:
            self.view = view = await self._directory.read()
            if self.record.id not in view.alive():
                self._die()
                return
            await self._recall(view)
            dead = await self._mark_silent(view.alive())
            self.view = self.view.without(dead)
            if not self.is_leaving:
                self.view = self.view.including(self.record.id)
                await self._take_lost(self.view)
                await self._share(self.view)
        except StoreError as error:
            # Other nodes may be silent because the engine is: only time in which the engine answers counts.
            self._seen.clear()
            if self.outage.is_due(self._clock(), str(error)):
                log.warning("the node %s cannot read the directory: %s", self.record.name, error)

    async def give_all(self) -> None:
        """Give all shards to the other nodes, some at a time, before this node stops. Raises StoreError."""
        self.is_leaving = True
        await self.beat()  # From now on, other nodes give this one no shards.
        while self._owned:
            self.view = view = await self._directory.read()
            await self._recall(view)
            targets = self._find_targets(view)
            if not targets:  # No node can take the shards: they stay with this node, which is removed.
                await self._moves.vacate(list(self._owned))
                return
            # No shard waits for the runs of another shard.
            idle = self._find_idle(targets, _GIVEN_AT_ONCE)
            await self._give(idle or dict(islice(targets.items(), _GIVEN_AT_ONCE)))

    async def leave(self) -> None:
        """Stop being a node. Raises StoreError."""
        self.lease.end()
        await self._directory.remove(self.record.id)

    # Inside

    def _die(self) -> None:
        if self.is_dead:
            return
        log.error("the other nodes have marked the node %s as dead: it drops its threads", self.record.name)
        self.is_dead = True
        self.lease.end()
        self._owned.clear()
        self._leaving.clear()
        self._moves.lose()

    def _find_linked(self) -> list[str]:
        """Return the names of the nodes to which there are links."""
        nodes = self.view.alive()
        return sorted(nodes[id].name for id in self._moves.find_linked() if id in nodes)

    def _find_rival(self, view: DirectoryView) -> NodeRecord | None:
        """Return a node that excludes this one: by the same name, or as one of the two is not a node of a cluster."""
        others = (each for id, each in view.alive().items() if id != self.record.id)
        is_alone = self.record.name == SINGLE
        return next((each for each in others if is_alone or each.name in (SINGLE, self.record.name)), None)

    async def _recall(self, view: DirectoryView) -> None:
        """Adopt this node's shards from the directory, as the outcome of an earlier change may be unknown."""
        self._owned = {shard: each.epoch for shard, each in enumerate(view.shards) if each.node == self.record.id}
        self._leaving &= self._owned.keys()
        if self._leaving:
            # The answer to giving them away was lost. A new epoch prevents that this is still carried out later.
            kept = {shard: self._owned[shard] for shard in self._leaving}
            raised = await self._directory.give(self.record.id, kept, self.record.id)
            self._owned = {shard: epoch for shard, epoch in self._owned.items() if shard not in kept} | raised
            self._leaving.clear()

    async def _mark_silent(self, nodes: Mapping[str, NodeRecord]) -> list[str]:
        """Mark nodes that have been silent for too long as dead; return them."""
        now = self._clock()
        self._seen = {
            id: seen
            if (seen := self._seen.get(id)) is not None and seen.beats == node.beats
            else _Seen(node.beats, now)
            for id, node in nodes.items()
            if id != self.record.id
        }
        silent = [id for id, seen in self._seen.items() if now - seen.at >= SILENCE]
        dead = [id for id in silent if await self._directory.mark_dead(id, self._seen[id].beats)]
        for id in dead:
            log.warning("the node %s is silent, and is marked as dead", nodes[id].name)
        return dead

    async def _take_lost(self, view: DirectoryView) -> None:
        alive = view.alive()
        lost = ((shard, each) for shard, each in enumerate(view.shards) if each.node not in alive)
        winners = {shard: find_winner(shard, _find_able(alive, each)) for shard, each in lost}
        if (waiting := sum(winner is None for winner in winners.values())) != self._waiting:
            self._waiting = waiting
            log.warning("%d shards wait for a node whose code is as new as their last owner's", waiting)
        mine = {shard: view.shards[shard].epoch for shard, winner in winners.items() if winner == self.record.id}
        if mine and self.lease.holds:
            taken = await self._directory.take(self.record.id, mine)
            self._owned |= taken
            self.taken += len(taken)
            log.info("the node %s has taken %d shards without an owner", self.record.name, len(taken))
            self.view = self.view.moved(taken, self.record.id)

    async def _share(self, view: DirectoryView) -> None:
        """Give some shards to nodes that have joined, until each has its share."""
        targets = self._find_targets(view)
        # No running work is cut off for sharing shards.
        if targets and (idle := self._find_idle(targets, _SHARED_AT_ONCE)):
            await self._give(idle)

    def _find_targets(self, view: DirectoryView) -> dict[int, str]:
        """Return the nodes that should have shards of this node, by shard."""
        alive = view.alive()
        winners = ((shard, find_winner(shard, _find_able(alive, view.shards[shard]))) for shard in self._owned)
        return {shard: winner for shard, winner in winners if winner not in (None, self.record.id)}

    def _find_idle(self, targets: Mapping[int, str], most: int) -> dict[int, str]:
        """Return some of these shards, at most `most`, that have no work."""
        busy = self._moves.find_busy()
        return dict(islice(((shard, to) for shard, to in targets.items() if shard not in busy), most))

    async def _give(self, targets: Mapping[int, str]) -> None:
        self._leaving |= targets.keys()
        await self._moves.vacate(targets)
        by_node: dict[str, dict[int, int]] = defaultdict(dict)
        nodes, records = self.view.alive(), self.view.shards
        for shard, to in targets.items():
            if not _can_take(nodes[to], records[shard].versions):  # A thread was migrated after this node was chosen.
                self._leaving.discard(shard)
            elif shard in self._owned:  # If it is not owned, this node was marked as dead.
                by_node[to][shard] = self._owned[shard]
        for to, shards in by_node.items():
            given = await self._directory.give(self.record.id, shards, to)
            for shard in given:
                self._owned.pop(shard, None)
            self._leaving -= shards.keys()
            self.view = self.view.moved(given, to)


def _find_able(nodes: Mapping[str, NodeRecord], shard: ShardRecord) -> list[str]:
    """Return the nodes that may take a shard, as their code can read its threads: newer code may have migrated them.

    A process that is alone takes all shards, as no other can; threads that it cannot read are refused one by one.
    """
    return [id for id, node in nodes.items() if not node.is_leaving and _can_take(node, shard.versions)]


def _can_take(node: NodeRecord, stored: Mapping[str, int]) -> bool:
    return node.name == SINGLE or all(node.versions.get(kind, version) >= version for kind, version in stored.items())


def _explain_rival(node: NodeRecord, other: NodeRecord) -> str:
    if node.name == other.name != SINGLE:
        return f"the node {other.name!r} is running already, at {other.address}: give each node a name of its own"
    what = f"the process at {other.address}" if other.name == SINGLE else f"the node {other.name!r} at {other.address}"
    start = "start both" if SINGLE == node.name == other.name else "start every process"
    return f"the store is in use by {what}: stop it, or {start} with --cluster"
