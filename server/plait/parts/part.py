"""What a Thread class declares so that its threads own it."""

import inspect
from typing import Any, Self, TypeVar, overload

from plait.actor.per_actor import PerActor
from plait.actor.thread import Thread, ThreadActor
from plait.parts.cell import Cell

__all__ = ["Part", "find_parts"]

Bound = TypeVar("Bound")


class Part(PerActor[ThreadActor, Bound]):
    """A part of each thread of a class, by the name that it has there: `values = Values()`.

    The name is stored with what the part keeps, so a part that is renamed is another one.
    """

    name = ""

    def __init__(self) -> None:
        super().__init__(self.bind)

    def __set_name__(self, owner: type, name: str) -> None:
        if self.name and self.name != name:
            raise TypeError(f"{owner.__name__}.{name} is already the part {self.name!r}: make another one")
        self.name = name

    @overload
    def __get__(self, thread: None, owner: type) -> Self: ...
    @overload
    def __get__(self, thread: Thread[Any], owner: type) -> Bound: ...
    def __get__(self, thread: Thread[Any] | None, owner: type) -> Self | Bound:
        if thread is None:
            return self
        return self.of(thread._actor)

    def __set__(self, thread: Thread[Any], value: object) -> None:
        raise AttributeError(f"{type(thread).__name__}.{self.name} is a part of the thread and cannot be replaced")

    def bind(self, actor: ThreadActor) -> Bound:
        """Make the part of one thread."""
        raise NotImplementedError

    def cells(self, actor: ThreadActor) -> list[Cell]:
        """Return the records, each a JSON object or nothing, that are exported with a thread."""
        return []


def find_parts(cls: type[Thread[Any]]) -> dict[str, Part[Any]]:
    """Return the parts of a class, by name."""
    found = ((name, inspect.getattr_static(cls, name)) for name in dir(cls))
    return {name: part for name, part in found if isinstance(part, Part)}
