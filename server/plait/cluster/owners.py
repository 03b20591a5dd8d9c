"""Which node owns a thread: the process that has it awake, and alone writes it.

A worker owns whole files of the store, whose locks keep it the only one. A thread belongs to a shard, a shard to a
file, and a file to a worker, so every worker finds each owner by itself.
"""

import os
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Final, Self

import msgspec

from plait.cluster.gate import OPEN
from plait.errors import Unavailable
from plait.store.protocol import ThreadKey
from plait.store.shards import find_file
from plait_schemas import codes

__all__ = ["ALONE", "NO_THREADS", "Moves", "NodeId", "NotOwner", "Owners", "Worker", "Workers"]

_VARIABLE: Final = "PLAIT_WORKER"


NodeId = int | str
"""The number of a worker, or the id of a node of a cluster."""


class NotOwner(Unavailable):
    """Another node serves the thread: `owner`, if it is known. Clients that join again reach it."""

    close_code = codes.GOING_AWAY

    def __init__(self, message: str, owner: NodeId | None = None) -> None:
        super().__init__(message)
        self.owner = owner


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


class Owners:
    """Finds the owners of threads; these are of a process that owns every thread."""

    # The gate that output asks before it leaves this node.
    gate = OPEN

    @property
    def node(self) -> NodeId:
        """This node."""
        return 0

    @property
    def is_alone(self) -> bool:
        """Whether no other node can own a thread."""
        return True

    @property
    def keepers(self) -> Sequence[NodeId]:
        """The nodes whose stores have all threads together."""
        return (self.node,)

    @property
    def server(self) -> Mapping[int, NodeId | None]:
        """The nodes that are one server in metrics, by their numbers; None for one that is known to be dead."""
        return {0: self.node}

    async def start(self, moves: Moves) -> None:
        """Join the others, and get threads that have no owner. `moves` is told of all moves."""

    async def open(self) -> None:
        """Get threads of others from now on."""

    async def stop(self) -> None:
        """Leave the others."""

    async def find_others(self) -> Collection[NodeId]:
        """Return all other nodes that are alive now. Raises StoreError."""
        return ()

    def find(self, key: ThreadKey) -> NodeId | None:
        """Return the node that owns a thread, from memory; None while its owner is lost."""
        return self.node

    def correct(self, key: ThreadKey, owner: NodeId | None) -> None:
        """Remember who owns a thread: a node that was asked has said so. None: it does not know."""

    def check(self, key: ThreadKey) -> None:
        """Raise NotOwner unless this node owns a thread."""

    async def record_version(self, key: ThreadKey, version: int) -> None:
        """Record that a thread is written at this `state_version`: no node with an older one may own it after that.

        Raises NotOwner, and Unreachable.
        """


ALONE: Final = Owners()
"""The owners of an app that one process serves."""


class Worker(msgspec.Struct, frozen=True):
    """The place of this process among the workers of `plait serve --workers`."""

    number: int
    count: int
    # The folder of the sockets that link the workers.
    folder: str
    # Whether this process follows another one of the same worker.
    is_restart: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is the first process of all workers, which starts before the others."""
        return self.number == 0 and not self.is_restart

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the place that the parent of a worker has set; None in any other process."""
        text = environment.get(_VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)

    @staticmethod
    def leave_environment() -> None:
        """Remove the variable, so that processes that this one starts get no place."""
        os.environ.pop(_VARIABLE, None)

    def to_environment(self) -> dict[str, str]:
        """Return the variable that gives a new process this place."""
        return {_VARIABLE: msgspec.json.encode(self).decode()}


class Workers(Owners):
    """The owners of threads among workers; `files` is how many files the store has."""

    def __init__(self, node: int, count: int, files: int) -> None:
        self._node = node
        self.count = count
        self._files = files

    @property
    def node(self) -> NodeId:
        return self._node

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def keepers(self) -> Sequence[NodeId]:
        return range(self.count)

    @property
    def server(self) -> Mapping[int, NodeId | None]:
        return {number: number for number in range(self.count)}

    async def find_others(self) -> Collection[NodeId]:
        return {*self.keepers} - {self.node}

    def find(self, key: ThreadKey) -> NodeId | None:
        return find_file(key, self._files) % self.count

    def check(self, key: ThreadKey) -> None:
        if (owner := self.find(key)) != self.node:
            raise NotOwner(f"worker {self.node} does not own {key}, but worker {owner}", owner)
