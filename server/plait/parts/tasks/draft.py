"""The writes of a run, effect or step to the tasks of its thread, until they are committed."""

from collections.abc import Callable, Mapping

from plait.parts.schedule.rows import Agenda, Identity
from plait.parts.tasks.rows import TaskRow
from plait.state.commit import Commit

__all__ = ["TasksDraft"]


class TasksDraft:
    """The runs that are begun, and what is done to others."""

    is_ready = True

    def __init__(self, agenda: Agenda[TaskRow], store: Callable[..., Commit]) -> None:
        self._agenda = agenda
        self._store = store
        self._added: dict[str, TaskRow] = {}
        # Each does something in the open transaction.
        self._work: list[Callable[[], object]] = []

    @property
    def rows(self) -> Mapping[str, TaskRow]:
        """The runs that have not ended, as the calling code sees them."""
        return {**self._agenda.rows, **self._added}

    def find(self, identity: Identity) -> TaskRow | None:
        """Return the run with a key, as the calling code sees it."""
        added = (row for row in self._added.values() if row.identity == identity)
        return next(added, None) or self._agenda.find(identity)

    def add(self, row: TaskRow, work: Callable[[], object]) -> None:
        """Begin a run, which `work` stores."""
        self._added[row.id] = row
        self.stage(work)

    def stage(self, work: Callable[[], object]) -> None:
        """Call `work` when the draft is written."""
        self._work.append(work)

    # For the stage

    @property
    def is_dirty(self) -> bool:
        return bool(self._work)

    async def prepare(self) -> None:
        """Do nothing, as nothing must be read."""

    def write(self) -> None:
        added, work = self._added, self._work
        self.drop()

        def undo() -> None:
            self._added, self._work = {**added, **self._added}, [*work, *self._work]

        self._store({}, undo=undo)
        for each in work:
            each()

    def drop(self) -> None:
        self._added, self._work = {}, []
