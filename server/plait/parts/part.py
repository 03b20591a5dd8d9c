"""What a Thread class declares so that its threads own it."""

from typing import Any, Generic, Self, TypeVar, overload

from plait.actor.thread import Core, Thread

__all__ = ["Part"]

Bound = TypeVar("Bound")


class Part(Generic[Bound]):
    """A part of each thread of a class, by the name that it has there: `values = Values()`.

    The name is stored with what the part keeps, so a part that is renamed is another one.
    """

    name = ""

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
        parts = thread._core.parts
        bound: Bound | None = parts.get(self.name)
        if bound is None:
            bound = parts[self.name] = self.bind(thread._core)
        return bound

    def __set__(self, thread: Thread[Any], value: object) -> None:
        raise AttributeError(f"{type(thread).__name__}.{self.name} is a part of the thread and cannot be replaced")

    def bind(self, core: Core) -> Bound:
        """Return the part of one thread."""
        raise NotImplementedError
