"""The runs of a thread's tasks in a client: no I/O.

The same as `task-runs.ts` of the JavaScript client, with the same names.
"""

from collections.abc import Iterable
from typing import Final

from plait_client.opened_part import OpenedPart
from plait_client.sent_messages import SentMessage
from plait_schemas.messages import Page, Part
from plait_schemas.task_run import TaskRun

__all__ = ["TaskRuns"]


_ENDS: Final = ("done", "failed", "cancelled")


class TaskRuns(OpenedPart):
    """The known runs of a part, from when it is opened: those that have not ended, and the last ones that have."""

    def __init__(self, part: str) -> None:
        super().__init__(part)
        # The runs, in the order in which they were begun.
        self._runs: dict[str, TaskRun] = {}
        # The ids of the ended runs, in the order of their ends.
        self._over: dict[str, None] = {}

    def show(self, sent: Iterable[SentMessage] = ()) -> list[TaskRun]:
        """Return the runs, oldest first."""
        return [*self._runs.values()]

    def close(self) -> None:
        """Stop following, and forget all runs."""
        super().close()
        self._forget()

    # Inside

    def _apply_page(self, page: Page) -> None:
        self._forget()
        for run in page.runs:
            self._set(run)

    def _apply(self, frame: Part) -> bool:
        if frame.run is not None:
            self._set(frame.run)
        return True

    def _forget(self) -> None:
        self._runs, self._over = {}, {}

    def _set(self, run: TaskRun) -> None:
        last = next(reversed(self._runs.values()), run)
        is_late = run.id not in self._runs and run.created_at < last.created_at
        self._runs[run.id] = run
        if is_late:
            self._runs = {each.id: each for each in sorted(self._runs.values(), key=lambda each: each.created_at)}
        if run.status not in _ENDS:
            self._over.pop(run.id, None)
        else:
            self._over.setdefault(run.id)
            if len(self._over) > self._limit:
                first = next(iter(self._over))
                del self._over[first], self._runs[first]
