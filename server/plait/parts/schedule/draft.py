"""The changes of a run to rows of its thread, until they are committed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from plait.actor.thread import ThreadActor
from plait.parts.items_draft import ItemsDraft
from plait.parts.schedule.rows import Agenda, Identity, Row

__all__ = ["EffectRun", "RowChange", "RowsDraft"]

R = TypeVar("R", bound=Row)


class EffectRun(msgspec.Struct, frozen=True):
    """The run of an effect that the calling code is a part of."""

    # The id of its schedule.
    id: str
    # The id of this run, the same in each attempt: use it as an idempotency key for other services.
    run_id: str
    # The number of this attempt, from 1.
    attempt: int
    # When it was due, in microseconds since the epoch.
    due: int


class RowChange(NamedTuple, Generic[R]):
    """A change of rows: `work` makes it in an open transaction, unless others have made it needless."""

    work: Callable[[], object]
    # The row that it adds, or the id of the one that it removes.
    added: R | None = None
    removed: str = ""


class RowsDraft(ItemsDraft[RowChange[R]]):
    """The changes of one run to rows, and the rows as it sees them; `current` is the run of an effect."""

    def __init__(self, actor: ThreadActor, agenda: Agenda[R], current: EffectRun | None = None) -> None:
        super().__init__(actor, _carry_out)
        self._agenda = agenda
        self.current = current
        # The rows that are added, and the ids of the stored ones that are removed.
        self._added = Agenda[R]()
        self._removed: set[str] = set()

    def add(self, item: RowChange[R]) -> None:
        super().add(item)
        if item.added is not None:
            self._added.set(item.added.id, item.added)
        elif item.removed and self._added.set(item.removed, None) is None:
            self._removed.add(item.removed)

    def drop(self) -> None:
        super().drop()
        self._added, self._removed = Agenda[R](), set()

    @property
    def rows(self) -> Mapping[str, R]:
        """The rows as the run sees them."""
        stored = self._agenda.rows
        return {**{id: row for id, row in stored.items() if id not in self._removed}, **self._added.rows}

    def __len__(self) -> int:
        return len(self._agenda) - len(self._removed) + len(self._added)

    @property
    def size(self) -> int:
        """The bytes of all arguments, at least: what is removed counts until that is stored."""
        return self._agenda.size + self._added.size

    def find(self, identity: Identity) -> R | None:
        """Return the row with an identity, as the run sees it."""
        if (added := self._added.find(identity)) is not None:
            return added
        found = self._agenda.find(identity)
        return None if found is None or found.id in self._removed else found


def _carry_out(changes: Sequence[RowChange[R]]) -> None:
    for change in changes:
        change.work()
