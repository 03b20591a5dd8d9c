"""Which node owns a thread: the process that has it awake, and alone writes it.

A worker owns whole files of the store, whose locks keep it the only one. A thread belongs to a shard, a shard to a
file, and a file to a worker, so every worker finds each owner by itself.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, Self

import msgspec

from plait.cluster.gate import OPEN, Gate
from plait.errors import Unavailable
from plait.store.protocol import ThreadKey
from plait.store.shards import find_file
from plait_schemas import codes

__all__ = ["ALONE", "NodeId", "NotOwner", "Owners", "Worker", "Workers"]

_VARIABLE: Final = "PLAIT_WORKER"


NodeId = int | str
"""The number of a worker, or the id of a node of a cluster."""


class NotOwner(Unavailable):
    """Another node serves the thread: `owner`, if it is known. Clients that join again reach it."""

    close_code = codes.GOING_AWAY

    def __init__(self, message: str, owner: NodeId | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class Owners(Protocol):
    """Finds the owners of threads."""

    @property
    def node(self) -> NodeId:
        """This node."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether no other node can own a thread."""
        ...

    @property
    def keepers(self) -> Sequence[NodeId]:
        """The nodes whose stores have all threads together."""
        ...

    @property
    def server(self) -> Mapping[int, NodeId | None]:
        """The nodes that are one server in metrics, by their numbers; None for one that is known to be dead."""
        ...

    @property
    def gate(self) -> Gate:
        """The gate that output asks before it leaves this node."""
        ...

    async def find_others(self) -> Collection[NodeId]:
        """Return all other nodes that are alive now. Raises StoreError."""
        ...

    def find(self, key: ThreadKey) -> NodeId | None:
        """Return the node that owns a thread, from memory; None while its owner is lost."""
        ...

    def correct(self, key: ThreadKey, owner: NodeId | None) -> None:
        """Remember who owns a thread: a node that was asked has said so. None: it does not know."""
        ...

    def check(self, key: ThreadKey) -> None:
        """Raise NotOwner unless this node owns a thread."""
        ...

    async def record_version(self, key: ThreadKey, version: int) -> None:
        """Record that a thread is written at this `state_version`: no node with an older one may own it after that.

        Raises NotOwner, and Unreachable.
        """
        ...


class _Alone:
    """A process that owns every thread."""

    node: NodeId = 0
    is_alone = True
    keepers: Sequence[NodeId] = (0,)
    server: Mapping[int, NodeId | None] = {0: 0}
    gate: Gate = OPEN

    async def find_others(self) -> Collection[NodeId]:
        return ()

    def find(self, key: ThreadKey) -> NodeId | None:
        return 0

    def correct(self, key: ThreadKey, owner: NodeId | None) -> None:
        pass

    def check(self, key: ThreadKey) -> None:
        pass

    async def record_version(self, key: ThreadKey, version: int) -> None:
        pass


ALONE: Final = _Alone()
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


class Workers:
    """The owners of threads among workers; `files` is how many files the store has."""

    is_alone = False
    gate: Gate = OPEN

    def __init__(self, node: int, count: int, files: int) -> None:
        self.node: NodeId = node
        self.count = count
        self.keepers: Sequence[NodeId] = range(count)
        self.server: Mapping[int, NodeId | None] = {number: number for number in range(count)}
        self._files = files

    async def find_others(self) -> Collection[NodeId]:
        """Return the numbers of the other workers."""
        return {*self.keepers} - {self.node}

    def find(self, key: ThreadKey) -> NodeId | None:
        """Return the number of the worker that owns a thread."""
        return find_file(key, self._files) % self.count

    def correct(self, key: ThreadKey, owner: NodeId | None) -> None:
        """Do nothing, as owners of files never change."""

    def check(self, key: ThreadKey) -> None:
        """Raise NotOwner unless this worker owns a thread."""
        if (owner := self.find(key)) != self.node:
            raise NotOwner(f"worker {self.node} does not own {key}, but worker {owner}", owner)

    async def record_version(self, key: ThreadKey, version: int) -> None:
        """Do nothing, as all workers run the same code."""
