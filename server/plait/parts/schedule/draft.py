"""The writes of a run to the schedule of its thread, until they are committed."""

from collections.abc import Callable, Collection, Mapping

import msgspec

from plait.clock import read_due_clock
from plait.parts.schedule.rows import Agenda, Identity, Row
from plait.state.commit import Commit

__all__ = ["EffectRun", "ScheduleDraft"]


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


class ScheduleDraft:
    """The rows that a run adds and removes; for a run of an effect, also the end of its own row.

    `put` stores rows.
    """

    is_ready = True

    def __init__(
        self, agenda: Agenda[Row], put: Callable[[Mapping[str, Row | None]], Commit], current: EffectRun | None = None
    ) -> None:
        self._agenda = agenda
        self._put = put
        self.current = current
        # The rows that are added, with their identities, and the ids of the stored ones that are removed.
        self._added: dict[str, Row] = {}
        self._identities: dict[Identity, str] = {}
        self._removed: set[str] = set()
        # Whether the run of the effect has ended, so that its row is removed or waits for the next time.
        self._has_ended = False

    def end(self) -> None:
        """Record that the run of the effect has ended: its writes and the end of its row are stored as one."""
        self._has_ended = True

    @property
    def rows(self) -> Mapping[str, Row]:
        """The rows as the run sees them."""
        stored, removed = self._agenda.rows, self._removed
        return {**{id: row for id, row in stored.items() if id not in removed}, **self._added}

    def __len__(self) -> int:
        return len(self._agenda) - len(self._removed) + len(self._added)

    def find(self, identity: Identity) -> Row | None:
        """Return the row with an identity, as the run sees it."""
        if (id := self._identities.get(identity)) is not None:
            return self._added[id]
        found = self._agenda.find(identity)
        return None if found is None or found.id in self._removed else found

    def add(self, row: Row) -> None:
        """Add a row, whose identity no other one has."""
        self._added[row.id] = row
        if row.identity is not None:
            self._identities[row.identity] = row.id

    def cancel(self, id: str) -> bool:
        """Remove a row; return whether there was one."""
        if (row := self._added.pop(id, None)) is not None:
            if row.identity is not None:
                del self._identities[row.identity]
            return True
        if id not in self._agenda.rows or id in self._removed:
            return False
        self._removed.add(id)
        return True

    # For the stage

    @property
    def is_dirty(self) -> bool:
        return bool(self._added or self._removed) or self._has_ended

    async def prepare(self) -> None:
        """Do nothing, as nothing must be read."""

    def write(self) -> None:
        added, removed, has_ended = self._added, self._removed, self._has_ended
        rows = dict(self._find_end() if has_ended else {})
        # Others may have removed the same row, or added it.
        rows.update((id, None) for id in removed if id in self._agenda.rows)
        rows.update((id, row) for id, row in added.items() if not self._is_taken(row.identity, rows))
        self.drop()
        try:
            commit = self._put(rows)
        except BaseException:
            self._take_back(added, removed, has_ended=has_ended)
            raise
        put_back = commit.undo

        def undo() -> None:
            if put_back is not None:
                put_back()
            self._take_back(added, removed, has_ended=has_ended)

        commit.undo = undo

    def drop(self) -> None:
        self._added, self._identities, self._removed, self._has_ended = {}, {}, set(), False

    # Inside

    def _is_taken(self, identity: Identity | None, rows: Mapping[str, Row | None]) -> bool:
        """Whether there is a row with an identity that `rows` does not remove."""
        found = None if identity is None else self._agenda.find(identity)
        return found is not None and rows.get(found.id, found) is not None

    def _find_end(self) -> Mapping[str, Row | None]:
        assert self.current is not None
        row = self._agenda.rows.get(self.current.id)
        return {} if row is None else {row.id: row.advance(read_due_clock())}

    def _take_back(self, added: Mapping[str, Row], removed: Collection[str], *, has_ended: bool) -> None:
        """Stage rows again, before later ones; the run may have removed some that it had added."""
        later, self._added, self._identities = self._added, {}, {}
        for row in (*added.values(), *later.values()):
            if row.id not in self._removed:
                self.add(row)
        self._removed = {*removed, *(self._removed - added.keys())}
        self._has_ended = self._has_ended or has_ended
