"""Values that other packages keep on each actor while it is awake, or for all of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from plait.actor.rpc import Method

__all__ = ["PerActor", "Service"]

T = TypeVar("T")


class Service(Protocol):
    """An object that all actors of a node share, and that is made on first use."""

    def close(self) -> None:
        """Release the resources, as the node has stopped."""


class PerActor(Generic[T]):
    """Declares a value that each actor has; `make` creates it on first use.

    The actor keeps its values in `Actor.parts`.
    """

    # The attribute of Thread classes that declares the value; empty if none does.
    name = ""
    # The events that the value sends to clients, by name, with the types of their data.
    events: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def make_methods(self, cls: type[Any]) -> Iterable[Method]:
        """Make the methods with which clients use the value in threads of a class. Raises TypeError."""
        return ()

    def find_facts(self, actor: Any) -> object:
        """Return what the card of a thread may show of the value; None for nothing. Called in classes with a card."""
        return None

    def of(self, actor: Any) -> T:
        """Return the value of an actor."""
        if actor.parts is None:
            actor.parts = {}
        value: T | None = actor.parts.get(self)
        if value is None:
            value = actor.parts[self] = self._make(actor)
        return value
