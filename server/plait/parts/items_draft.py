"""The items that a run stages for a part, until they are committed."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from plait.actor.thread import ThreadActor
from plait.parts.stage import Draft

__all__ = ["ItemsDraft"]

T = TypeVar("T")


class ItemsDraft(Draft, Generic[T]):
    """Items in order, which `store` stores in an open transaction."""

    def __init__(self, actor: ThreadActor, store: Callable[[Sequence[T]], object]) -> None:
        self._actor = actor
        self._store = store
        self.items: list[T] = []

    def add(self, item: T) -> None:
        """Stage an item after the others."""
        self.items.append(item)

    # For the stage

    @property
    def is_dirty(self) -> bool:
        return bool(self.items)

    def write(self) -> None:
        items = self.items
        self._actor.records.write([], undo=lambda: self._stage_again(items))
        self.drop()
        self._store(items)

    def drop(self) -> None:
        self.items = []

    # Inside

    def _stage_again(self, items: Sequence[T]) -> None:
        later = self.items
        self.drop()
        for item in (*items, *later):
            self.add(item)
