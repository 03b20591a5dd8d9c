"""The rows of one thread: how attempts change them, and the order in which they are due. No I/O."""

from collections.abc import Container, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from plait.parts.attempts import CRASHES, Attempts, RetryPolicy
from plait.parts.schedule.rules import LATEST, Rule

__all__ = ["Agenda", "EffectRun", "Identity", "Row"]

Identity = tuple[str, str | bytes, Rule | None]
"""Identifies equal rows: the effect with the key, or with the arguments and the rule."""

# The pauses after runs of a recurring effect that were given up as they crashed.
_CRASH_PAUSES: Final = RetryPolicy(CRASHES, 300.0, 86_400.0, is_random=False)
# Outdated entries, of rows that have changed since, are removed when there are more than this.
_MOST_OUTDATED: Final = 1000


class EffectRun(msgspec.Struct, frozen=True):
    """The run of an effect that the calling code is a part of."""

    # The id of its schedule.
    id: str
    # The id of this run, the same in each attempt: use it as an idempotency key for other services.
    run_id: str
    # The number of this attempt, from 1.
    attempt: int
    # When the run was due, in microseconds since the epoch.
    due: int


class Row(Attempts, frozen=True, omit_defaults=True, kw_only=True):
    """An effect that will run, once or repeatedly. Times are in microseconds since the epoch."""

    id: str
    effect: str
    # A JSON array.
    args: msgspec.Raw
    # Increases within a thread, so that it orders the queue.
    created_at: int
    # The time of the next run; after a failed attempt, the next attempt is due later.
    at: int
    key: str = ""
    rule: Rule | None = None
    is_queued: bool = False
    # The number of runs in a row that were given up as they crashed.
    lost_runs: int = 0

    @property
    def identity(self) -> Identity | None:
        """The identity, which no other row may have; None for a row without a key, or that runs once and has begun."""
        if self.rule is not None:
            return self.effect, bytes(self.args), self.rule
        return (self.effect, self.key, None) if self.key and not self.process else None

    @property
    def run_id(self) -> str:
        """The id of this run: the same in each attempt, and different in each recurrence."""
        return self.id if self.rule is None else f"{self.id}-{self.at}"

    @property
    def has_crashed_out(self) -> bool:
        """Whether the run must be given up: after three crashes, or after one if the run before also crashed."""
        return self.crashes >= (1 if self.lost_runs else self.most_crashes)

    @property
    def is_suspect(self) -> bool:
        """Whether one more crash gives up the run; the run may be the cause of the crashes."""
        return bool(self.lost_runs) or super().is_suspect

    # Changes

    def advance(self, now: int) -> "Row | None":
        """Return the row after its run has ended or was given up; None if it does not recur."""
        if self.rule is None:
            return None
        lost_runs = self.lost_runs + 1 if self.has_crashed_out else 0
        at = _find_next(self.rule, self.at, now, lost_runs)
        return replace(self, at=at, due=at, failures=0, crashes=0, process="", lost_runs=lost_runs)

    def correct(self, now: int) -> "Row":
        """Return the row, due no later than its rule gives from now: a clock that was ahead may have set its time."""
        if self.rule is None or self.at <= (at := _find_next(self.rule, now, now, self.lost_runs)):
            return self
        return replace(self, at=at, due=at)


def _find_next(rule: Rule, last: int, now: int, lost_runs: int) -> int:
    try:
        return rule.next(last, now + (_CRASH_PAUSES.pause(lost_runs) if lost_runs else 0))
    except ValueError:  # This system does not have the time zone of the rule: the row waits until one has it.
        return LATEST


R = TypeVar("R", bound=Row)


class Agenda(Generic[R]):
    """Finds the next row to run. A row whose effect the class does not have is kept, until a class has the effect.

    Of the queued rows, only the first may run.
    """

    def __init__(self, rows: Iterable[R] = (), *, known: Container[str] | None = None) -> None:
        self.rows = {row.id: row for row in rows}
        # The rows that are running, or must not run now for another reason.
        self._held: set[str] = set()
        # The effects that the class has; None for all.
        self._known = known
        self._identities: dict[Identity, str] = {}
        # Heaps. An entry counts if its row still has that time. The entries of queued rows are in order of creation.
        self._timed: list[tuple[int, int, str]] = []
        self._queued: list[tuple[int, str]] = []
        # The rows of unknown effects.
        self._stranded: set[str] = set()
        # The number of rows that run once or are queued.
        self._once = sum(row.rule is None for row in self.rows.values())
        # The bytes of all arguments.
        self.size = sum(len(row.args) for row in self.rows.values())
        self._refill()

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, identity: Identity) -> R | None:
        """Return the row with an identity."""
        id = self._identities.get(identity)
        return None if id is None else self.rows[id]

    @property
    def stranded(self) -> list[R]:
        """The rows of effects that the class does not have."""
        return [self.rows[id] for id in self._stranded]

    @property
    def keeps(self) -> bool:
        """Whether there are rows that run once or are queued."""
        return self._once > 0

    @property
    def times(self) -> tuple[int, int]:
        """When the first row is due, and when the first of those that may run now is due; 0 for never."""
        if not self.rows:
            return 0, 0
        wakes_at = 0 if (found := self._first()) is None else found.due
        others = [row for id in (*self._held, *self._stranded) if (row := self.rows.get(id))]
        return min(filter(None, (wakes_at, *(row.due for row in others))), default=0), wakes_at

    def set(self, id: str, row: R | None) -> R | None:
        """Replace the row with an id, or remove it; return the earlier row."""
        before = self.rows.pop(id, None)
        if before is not None:
            self._once -= before.rule is None
            self.size -= len(before.args)
            self._stranded.discard(id)
            if before.identity is not None and self._identities.get(before.identity) == id:
                del self._identities[before.identity]
        if row is None:
            return before
        self.rows[id] = row
        self._once += row.rule is None
        self.size += len(row.args)
        if row.identity is not None:
            self._identities.setdefault(row.identity, id)
        self._push(row)
        if len(self._timed) + len(self._queued) > 2 * len(self.rows) + _MOST_OUTDATED:
            self._refill()
        return before

    def take_due(self, now: int, most: int) -> list[R]:
        """Hold the first due rows, at most `most`, and return them."""
        found: list[R] = []
        while len(found) < most and (row := self._first()) is not None and row.due <= now:
            self._held.add(row.id)
            found.append(row)
        return found

    def release(self, id: str) -> None:
        """Stop holding a row; it runs again when it is due, if it still exists."""
        self._held.discard(id)
        if (row := self.rows.get(id)) is not None:
            self._push(row)

    # Inside

    def _first(self) -> R | None:
        timed, queued = self._first_timed(), self._first_queued()
        if timed is None or queued is None:
            return timed or queued
        return min(timed, queued, key=lambda row: (row.due, row.created_at))

    def _first_timed(self) -> R | None:
        while self._timed:
            due, _, id = self._timed[0]
            row = self.rows.get(id)
            if row is not None and row.due == due and id not in self._held:
                return row
            heappop(self._timed)
        return None

    def _first_queued(self) -> R | None:
        while self._queued:
            row = self.rows.get(self._queued[0][1])
            if row is not None:
                return None if row.id in self._held else row
            heappop(self._queued)
        return None

    def _push(self, row: Row) -> None:
        if self._known is not None and row.effect not in self._known:
            self._stranded.add(row.id)
        elif row.is_queued:
            heappush(self._queued, (row.created_at, row.id))
        else:
            heappush(self._timed, (row.due, row.created_at, row.id))

    def _refill(self) -> None:
        """Rebuild the heaps from the rows."""
        self._identities = {row.identity: row.id for row in self.rows.values() if row.identity is not None}
        self._stranded = {
            row.id for row in self.rows.values() if self._known is not None and row.effect not in self._known
        }
        waiting = [row for row in self.rows.values() if row.id not in self._stranded]
        self._timed = [(row.due, row.created_at, row.id) for row in waiting if not row.is_queued]
        self._queued = [(row.created_at, row.id) for row in waiting if row.is_queued]
        heapify(self._timed)
        heapify(self._queued)
