"""The writes of a run to the schedule of its thread, until they are committed."""

from collections.abc import Callable, Mapping

import msgspec

from plait.actor.timer import read_clock
from plait.parts.schedule.agenda import Agenda
from plait.parts.schedule.rows import Identity, Row
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
        self, agenda: Agenda, put: Callable[[Mapping[str, Row | None]], Commit], current: EffectRun | None = None
    ) -> None:
        self._agenda = agenda
        self._put = put
        self.current = current
        self.changes: dict[str, Row | None] = {}
        # Whether the run of the effect has ended, so that its row is removed or waits for the next time.
        self._has_ended = False

    def end(self) -> None:
        """Record that the run of the effect has ended: its writes and the end of its row are stored as one."""
        self._has_ended = True

    @property
    def rows(self) -> Mapping[str, Row]:
        """The rows as the run sees them."""
        if not self.changes:
            return self._agenda.rows
        found = {**self._agenda.rows, **self.changes}
        return {id: row for id, row in found.items() if row is not None}

    def find(self, identity: Identity) -> Row | None:
        """Return the row with an identity, as the run sees it."""
        for row in self.changes.values():
            if row is not None and row.identity == identity:
                return row
        found = self._agenda.find(identity)
        return None if found is None or self.changes.get(found.id, found) is None else found

    def cancel(self, id: str) -> bool:
        """Remove a row; return whether there was one."""
        if id not in self.rows:
            return False
        if id in self._agenda.rows:
            self.changes[id] = None
        else:
            del self.changes[id]
        return True

    # For the stage

    @property
    def is_dirty(self) -> bool:
        return bool(self.changes) or self._has_ended

    async def prepare(self) -> None:
        """Do nothing, as nothing must be read."""

    def write(self) -> None:
        changes, has_ended = self.changes, self._has_ended
        rows = dict(self._find_end() if has_ended else {})
        for id, row in changes.items():
            # Others may have added the same row, or removed it.
            if id in self._agenda.rows if row is None else not self._is_taken(row.identity, rows):
                rows[id] = row
        self.changes, self._has_ended = {}, False
        try:
            commit = self._put(rows)
        except BaseException:
            self._take_back(changes, has_ended)
            raise
        put_back = commit.undo

        def undo() -> None:
            if put_back is not None:
                put_back()
            self._take_back(changes, has_ended)

        commit.undo = undo

    def drop(self) -> None:
        self.changes, self._has_ended = {}, False

    # Inside

    def _is_taken(self, identity: Identity | None, rows: Mapping[str, Row | None]) -> bool:
        """Whether there is a row with an identity that `rows` does not remove."""
        found = None if identity is None else self._agenda.find(identity)
        return found is not None and rows.get(found.id, found) is not None

    def _find_end(self) -> Mapping[str, Row | None]:
        assert self.current is not None
        row = self._agenda.rows.get(self.current.id)
        return {} if row is None else {row.id: row.advance(read_clock())}

    def _take_back(self, changes: dict[str, Row | None], has_ended: bool) -> None:
        self.changes = {**changes, **self.changes}
        self._has_ended = self._has_ended or has_ended
