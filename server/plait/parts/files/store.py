"""Writes the files of one thread: paths and marks together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakSet

from plait.actor.actor import Actor
from plait.errors import PlaitError
from plait.parts.files.contents import Contents
from plait.parts.files.file import File, RemovedFile
from plait.parts.files.index import FileEdit, FileIndex, Placed
from plait.state.commit import Commit
from plait.state.thread_records import Change
from plait.store.thread_rows import Record

__all__ = ["FileStore"]

T = TypeVar("T")


class FileStore:
    """The files of one thread in memory, and their writes."""

    def __init__(self, actor: Actor, part: str) -> None:
        self._actor = actor
        self._part = part
        self.index = FileIndex(actor.limits.record)
        self.contents = Contents(actor, part)
        # The files as runs have changed them.
        self.trials = WeakSet[FileEdit]()

    def load(self, index: Sequence[Record], marks: Sequence[Record]) -> None:
        """Load the stored records of a waking thread. Raises CorruptThread."""
        self.index.load(index, self._actor.key)
        self.contents.load(marks)

    def edit(self) -> FileEdit:
        """Return an edit of the current files, which is not stored."""
        self._actor.state.end_abandoned()
        return FileEdit(self.index, self._actor.limits)

    def write(self, work: Callable[[FileEdit], T]) -> tuple[T, Commit]:
        """Store the changes of `work`, and tell clients; return its result.

        If the write is rolled back, the files are as before. Raises the errors of `work` and `Pipeline.store`; then
        nothing is changed.
        """
        self._actor.state.check_open()
        edit = self.edit()
        result = work(edit)
        events = [*edit.events()]
        commit = self._actor.records.put(self._make_changes(edit))
        if events:
            self._actor.state.after(partial(self._tell, events))
        return result, commit

    # Inside

    def _make_changes(self, edit: FileEdit) -> Iterator[Change | Record]:
        """Yield the changes of paths and contents, and, after these are made, the records of the paths."""
        before = [self.index.find(path) for path in edit.changed]
        for path, file in edit.changed.items():
            yield Change(self._set, path, Placed(file, -1))
        kept = {file.etag for file in edit.changed.values() if file is not None}
        removed = [placed.file for placed in before if placed.file is not None and placed.file.etag not in kept]
        put = [upload for content, upload in edit.uploads.items() if content in kept]
        yield from self.contents.change(put, [file for file in removed if file.etag])
        after = [self.index.find(path) for path in edit.changed]
        yield from [
            self.index.encode(self._part, page) for page in {placed.page for placed in (*before, *after)} - {-1}
        ]

    def _set(self, path: str, placed: Placed) -> Placed:
        before = self.index.set(path, placed.file, placed.page)
        self._note([path])
        return before

    def _note(self, paths: Iterable[str]) -> None:
        found = [*paths] if self.trials else []
        for trial in self.trials:
            trial.note(found)

    def _tell(self, events: list[tuple[str, File]], error: PlaitError | None) -> None:
        for name, file in events if error is None else ():
            data = RemovedFile(file.path) if name == "file_deleted" else file.show()
            self._actor.sockets.broadcast(data, event=name)
