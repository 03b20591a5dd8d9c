"""The owners of threads in a cluster, as a node knows them. The node joins, and two tasks keep it a member."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from msgspec.structs import replace

from plait.cluster.directory import Directory, NodeRecord
from plait.cluster.gate import LeaseGate
from plait.cluster.lease import LEASE, boot_time
from plait.cluster.member import SINGLE, Member
from plait.cluster.owners import NO_THREADS, Moves, NodeId, NotOwner, Owners
from plait.errors import StoreError, Unavailable, operator_message
from plait.store.outcomes import Unreachable
from plait.store.shards import find_shard
from plait.store.thread_rows import ThreadKey

__all__ = ["ClusterOwners"]

log = logging.getLogger("plait.cluster")

_INTERVAL: Final = 1.0
# Minimum seconds between two reads of the directory.
_SHORTEST: Final = 0.1
# Seconds before a failed beat is tried again.
_AGAIN: Final = 0.25
# Seconds for which a node that has given all its shards away still answers that it does not own them.
_LAST_ANSWERS: Final = 0.3
# How often a node that stops tries to give its shards away, as the directory may be slow or away for a moment.
_MOST_TRIES: Final = 3


class ClusterOwners(Owners):
    """The owners of threads among the nodes of a `directory`. `record` is the record of this node, without an id."""

    def __init__(
        self,
        record: NodeRecord,
        directory: Directory,
        *,
        workers: int = 1,
        interval: float = _INTERVAL,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._record = record
        self.is_alone = record.name == SINGLE
        # The number of workers of this server; each worker is a node.
        self._workers = workers
        self._directory = directory
        self._interval = interval
        self._clock = clock
        self.gate: LeaseGate = LeaseGate()
        self._moves = NO_THREADS
        self._member = self._make_member()
        # The nodes that are alive in a view, by id, and the owners of shards that other nodes have named since.
        self._view = self._member.view
        self._alive: Mapping[str, NodeRecord] = {}
        self._told: dict[int, str] = {}
        # The shards that this node owned at the last look.
        self._had: frozenset[int] = frozenset()
        self._is_asked = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # How often this node has begun to give its shards away.
        self._tries = 0
        # Done when all shards are given away; None before `give_all`.
        self._left: asyncio.Future[None] | None = None

    # Owners

    @property
    def node(self) -> NodeId:
        return self._member.record.id

    @property
    def server(self) -> Mapping[int, NodeId | None]:
        base, number = _split_name(self._record.name)
        others = ((id, *_split_name(each.name)) for id, each in self._nodes.items())
        alive = {other: id for id, name, other in others if name == base} | {number: self.node}
        dead = dict.fromkeys(range(self._workers) if self._workers > 1 else ())
        return dict(sorted((dead | alive).items()))

    async def find_others(self) -> Collection[NodeId]:
        return () if self.is_alone else (await self._directory.read()).alive().keys() - {str(self.node)}

    def find(self, key: ThreadKey) -> NodeId | None:
        shard = find_shard(key)
        if self._member.owns(shard):
            return self.node
        nodes = self._nodes
        owner = self._told.get(shard) or self._member.view.shards[shard].node
        return owner if owner != self.node and owner in nodes else None

    def find_address(self, node: NodeId) -> str | None:
        found = self._member.record if node == self.node else self._nodes.get(str(node))
        return None if found is None else found.address

    def correct(self, key: ThreadKey, owner: NodeId | None) -> None:
        if isinstance(owner, str) and owner in self._nodes and owner != self.node:
            self._told[find_shard(key)] = owner
        else:
            self._is_asked.set()

    def check(self, key: ThreadKey) -> None:
        if (owner := self.find(key)) != self.node:
            self._is_asked.set()  # This node's view may be outdated: read the directory again.
            if not self.gate.is_open:
                raise NotOwner("this server is cut off from its store, or is not running")
            raise NotOwner(f"the node {self._record.name} does not own {key}", owner)

    async def record_version(self, key: ThreadKey, version: int) -> None:
        try:
            is_own = await self._member.record_version(find_shard(key), key.kind, version)
        except StoreError as error:
            raise Unreachable(f"{key} cannot be written: {operator_message(error)}") from error
        if not is_own:
            raise NotOwner(f"the node {self._record.name} does not own {key}")

    # For metrics

    def measure(self) -> dict[str, float]:
        """Return the metrics of this node."""
        member = self._member
        return {
            "plait_shards": len(member.owned),
            "plait_shards_taken_total": member.taken,
            "plait_lease_age_seconds": LEASE - member.lease.rest,
            "plait_beats_failed_total": member.failed_beats,
        }

    # Running

    async def start(self, moves: Moves = NO_THREADS) -> None:
        """Join the cluster, and take the shards without an owner. Other nodes give shards only after `open`.

        `moves` is told when shards move. Raises Unavailable and StoreError.
        """
        self._moves = moves
        self._is_asked, self._left = asyncio.Event(), None
        self._follow(self._make_member())
        await self._directory.__aenter__()
        self._member.is_open = False
        try:
            await self._member.join(asyncio.sleep)
            await self._look()
        except BaseException:
            await self._directory.__aexit__(None, None, None)
            raise
        if not self.is_alone:
            names = ", ".join(sorted(each.name for each in self._nodes.values()))
            log.info("the node %s has joined the cluster: %s", self._record.name, names)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._beat(), name="plait beats"),
            loop.create_task(self._observe(), name="plait cluster"),
        ]

    async def open(self) -> None:
        """Accept shards of other nodes from now on."""
        self._member.is_open = True
        await self._member.beat()

    async def give_all(self) -> None:
        """Give all shards to other nodes; return when this is done or impossible."""
        if self._tasks and self._left is None:
            self._left = asyncio.get_running_loop().create_future()
            self._is_asked.set()
        if self._left is not None:
            await asyncio.shield(self._left)

    async def stop(self) -> None:
        """Stop being a node; the other nodes take its remaining shards at once."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not self._member.is_dead:
            try:
                await self._member.leave()
            except StoreError as error:
                log.warning("the node %s could not leave: %s", self._record.name, operator_message(error))
        await self._directory.__aexit__(None, None, None)

    # Inside

    def _make_member(self) -> Member:
        record = replace(self._record, id=f"{self._record.name}-{secrets.token_hex(6)}")
        return Member(record, self._directory, self._moves, clock=self._clock)

    def _follow(self, member: Member) -> None:
        self._member, self._had = member, frozenset()
        self.gate.follow(member.lease)

    async def _beat(self) -> None:
        has_beaten = True
        while True:
            await asyncio.sleep(self._interval if has_beaten else _AGAIN)
            if not self._member.is_dead:
                has_beaten = False
                with _logging_surprises():
                    could_serve = self.gate.is_open
                    has_beaten = await self._member.beat()
                    self.gate.tell()
                    if self.gate.is_open and not could_serve:
                        self._moves.gain()  # Threads that became due while the gate was closed were skipped.
                    if self._member.is_dead:
                        self._is_asked.set()

    async def _observe(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._is_asked.wait()
            self._is_asked.clear()
            with _logging_surprises():
                if self._member.is_dead:
                    await self._rejoin()
                elif self._left is not None:
                    await self._give_all(self._left)
                else:
                    await self._look()
            await asyncio.sleep(_SHORTEST)

    @property
    def _nodes(self) -> Mapping[str, NodeRecord]:
        """The nodes that are alive, by id."""
        if (view := self._member.view) is not self._view:
            self._view, self._alive = view, view.alive()
            self._told.clear()
        return self._alive

    async def _look(self) -> None:
        await self._member.observe()
        self._react()

    async def _give_all(self, left: asyncio.Future[None]) -> None:
        if left.done():
            await self._look()
            return
        self._tries += 1
        try:
            await self._member.give_all()
            self._react()
            # The others may still ask for the owners of the last shards.
            await asyncio.sleep(_LAST_ANSWERS)
        except StoreError as error:
            if self._tries < _MOST_TRIES:  # The directory may have been slow once.
                self._is_asked.set()
                return
            log.warning("the node %s cannot give its threads away: %s", self._record.name, operator_message(error))
        except BaseException:  # Waiting code must not wait forever.
            left.set_result(None)
            raise
        left.set_result(None)

    async def _rejoin(self) -> None:
        """Join again, with a new id, after the others have marked this node as dead."""
        if self._left is not None:
            if not self._left.done():
                self._left.set_result(None)
            return
        member = self._make_member()
        member.is_open, member.taken = self._member.is_open, self._member.taken
        member.failed_beats, member.outage = self._member.failed_beats, self._member.outage
        try:
            await member.join(asyncio.sleep)
        except (StoreError, Unavailable) as error:
            if member.outage.is_due(self._clock(), str(error)):
                log.warning("the node %s cannot join again: %s", self._record.name, operator_message(error))
            return
        self._follow(member)
        await self._look()
        self.gate.tell()

    def _react(self) -> None:
        """Check the shards that this node has gained since the last look, and close links to dead nodes."""
        member = self._member
        if member.is_dead:
            self._is_asked.set()
            return
        owned = frozenset(member.owned)
        has_gained, self._had = not owned <= self._had, owned
        if has_gained:
            self._moves.gain()
        self._moves.close_links(self._nodes.keys())


@contextmanager
def _logging_surprises() -> Iterator[None]:
    """Log an unexpected exception and continue: a node that neither beats nor looks would never serve again."""
    try:
        yield
    except Exception:
        log.exception("an error of plait; the node goes on")


def _split_name(name: str) -> tuple[str, int]:
    """Return the name of a server, and the number of its worker: `a.1` is worker 1 of `a`."""
    base, _, number = name.rpartition(".")
    return (base, int(number)) if base and number.isdigit() else (name, 0)
