"""What a part of the server keeps on each actor for as long as that is awake."""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["PerActor"]

T = TypeVar("T")


class Keeper(Protocol):
    """An actor, as far as this file knows it."""

    # What is kept on it, by what declares it.
    parts: "dict[PerActor[Any, Any], Any]"


K = TypeVar("K", bound=Keeper)


class PerActor(Generic[K, T]):
    """Declares one value of each actor, which `make` makes when it is first asked for."""

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make

    def of(self, actor: K) -> T:
        """Return the value of an actor."""
        value: T | None = actor.parts.get(self)
        if value is None:
            value = actor.parts[self] = self._make(actor)
        return value
