"""A file of a thread, what was uploaded for one, and what searches return."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = ["CHUNK", "DIRECTORY", "File", "FileMatch", "FileStats", "Upload"]

CHUNK: Final = 256 * 1024
"""The bytes of a record with content, if `Limits.record` allows as many."""

DIRECTORY: Final = "inode/directory"
"""The MIME type of directories."""


class File(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file or directory of a thread. Times are in microseconds since the epoch."""

    path: str
    size: int = 0
    mime: str = DIRECTORY
    created_at: int = 0
    updated_at: int = 0
    # Of images, if they are known.
    width: int | None = None
    height: int | None = None
    metadata: Mapping[str, Any] = {}
    # Changes with the content; empty for directories.
    etag: str = ""
    # The bytes of the records that the content is in.
    chunk: int = CHUNK

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return not self.etag

    @property
    def chunks(self) -> int:
        """The number of records that the content is in."""
        return -(-self.size // self.chunk)

    def show(self) -> dict[str, Any]:
        """Return what clients see."""
        shown = ("path", "name", "size", "mime", "created_at", "updated_at", "width", "height", "metadata", "etag")
        return {name: getattr(self, name) for name in shown} | {"is_directory": self.is_directory}


class Upload(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Content that a thread has received, and that `put` gives a path. If nothing refers to it, it is removed."""

    content: str
    size: int
    chunk: int
    # The first bytes.
    head: bytes


class FileStats(msgspec.Struct, frozen=True):
    """How many files and directories a thread has, and the bytes of its files."""

    files: int
    directories: int
    size: int


class FileMatch(msgspec.Struct, frozen=True):
    """A line that `grep` has found; `line` counts from 1, and long lines are shortened."""

    path: str
    line: int
    text: str
