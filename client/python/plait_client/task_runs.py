"""The runs of a thread's tasks as a client has them: no I/O.

The same as `task-runs.ts` of the JavaScript client, with the same names.
"""

from collections.abc import Iterable

from plait_client.opened_part import OpenedPart
from plait_client.sent_messages import SentMessage
from plait_schemas.messages import Page, Part
from plait_schemas.task_run import TaskRun

__all__ = ["TaskRuns"]


class TaskRuns(OpenedPart):
    """The known runs of a part, from when it is opened."""

    def __init__(self, part: str) -> None:
        super().__init__(part)
        self._runs: dict[str, TaskRun] = {}

    def show(self, sent: Iterable[SentMessage] = ()) -> list[TaskRun]:
        """Return the runs, oldest first."""
        return sorted(self._runs.values(), key=lambda run: run.created_at)

    def close(self) -> None:
        """Want no more, and forget all."""
        super().close()
        self._runs = {}

    # Inside

    def _apply_page(self, page: Page) -> None:
        self._runs = {run.id: run for run in page.runs}

    def _apply(self, frame: Part) -> bool:
        if frame.run is not None:
            self._runs[frame.run.id] = frame.run
        return True
