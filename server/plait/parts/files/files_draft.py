"""The changes of a run to the files of its thread, until they are committed."""

from collections.abc import Callable
from typing import Any, TypeVar

from plait.parts.files.index import FileEdit
from plait.parts.files.store import FileStore
from plait.parts.stage import Draft

__all__ = ["FilesDraft"]

T = TypeVar("T")


class FilesDraft(Draft):
    """The operations of one run on files: tried at once, and carried out when they are stored."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._ops: list[Callable[[FileEdit], Any]] = []
        # The operations, carried out on the files, and the value of `FileStore.edits` at that time.
        self._trial: FileEdit | None = None
        self._tried_at = -1
        self._is_dropped = False

    @property
    def edit(self) -> FileEdit:
        """The files as the run sees them. Raises what an operation raises, as others have changed the files."""
        if self._trial is None or self._tried_at != self._store.edits:
            trial = self._store.edit()
            for op in self._ops:
                op(trial)
            self._trial, self._tried_at = trial, self._store.edits
        return self._trial

    def do(self, op: Callable[[FileEdit], T]) -> T:
        """Try an operation, and keep it."""
        trial, self._trial = self.edit, None  # It is made again if the operation raises.
        result = op(trial)
        self._trial = trial
        self._ops.append(op)
        return result

    # Called by the stage

    @property
    def is_dirty(self) -> bool:
        """Whether there are operations to store."""
        return bool(self._ops)

    def write(self) -> None:
        """Carry out the operations on the stored files; if that is rolled back, they are staged again."""
        ops = self._ops

        def work(edit: FileEdit) -> None:
            for op in ops:
                op(edit)

        def undo() -> None:
            if not self._is_dropped:
                self._ops, self._trial = [*ops, *self._ops], None

        self._store.write(work, undo=undo)
        self._ops, self._trial = [], None

    def drop(self) -> None:
        """Forget the operations; the contents that they have put are removed."""
        self._is_dropped, self._ops, self._trial = True, [], None
