"""The items of a run for the family of its thread, until they are committed."""

from collections.abc import Callable, Sequence

from plait.parts.family.rows import Birth, Child, Item
from plait.state.commit import Commit

__all__ = ["FamilyDraft"]


class FamilyDraft:
    """The items that a run writes, which `post` stores."""

    is_ready = True

    def __init__(self, post: Callable[[Sequence[Item]], Commit]) -> None:
        self._post = post
        self.items: list[Item] = []
        self._is_dropped = False

    @property
    def children(self) -> dict[str, Child]:
        """The children that the run has spawned, by reference."""
        return {item.to: item.body.child for item in self.items if isinstance(item.body, Birth)}

    # Called by the stage

    @property
    def is_dirty(self) -> bool:
        """Whether there are items to store."""
        return bool(self.items)

    async def prepare(self) -> None:
        """Do nothing, as nothing must be read."""

    def write(self) -> None:
        """Store the items; if that is rolled back, they are staged again."""
        items = self.items
        commit = self._post(items)
        self.items, take_back = [], commit.undo

        def undo() -> None:
            if take_back is not None:
                take_back()
            if not self._is_dropped:
                self.items = [*items, *self.items]

        commit.undo = undo

    def drop(self) -> None:
        """Forget the items."""
        self.items, self._is_dropped = [], True
