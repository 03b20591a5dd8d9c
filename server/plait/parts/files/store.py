"""Writes the files of one thread: paths, and what is to be removed, together."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from plait.actor.actor import Actor
from plait.actor.connection import Wire
from plait.actor.transport import Frame
from plait.parts.files.contents import Contents
from plait.parts.files.file import File, RemovedFile
from plait.parts.files.index import FileEdit, FileIndex
from plait.state.commit import Commit
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
        # What runs have changed.
        self.trials = WeakSet[FileEdit]()

    def load(self, index: Sequence[Record], marks: Sequence[Record]) -> None:
        """Load the stored records of a waking thread. Raises CorruptThread."""
        self.index.load(self._part, index)
        self.contents.load(marks)

    def edit(self) -> FileEdit:
        """Return changes of the current files, which are not stored."""
        self._actor.state.end_abandoned()
        return FileEdit(self.index, self._actor.limits)

    def write(self, work: Callable[[FileEdit], T]) -> tuple[T, Commit]:
        """Store what `work` changes, and tell clients; return its result.

        If the write is rolled back, the files are as before. Raises what `work` and `Pipeline.store` raise; then
        nothing is changed.
        """
        self._actor.state.check_open()
        edit = self.edit()
        result = work(edit)
        events = [*edit.events()]
        records, take_back = self._apply(edit)
        try:
            commit = self._actor.records.write(
                records, undo=take_back, tell=partial(self._tell, events) if events else None
            )
        except BaseException:
            take_back()
            raise
        self._actor.arm()
        return result, commit

    # Inside

    def _apply(self, edit: FileEdit) -> tuple[list[Record], Callable[[], None]]:
        """Make changes the current files; return the records to store, and what undoes the changes."""
        index = self.index
        before = [(path, index.set(path, file)) for path, file in edit.changed.items()]
        kept = {file.etag for file in edit.changed.values() if file is not None}
        removed = [placed.file for _, placed in before if placed.file is not None and placed.file.etag not in kept]
        put = [upload for content, upload in edit.uploads.items() if content in kept]
        marks, release = self.contents.change(put, [file for file in removed if file.etag])
        self._note(path for path, _ in before)

        def undo() -> None:
            for path, placed in reversed(before):
                index.set(path, placed.file, placed.page)
            self._note(path for path, _ in before)
            release()

        pages = {page for path, placed in before for page in (placed.page, index.find_page(path))} - {-1}
        return [*(index.encode(self._part, page) for page in pages), *marks], undo

    def _note(self, paths: Iterable[str]) -> None:
        found = [*paths] if self.trials else []
        for trial in self.trials:
            trial.note(found)

    def _tell(self, events: list[tuple[str, File]]) -> None:
        for name, file in events:
            data = RemovedFile(file.path) if name == "file_deleted" else file.show()
            self._actor.sockets.broadcast(partial(_encode_event, name, data))


def _encode_event(name: str, data: Any, wire: Wire) -> Frame | None:
    return wire.encode_event(name, data)
