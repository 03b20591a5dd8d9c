"""Faults that a cluster's tests cause in the engine of its store, such as the private server `Postgres`."""

from collections.abc import Sequence
from typing import Final, Protocol

import pytest
from tests.schedules import in_soak

__all__ = ["Engine", "each_engine"]

_NAMES: Final = ("postgres", "nats", "redis", "mariadb")


def each_engine(first: str, *, but: str = "") -> pytest.MarkDecorator:
    """Have a test use each engine that a cluster may have: one in `make test`, and the others for a release."""
    others = in_soak(*([each] for each in _NAMES if each not in (first, but)))
    return pytest.mark.parametrize("engine", [first, *others], indirect=True)


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
