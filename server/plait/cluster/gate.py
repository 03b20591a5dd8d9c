"""The gate of a node: all output asks here before it leaves, and waits while the node may not serve."""

import math
from collections.abc import Callable
from typing import Final

from plait.cluster.lease import NodeLease

__all__ = ["OPEN", "Gate", "LeaseGate"]


class Gate:
    """Whether output may leave this process; always, if the process shares its threads with no other."""

    @property
    def generation(self) -> int:
        """A number that changes when all waiting output must be dropped, as this node has lost changes it has shown."""
        return 0

    @property
    def is_open(self) -> bool:
        """Whether output may leave now."""
        return True

    @property
    def closed_for(self) -> float:
        """Seconds since the gate was closed; 0 while it is open, and infinity before it first opens."""
        return 0.0

    def call_when_open(self, callback: Callable[[], None]) -> None:
        """Call back once when the gate opens again; output that must not leave is dropped first."""
        callback()


OPEN: Final = Gate()
"""A gate that is always open."""


class LeaseGate(Gate):
    """The gate of a node with a lease: open while the lease holds."""

    def __init__(self) -> None:
        self._lease: NodeLease | None = None
        self._followed = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def generation(self) -> int:
        return self._followed + (0 if self._lease is None else self._lease.ends)

    @property
    def is_open(self) -> bool:
        """Whether the lease holds."""
        return self._lease is not None and self._lease.holds

    @property
    def closed_for(self) -> float:
        return math.inf if self._lease is None else max(-self._lease.rest, 0.0)

    def follow(self, lease: NodeLease) -> None:
        """Open and close with this lease from now on."""
        self._followed = self.generation + 1 - lease.ends
        self._lease = lease

    def call_when_open(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)

    def tell(self) -> None:
        """Call the waiting callbacks, if the lease holds. Called after each beat."""
        if self._waiting and self.is_open:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()
