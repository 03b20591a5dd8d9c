"""The changes of a run to the variables of its thread, until they are committed."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from plait.parts.env.secret import Variable
from plait.state.commit import Commit

__all__ = ["EnvDraft", "Variables"]

Variables = Mapping[str, Variable | None]
"""Changes of variables by name; None removes one."""


class StoreVariables(Protocol):
    """Stores changes of variables, and calls `undo` if they are rolled back."""

    def __call__(self, changes: Variables, *, undo: Callable[[], None]) -> Commit: ...


class EnvDraft:
    """The variables that one run has changed."""

    is_ready = True

    def __init__(self, store: StoreVariables) -> None:
        self._store = store
        self.changes: Variables = {}
        self._is_dropped = False

    def add(self, changes: Variables) -> None:
        """Keep further changes."""
        self.changes = {**self.changes, **changes}

    # Called by the stage

    @property
    def is_dirty(self) -> bool:
        """Whether there are changes to store."""
        return bool(self.changes)

    async def prepare(self) -> None:
        """Do nothing, as all variables are known."""

    def write(self) -> None:
        """Store the changes; if that is rolled back, they are staged again, before later ones."""
        self._store(self.changes, undo=self.keep(self.changes))
        self.changes = {}

    def drop(self) -> None:
        """Forget the changes."""
        self._is_dropped, self.changes = True, {}

    # In a transaction

    def keep(self, names: Collection[str]) -> Callable[[], None]:
        """Return what stages the changes of some names again, before later ones."""
        kept = {name: each for name, each in self.changes.items() if name in names}

        def stage_again() -> None:
            if not self._is_dropped:
                self.changes = {**kept, **self.changes}

        return stage_again

    def remove(self, names: Collection[str]) -> None:
        """Forget the changes of some names, as later ones were stored."""
        self.changes = {name: each for name, each in self.changes.items() if name not in names}
