"""The owner of a thread: the process in which the thread is awake, and which alone writes it.

A worker owns whole files of the store; their locks keep other processes out. A thread belongs to a shard, a shard to a
file, and a file to a worker, so every worker finds each owner by itself.
"""

import os
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Final, Self

import msgspec

from plait.cluster.gate import OPEN
from plait.errors import Unavailable
from plait.store.shards import find_file
from plait.store.thread_rows import ThreadKey
from plait_schemas import codes

__all__ = ["ALONE", "NO_THREADS", "Moves", "NodeId", "NotOwner", "Owners", "Worker", "Workers"]

_VARIABLE: Final = "PLAIT_WORKER"


NodeId = int | str
"""The number of a worker, or the id of a node of a cluster."""


class NotOwner(Unavailable):
    """Another node serves the thread: `owner`, if it is known. Clients that join again reach that node."""

    close_code = codes.GOING_AWAY

    def __init__(self, message: str, owner: NodeId | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class Moves:
    """Callbacks for shards that move. The defaults are for a node without threads and links."""

    async def vacate(self, shards: Collection[int]) -> None:
        """End the use of shards, before they are given away: nothing wakes in them, and all writes are durable."""

    def lose(self) -> None:
        """Drop all threads and all waiting output, as the other nodes took this one for dead."""

    def gain(self) -> None:
        """Check the threads of this node after it has gained shards, or can serve again."""

    def find_busy(self) -> Set[int]:
        """Return the shards with work that may take long: they are given away last, and never shared."""
        return frozenset()

    def find_linked(self) -> Collection[NodeId]:
        """Return the nodes to which there are links; the other nodes learn of them."""
        return ()

    def close_links(self, alive: Collection[NodeId]) -> None:
        """Close the links to all nodes but these."""


NO_THREADS: Final = Moves()
"""The moves of a process that has no threads."""


class Owners:
    """Finds the owners of threads. The defaults are for a process that owns every thread."""

    # The gate that all output asks before it leaves this node.
    gate = OPEN
    # Whether no other node can own a thread.
    is_alone = True

    @property
    def node(self) -> NodeId:
        """This node."""
        return 0

    @property
    def keepers(self) -> Sequence[NodeId]:
        """The nodes whose stores together have all threads."""
        return (self.node,)

    @property
    def server(self) -> Mapping[int, NodeId | None]:
        """The nodes that count as one server in metrics, by number; None for a node that is known to be dead."""
        return {0: self.node}

    async def start(self, moves: Moves) -> None:
        """Join the others, and take threads without an owner. `moves` is told of all moves."""

    async def open(self) -> None:
        """Accept threads of others from now on."""

    async def stop(self) -> None:
        """Leave the others."""

    async def find_others(self) -> Collection[NodeId]:
        """Return all other nodes that are alive now. Raises StoreError."""
        return ()

    def find(self, key: ThreadKey) -> NodeId | None:
        """Return the node that owns a thread, from memory; None while the owner is lost."""
        return self.node

    def owns(self, key: ThreadKey) -> bool:
        """Return whether this node owns a thread now."""
        return self.find(key) == self.node

    def find_address(self, node: NodeId) -> str | None:
        """Return the address at which a node listens for links; None if the node is not known to be alive."""
        return None

    def correct(self, key: ThreadKey, owner: NodeId | None) -> None:
        """Remember the owner of a thread, as named by a node that was asked; None if that node does not know."""

    def check(self, key: ThreadKey) -> None:
        """Raise NotOwner unless this node owns a thread."""

    async def record_version(self, key: ThreadKey, version: int) -> None:
        """Record that a thread is written at this `state_version`: from then on, no node with an older one may own it.

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
    # Whether this worker has had an earlier process.
    is_restart: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is the very first process of the workers, which starts before the others."""
        return self.number == 0 and not self.is_restart

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the place that the parent of a worker has set; None in any other process."""
        text = environment.get(_VARIABLE)
        return None if text is None else msgspec.json.decode(text, type=cls)

    @staticmethod
    def leave_environment() -> None:
        """Remove the variable, so that processes started by this one get no place."""
        os.environ.pop(_VARIABLE, None)

    def to_environment(self) -> dict[str, str]:
        """Return the variable that gives a new process this place."""
        return {_VARIABLE: msgspec.json.encode(self).decode()}


class Workers(Owners):
    """The owners of threads among workers; `files` is the number of files of the store."""

    is_alone = False

    def __init__(self, node: int, count: int, files: int) -> None:
        self._node = node
        self.count = count
        self._files = files

    @property
    def node(self) -> NodeId:
        return self._node

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
