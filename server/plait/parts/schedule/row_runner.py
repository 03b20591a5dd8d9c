"""The rows of one part of a thread: stores them, keeps the changes of runs, and has the due ones attempted."""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from plait.actor.actor import Actor
from plait.actor.logs import about
from plait.actor.thread import ThreadActor
from plait.parts.attempt_runner import AttemptRunner, Work
from plait.parts.schedule.rows import Agenda, Identity, Row
from plait.parts.stage import ItemsDraft, find_draft, use_draft
from plait.parts.written import STAGED, Result, Written
from plait.state.commit import Commit
from plait.state.thread_records import Changes, Table, apply
from plait.store.thread_rows import Record

__all__ = ["RowChange", "RowRunner", "RowsDraft"]

log = logging.getLogger("plait.schedule")

R = TypeVar("R", bound=Row)

# Maximum number of rows of one part that are attempted at the same time.
_MOST_AT_ONCE: Final = 64


class RowChange(NamedTuple, Generic[R]):
    """A change of rows: `work` makes it in an open transaction, unless others have made it unnecessary."""

    work: Callable[[], object]
    # The row that it adds, or the id of the one that it removes.
    added: R | None = None
    removed: str = ""


class RowsDraft(ItemsDraft[RowChange[R]]):
    """The changes of one run to rows, and the rows as it sees them; `current` is the row of the effect that runs."""

    def __init__(self, actor: ThreadActor, agenda: Agenda[R], current: R | None = None) -> None:
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
        """The bytes of all arguments, at least: removed rows count until their removal is stored."""
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


class RowRunner(Work[R]):
    """The rows of one part of a thread; a subclass does their work, for `AttemptRunner`.

    The timer of the thread calls it. `names` are the names of the class's methods, `row` is the class of the rows, and
    `prefix` begins the keys of the records.
    """

    # The noun for the methods, in messages.
    noun: ClassVar[str]

    def __init__(self, actor: Actor, part: str, names: Container[str], row: type[R], *, prefix: str = "") -> None:
        self._actor = actor
        self._part = part
        self.agenda = Agenda[R](known=names)
        self._table = Table(part, prefix, row, self.agenda.set)
        self._runner = AttemptRunner(actor, self)
        # The newest time at which a row was created.
        self.newest = 0

    # Called by the part

    def load(self, records: Sequence[Record]) -> None:
        """Load the stored rows of a waking thread. Raises CorruptThread."""
        for _, stored in self._table.load(records, self._actor.key):
            row = stored.recover(self._actor.host.process)
            self.newest = max(self.newest, row.created_at)
            self.set_loaded(row)
        if stranded := {row.effect for row in self.agenda.stranded}:
            names = ", ".join(sorted(stranded))
            text = "there are no %ss with these names: %s; their rows wait for a class that has them"
            log.warning(text, self.noun, names, extra=about(self._actor.key))

    def set_loaded(self, row: R) -> None:
        """Add a stored row."""
        self.agenda.set(row.id, row)

    def clear(self) -> Sequence[Record]:
        """Forget all rows, and return the records that remove them."""
        return apply([self._table.change(id, None) for id in self.agenda.rows])[0]

    def store(self, rows: Mapping[str, R | None], more: Changes = ()) -> Commit:
        """Store or remove rows, with more changes, as one write. No row is added to a terminated thread."""
        if self._actor.terminated_at is not None:
            rows = {id: row for id, row in rows.items() if row is None}
        return self._actor.records.put(
            [*[self._table.change(id, row, is_readable=True) for id, row in rows.items()], *more]
        )

    def add(self, row: R) -> Commit | None:
        """Store a new row; None if there is one with its identity."""
        if row.identity is not None and self.agenda.find(row.identity) is not None:
            return None
        return self.store({row.id: row})

    def remove(self, id: str) -> Commit | None:
        """Remove a row; None if there is none."""
        return self.store({id: None}) if id in self.agenda.rows else None

    def written(self, commit: Commit | None) -> Written:
        """Return an awaitable for a write; None is a write without changes, durable when those before it are."""
        return Written(commit or self.store({}), self._actor.state.find_own_transaction())

    # For runs

    def use_draft(self) -> RowsDraft[R] | None:
        """Return the draft of the calling run; None outside of runs and in a transaction. Raises Interrupted."""
        if self._actor.state.find_own_transaction() is not None:
            return None
        return use_draft(self._actor, self, RowsDraft, lambda _: RowsDraft(self._actor, self.agenda))

    def do(
        self, id: str, work: Callable[[], Commit | None], *, may: Callable[[R], bool] | None = None, removed: str = ""
    ) -> Result[bool]:
        """Change a row if there is one: now, or when the calling run commits; return whether the change is made.

        In a run, `may` tells whether it will be made, and `removed` is the id of a row that is removed.
        """
        if (draft := self.use_draft()) is None:
            commit = work()
            return Result(commit is not None, self.written(commit))
        row = draft.rows.get(id)
        if is_done := row is not None and (may is None or may(row)):
            draft.add(RowChange(work, removed=removed))
        return Result(is_done, STAGED)

    @property
    def rows(self) -> Mapping[str, R]:
        """The rows as the calling code sees them."""
        draft = find_draft(self._actor, self, RowsDraft)
        return self.agenda.rows if draft is None else draft.rows

    # Called by the timer of the thread

    @property
    def times(self) -> tuple[int, int]:
        """When the first row is due, and when the next one may be attempted: one of those that run may have to end."""
        due, wakes_at = self.agenda.times
        return due, 0 if wakes_at and self.busy >= _MOST_AT_ONCE else wakes_at

    @property
    def keeps(self) -> bool:
        """Whether there are rows that run once or are queued."""
        return self.agenda.keeps

    @property
    def busy(self) -> int:
        """The number of the attempts that are running."""
        return len(self._runner.running)

    def on_due(self, now: int) -> None:
        """Begin to attempt the due rows."""
        for row in self.agenda.take_due(now, _MOST_AT_ONCE - self.busy):
            self._runner.begin(row.id, f"{self.noun} {row.effect}")

    def terminate(self) -> None:
        """Remove all rows, and cancel the running attempts, except the one that the calling code is a part of."""
        raise NotImplementedError

    def has(self, id: str) -> bool:
        """Whether an attempt at a row is running."""
        return id in self._runner.running

    # The work of `AttemptRunner`

    def find(self, id: str) -> R | None:
        return self.agenda.rows.get(id)

    def put(self, id: str, attempts: R) -> Commit:
        return self.store({id: attempts})

    def ended(self, id: str, unstored: R | None) -> None:
        if unstored is not None:
            self.agenda.set(id, unstored)
        self.agenda.release(id)
