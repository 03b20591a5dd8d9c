"""A file of a thread, the content for a file, and the results of searches. No I/O."""

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Any, Final

import msgspec

__all__ = [
    "CHUNK",
    "DIRECTORY",
    "Content",
    "File",
    "FileInfo",
    "FileMatch",
    "FileStats",
    "RemovedFile",
    "Upload",
    "cut_content",
]

CHUNK: Final = 256 * 1024
"""The bytes of a record with content, if `Limits.record` allows that many."""

DIRECTORY: Final = "inode/directory"
"""The MIME type of directories."""

Content = str | bytes | bytearray | memoryview | AsyncIterable[bytes]
"""The content of a file: a text, which is stored as UTF-8, bytes, or bytes piece by piece."""


class File(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A file or directory of a thread. Times are in microseconds since the epoch."""

    path: str
    size: int = 0
    mime: str = DIRECTORY
    created_at: int = 0
    updated_at: int = 0
    # The size of an image, if it is known.
    width: int | None = None
    height: int | None = None
    metadata: Mapping[str, Any] = {}
    # Changes with the content; empty for directories.
    etag: str = ""
    # The bytes of each record with content.
    chunk: int = CHUNK

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_directory(self) -> bool:
        """Whether the path is a directory."""
        return not self.etag

    @property
    def chunks(self) -> int:
        """The number of records with the content."""
        return -(-self.size // self.chunk)

    def show(self) -> "FileInfo":
        """Return the file as clients see it."""
        return FileInfo(**{name: getattr(self, name) for name in FileInfo.__struct_fields__})


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A file as clients see it. Times are in microseconds since the epoch."""

    path: str
    name: str
    size: int
    mime: str
    created_at: int
    updated_at: int
    width: int | None
    height: int | None
    metadata: Mapping[str, Any]
    etag: str
    is_directory: bool


class RemovedFile(msgspec.Struct, frozen=True):
    """A file that was removed, as clients see it."""

    path: str


class Upload(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Content that a thread has received, and that `put` gives a path. Content that nothing refers to is removed."""

    content: str
    size: int
    chunk: int
    # The first chunk.
    head: bytes


class FileStats(msgspec.Struct, frozen=True):
    """The numbers of files and directories of a thread, and the bytes of its files."""

    files: int
    directories: int
    size: int


class FileMatch(msgspec.Struct, frozen=True):
    """A line that `grep` has found; `line` counts from 1, and long lines are shortened."""

    path: str
    line: int
    text: str


async def cut_content(source: Content, chunk: int) -> AsyncGenerator[bytes]:
    """Yield content in pieces of `chunk` bytes; the last one may have fewer. Raises TypeError if it is not content."""
    if isinstance(source, str):
        source = source.encode()
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        for at in range(0, len(view), chunk):
            yield bytes(view[at : at + chunk])
        return
    if not isinstance(source, AsyncIterable):
        what = type(source).__name__
        raise TypeError(f"the content of a file is a str, bytes or an async iterable of bytes, not {what}")
    buffer = bytearray()
    async for piece in source:
        buffer += piece
        while len(buffer) >= chunk:
            yield bytes(memoryview(buffer)[:chunk])
            del buffer[:chunk]
    if buffer:
        yield bytes(buffer)
