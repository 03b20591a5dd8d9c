"""The files of one thread by their paths, in records of 64, and changes of them. No I/O."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from plait.errors import NotFound, TooLarge
from plait.limits import Limits
from plait.parts.files.file import File, Upload
from plait.parts.files.paths import clean_path, find_parents, is_below
from plait.state.thread_records import read_record
from plait.store.thread_rows import Record, ThreadKey
from plait_schemas.codec import encode_json

__all__ = ["INDEX", "MOST_PATHS", "FileEdit", "FileIndex", "Placed"]

INDEX: Final = "f/"
"""The prefix of the keys of the records with the paths."""

MOST_PATHS: Final = 10_000
"""The maximum number of files and directories that a thread keeps."""

# The maximum paths below a directory that is moved, because a move is one write.
_MOST_MOVED: Final = 1_000
_ON_PAGE: Final = 64
# More than the bytes of a file's entry in a record: its path, metadata and MIME type have limits.
_MOST_ENTRY: Final = 8 * 1024

_decode_page: Final = msgspec.json.Decoder(list[File]).decode


def _read_page(key: str, data: bytes) -> tuple[int, list[File]]:
    """Return the number of a record, and its files."""
    return int(key.removeprefix(INDEX), 16), _decode_page(data)


class Placed(NamedTuple):
    """A file of a path, and the number of its record; None and -1 if there is none."""

    file: File | None
    page: int


class FileIndex:
    """The stored files, and the directories that were made; a directory with files exists without being made."""

    def __init__(self, most_bytes: int) -> None:
        self.files: dict[str, File] = {}
        # The bytes of all files.
        self.size = 0
        # The maximum bytes of a record.
        self._most_bytes = most_bytes
        # The records and their bytes, by number, the number of the record of each path, and the records with room.
        self._pages: dict[int, dict[str, File]] = {}
        self._bytes: dict[int, int] = {}
        self._places: dict[str, int] = {}
        self._roomy: set[int] = set()
        # How many paths are below each directory; None until a count is needed.
        self._counts: dict[str, int] | None = None

    def load(self, records: Sequence[Record], thread: ThreadKey) -> None:
        """Load the stored records. Raises CorruptThread."""
        for record in records:
            number, files = read_record(record, thread, partial(_read_page, record.key))
            page = {file.path: file for file in files}
            self._pages[number], self._bytes[number] = page, len(record.value or b"")
            self._places.update(dict.fromkeys(page, number))
            self.files.update(page)
            self._note_room(number)
        self.size = sum([file.size for file in self.files.values()])

    def set(self, path: str, file: File | None, page: int = -1) -> Placed:
        """Set the file of a path, or remove it, and return the file before; `page` is its record, -1 for any."""
        before = self.find(path)
        if before.file is not None:
            self.size -= before.file.size
            self._take(path, before.file, before.page)
        if file is None:
            self.files.pop(path, None)
        else:
            self.size += file.size
            self.files[path] = file
            self._place(path, file, before.page if page < 0 else page, is_moving=page < 0)
        self._count(path, (file is not None) - (before.file is not None))
        return before

    def get(self, path: str) -> File | None:
        """Return the file or directory of a path."""
        found = self.files.get(path)
        return File(path=path) if found is None and (not path or self.count_below(path)) else found

    def find(self, path: str) -> Placed:
        """Return the file of a path, and the number of its record."""
        return Placed(self.files.get(path), self._places.get(path, -1))

    def encode(self, part: str, page: int) -> Record:
        """Return a record."""
        entries = self._pages[page]
        return Record(part, f"{INDEX}{page:06x}", encode_json([*entries.values()]) if entries else None)

    def count_below(self, directory: str) -> int:
        """Return how many paths are below a directory."""
        if not directory:
            return len(self.files)
        if self._counts is None:
            self._counts = {}
            for path in self.files:
                self._count(path, 1)
        return self._counts.get(directory, 0)

    # Inside

    def _take(self, path: str, file: File, page: int) -> None:
        del self._places[path], self._pages[page][path]
        self._bytes[page] -= _measure(file)
        self._note_room(page)

    def _place(self, path: str, file: File, page: int, *, is_moving: bool) -> None:
        """Place a file in a record, or, if it may move, in one with room."""
        size = _measure(file)
        if is_moving and (page < 0 or (self._pages[page] and self._bytes[page] + size > self._most_bytes)):
            page = min(self._roomy) if self._roomy else max(self._pages, default=-1) + 1
        self._pages.setdefault(page, {})[path] = file
        self._bytes[page] = self._bytes.get(page, 2) + size
        self._places[path] = page
        self._note_room(page)

    def _note_room(self, page: int) -> None:
        entries = self._pages[page]
        has_room = len(entries) < _ON_PAGE and self._bytes[page] + _MOST_ENTRY <= self._most_bytes
        (self._roomy.add if has_room or not entries else self._roomy.discard)(page)

    def _count(self, path: str, number: int) -> None:
        if number and (counts := self._counts) is not None:
            for parent in find_parents(path):
                counts[parent] = counts.get(parent, 0) + number


def _measure(file: File) -> int:
    """Return the bytes of a file in its record, with a comma."""
    return len(encode_json(file)) + 1


class FileEdit:
    """Changes of the files of an index, which itself does not change."""

    def __init__(self, index: FileIndex, limits: Limits) -> None:
        self._index = index
        self._limits = limits
        # The new files of the changed paths; None for those that are removed.
        self.changed: dict[str, File | None] = {}
        # Whether these changes must be made again, because of a change of others.
        self.is_outdated = False
        # The trees that the changes depend on, and the paths of these with the directories above them.
        self._trees, self._around = set[str](), set[str]()
        # The uploads that were put, by their contents.
        self.uploads: dict[str, Upload] = {}
        # What all files have more than in the index: the bytes, and the paths below each directory.
        self._more_bytes = 0
        self._more_below: dict[str, int] = {}

    def note(self, paths: Iterable[str]) -> None:
        """Record a change of some paths of the index."""
        self.is_outdated |= any(
            path in self._around or not self._trees.isdisjoint(find_parents(path)) for path in paths
        )

    # Reading

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return self._index.size + self._more_bytes

    def get(self, path: str) -> File | None:
        """Return the file or directory of a path."""
        found = self._find(path)
        return File(path=path) if found is None and self.is_directory(path) else found

    def is_directory(self, path: str) -> bool:
        """Whether a path is a directory."""
        found = self._find(path)
        return not path or (found is not None and found.is_directory) or self.count_below(path) > 0

    def count_below(self, directory: str) -> int:
        """Return how many paths are below a directory."""
        return self._index.count_below(directory) + self._more_below.get(directory, 0)

    def files(self) -> Iterable[File]:
        """Return all files and the directories that were made."""
        if not self.changed:
            return self._index.files.values()
        return [file for file in {**self._index.files, **self.changed}.values() if file is not None]

    def list(self, directory: str) -> list[File]:
        """Return the files and directories immediately in a directory: directories first, then by name."""
        start = len(directory) + 1 if directory else 0
        found: dict[str, File] = {}
        for file in self.files():
            if is_below(file.path, directory) and file.path:
                end = file.path.find("/", start)
                if end < 0:
                    found[file.path] = file
                else:
                    found.setdefault(path := file.path[:end], File(path=path))
        return sorted(found.values(), key=lambda file: (not file.is_directory, file.path))

    # Changing

    def put(self, file: File, upload: Upload) -> File:
        """Set a file, which keeps the time when its path was first used. Raises ValueError and TooLarge."""
        before = self._find(file.path)
        self._touch(file.path)
        self._check_place(file.path)
        if self.is_directory(file.path):
            raise ValueError(f"{file.path or '/'} is a directory")
        if upload.content in self.uploads:
            raise ValueError("this upload was put before: receive it again")
        if before is not None:
            file = replace(file, created_at=before.created_at)
        self._set(file.path, file)
        self.uploads[upload.content] = upload
        self._check_limits()
        return file

    def unlink(self, path: str) -> bool:
        """Remove a file; return whether there was one. Raises ValueError for a directory."""
        self._touch(path)
        if self.is_directory(path):
            raise ValueError(f"{path or '/'} is a directory: use rmdir")
        if self._find(path) is None:
            return False
        self._set(path, None)
        return True

    def mkdir(self, path: str, now: int) -> File:
        """Make a directory, if there is none. Raises ValueError where there is a file, and TooLarge."""
        self._touch(path, is_tree=False)
        self._check_place(path)
        found = self._find(path)
        if found is not None and not found.is_directory:
            raise ValueError(f"{path} is a file")
        if found is None and path:
            self._set(path, found := File(path=path, created_at=now, updated_at=now))
            self._check_limits()
        return found or File(path="")

    def rmdir(self, path: str) -> bool:
        """Remove an empty directory; return whether there was one. Raises ValueError for a file or a full directory."""
        self._touch(path)
        found = self._find(path)
        if found is not None and not found.is_directory:
            raise ValueError(f"{path} is a file: use unlink")
        if self.count_below(path):
            raise ValueError(f"the directory {path or '/'} is not empty")
        if found is None:
            return False
        self._set(path, None)
        return True

    def move(self, source: str, target: str) -> File:
        """Move a file, or a directory with its content; a file replaces a file.

        Raises NotFound, ValueError, and TooLarge for more than 1,000 paths.
        """
        self._touch(source)
        self._touch(target)
        found = self.get(source)
        if found is None or not source:
            raise NotFound(f"there is no file {source or '/'}")
        if source == target:
            return found
        self._check_place(target)
        if self.is_directory(target):
            raise ValueError(f"{target or '/'} is a directory")
        if found.is_directory and (is_below(target, source) or self._find(target) is not None):
            raise ValueError(f"the directory {source} cannot be moved to {target}")
        kept = self._find(source)
        moved = [] if kept is None else [kept]
        if count := self.count_below(source):
            if count > _MOST_MOVED:
                what = f"{source} has {count:,} files and directories; one with {_MOST_MOVED:,} can be moved at once"
                raise TooLarge(what, limit="files")
            moved += [file for file in self.files() if is_below(file.path, source)]
        for file in moved:
            self._set(file.path, None)
        for file in moved:
            path = clean_path(target + file.path[len(source) :])
            self._set(path, replace(file, path=path))
        return replace(found, path=target)

    # The end

    def events(self) -> Iterator[tuple[str, File]]:
        """Yield the events that tell of the changed files."""
        for path, file in self.changed.items():
            before = self._index.files.get(path)
            if file is not None and not file.is_directory:
                yield "file_created" if before is None else "file_updated", file
            elif file is None and before is not None and not before.is_directory:
                yield "file_deleted", before

    # Inside

    def _find(self, path: str) -> File | None:
        return self.changed[path] if path in self.changed else self._index.files.get(path)

    def _set(self, path: str, file: File | None) -> None:
        before, more = self._find(path), self._more_below
        self._more_bytes += (0 if file is None else file.size) - (0 if before is None else before.size)
        if number := (file is not None) - (before is not None):
            for parent in ("", *find_parents(path)):
                more[parent] = more.get(parent, 0) + number
        if file is None and path not in self._index.files:
            self.changed.pop(path, None)
        else:
            self.changed[path] = file

    def _touch(self, path: str, *, is_tree: bool = True) -> None:
        self._around.update((path, *find_parents(path)))
        if is_tree:
            self._trees.add(path)

    def _check_place(self, path: str) -> None:
        for parent in find_parents(path):
            found = self._find(parent)
            if found is not None and not found.is_directory:
                raise ValueError(f"{parent} is a file, so {path} cannot be in it")

    def _check_limits(self) -> None:
        index, most = self._index, self._limits.files
        if self.size > most and self._more_bytes > 0:
            raise TooLarge(f"the files would have {self.size:,} bytes; a thread may have {most:,}", limit="files")
        if self.count_below("") > max(MOST_PATHS, len(index.files)):
            raise TooLarge(f"a thread may have {MOST_PATHS:,} files and directories", limit="files")
