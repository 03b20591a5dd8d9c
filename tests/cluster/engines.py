"""What a cluster's tests do to the engine of its store. A private server of tests is one, such as `Postgres`."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Engine"]


class Engine(Protocol):
    """The engine of the stores of a cluster: one server, or several. Its methods block until they are done."""

    @property
    def ports(self) -> Sequence[int]:
        """Where its servers listen, on 127.0.0.1: the nodes reach each of them through a proxy."""
        ...

    def make_store(self, options: str = "") -> str:
        """Return the URL of a new, empty store, which names the ports; `options` are added to it."""
        ...

    def crash(self) -> None:
        """Kill all of its processes."""
        ...

    def start(self) -> None:
        """Start it again, and wait until it can be used."""
        ...

    def pause(self) -> None:
        """Stop all of its processes with SIGSTOP."""
        ...

    def resume(self) -> None:
        """Continue after `pause`."""
        ...
