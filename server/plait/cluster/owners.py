"""Which node owns a thread: the process that has it awake, and alone writes it.

A worker owns whole files of the store, whose locks keep it the only one. A thread belongs to a shard, a shard to a
file, and a file to a worker, so every worker finds each owner by itself.
"""

import os
from collections.abc import Mapping
from typing import Final, Protocol, Self

import msgspec

from plait.store.protocol import ThreadKey
from plait.store.shards import find_file

__all__ = ["ALONE", "Owners", "Worker", "Workers"]

_VARIABLE: Final = "PLAIT_WORKER"


class Owners(Protocol):
    """Finds the owners of threads."""

    # The number of this node.
    node: int
    # How many nodes there are.
    count: int

    def find(self, key: ThreadKey) -> int:
        """Return the number of the node that owns a thread. Answers at once."""
        ...


class _Alone:
    """A process that owns every thread."""

    node = 0
    count = 1

    def find(self, key: ThreadKey) -> int:
        return 0


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

    def __init__(self, node: int, count: int, files: int) -> None:
        self.node = node
        self.count = count
        self._files = files

    def find(self, key: ThreadKey) -> int:
        """Return the number of the worker that owns a thread."""
        return find_file(key, self._files) % self.count
