"""Values that other packages keep on each actor while it is awake, or for all of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from plait.actor.rpc import Method

__all__ = ["PerActor", "Service"]

T = TypeVar("T")


class Keeper(Protocol):
    """The part of an actor that this module uses."""

    # The kept values, by their declarations; None if there are none, to save memory.
    parts: "dict[PerActor[Any, Any], Any] | None"


K = TypeVar("K", bound=Keeper)


class Service(Protocol):
    """Something that is used by all actors of a node, and made when it is used first."""

    def close(self) -> None:
        """Release what it holds, as the node has stopped."""


class PerActor(Generic[K, T]):
    """Declares a value that each actor has; `make` creates it on first use."""

    # The events that it sends to clients, by name, with the types of their data.
    events: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make

    def make_methods(self, cls: type[Any]) -> Iterable[Method]:
        """Make the methods by which clients use it in threads of a class. Raises TypeError."""
        return ()

    def of(self, actor: K) -> T:
        """Return the value of an actor."""
        if actor.parts is None:
            actor.parts = {}
        value: T | None = actor.parts.get(self)
        if value is None:
            value = actor.parts[self] = self._make(actor)
        return value
