"""The changes of a run to the files of its thread, until they are committed."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from plait.actor.thread import ThreadActor
from plait.parts.files.index import FileEdit
from plait.parts.files.store import FileStore
from plait.parts.stage import ItemsDraft

__all__ = ["FilesDraft"]

T = TypeVar("T")

Op = Callable[[FileEdit], Any]


class FilesDraft(ItemsDraft[Op]):
    """The operations of one run on files: tried at once, and carried out when they are stored."""

    def __init__(self, actor: ThreadActor, files: FileStore) -> None:
        super().__init__(actor, self._carry_out)
        self._files = files
        # The operations, carried out on the files.
        self._trial: FileEdit | None = None

    @property
    def edit(self) -> FileEdit:
        """The files as the run sees them. Raises the error of an operation that fails after others' changes."""
        if self._trial is None or self._trial.is_outdated:
            trial = self._files.edit()
            for op in self.items:
                op(trial)
            self._trial = trial
            self._files.trials.add(trial)
        return self._trial

    def do(self, op: Callable[[FileEdit], T]) -> T:
        """Try an operation, and keep it."""
        trial, self._trial = self.edit, None  # The trial is made again if the operation raises.
        result = op(trial)
        self._trial = trial
        self.add(op)
        return result

    def drop(self) -> None:
        """Forget the operations; the contents that they have put are removed."""
        super().drop()
        self._trial = None

    def _carry_out(self, ops: Sequence[Op]) -> None:
        def work(edit: FileEdit) -> None:
            for op in ops:
                op(edit)

        self._files.write(work)
