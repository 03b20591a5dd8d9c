"""Files of lines and files that are replaced as a whole, which are on the disk before their functions return."""

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Final

from plait.errors import StoreError
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import NOT_JSON, check_json

__all__ = ["AppendedFile", "check_mark", "find_mark", "make_folder", "name_files", "replace_file", "sync_folder"]

log = logging.getLogger("plait.store")

# What is the same name in no file system but by its letters, and not too long for one.
_SAFE: Final = re.compile(r"[a-z0-9_-][a-z0-9_.-]{0,99}")
_ODD: Final = re.compile(r"[^\w.-]")
_MOST: Final = 100


class AppendedFile:
    """A file to which lines are appended, at its known end. What another program has changed is left as it is."""

    __slots__ = ("_is_named", "_mark", "is_torn", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        # None if there is no file yet.
        self.size: int | None = None
        self._mark: tuple[int, ...] = ()
        # Whether the folder has the name of the file on the disk.
        self._is_named = False
        # Whether there may be a line after the end, or a part of one, which could neither be written nor removed.
        self.is_torn = False

    def read(self, *, readonly: bool) -> list[tuple[int, bytes]]:
        """Return the numbers of the lines and the lines, and find the end. Raises OSError.

        A last line without its end was never acknowledged, and is removed. If it is whole, an editor left it so.
        """
        if not os.path.lexists(self.path):
            return []
        self._mark = find_mark(self.path)
        *lines, rest = self.path.read_bytes().split(b"\n")
        self.size, self._is_named = sum(map(len, lines)) + len(lines), True
        is_whole = _is_json(rest)
        if rest and not readonly:
            if not is_whole:
                log.warning("%s: the end of a line that was never acknowledged is removed", self.path)
            self.is_torn = True
            self.append(rest + b"\n" if is_whole else b"")
        numbered = enumerate([*lines, rest] if is_whole else lines, 1)
        return [(number, line) for number, line in numbered if line.strip()]

    def append(self, line: bytes) -> None:
        """Append a line. Raises OSError and StoreError; then the line is not there, unless `is_torn`."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        if self.size is None:
            _make_last(self.path.parent)
            flags |= os.O_CREAT
        file = os.open(self.path, flags, 0o666)
        try:
            if self.size is None:
                # If it is not empty, another program has made it since.
                inode, _, time = find_mark(file)
                self.size, self._mark = 0, (inode, 0, time)
            if not self._is_named:
                sync_folder(self.path.parent)
                self._is_named = True
            if self.is_torn:
                self._cut(file)
            check_mark(file, self._mark)
            try:
                _write(file, line)
                os.fdatasync(file)
            except OSError:
                self._cut(file)
                raise
            self.size += len(line)
            self._mark = find_mark(file)
        finally:
            os.close(file)

    def remove(self) -> None:
        """Remove the file. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.size, self._is_named = None, False
        sync_folder(self.path.parent)

    def clear(self) -> None:
        """Replace the file by an empty one. Raises OSError."""
        if self.size:
            self._is_named = False  # Before the next line, if this fails.
            try:
                replace_file(self.path, b"")
                self._is_named = True
            finally:
                if (mark := find_mark(self.path))[1:2] == (0,):
                    self.size, self._mark, self.is_torn = 0, mark, False

    def _cut(self, file: int) -> None:
        self.is_torn = True
        os.ftruncate(file, self.size or 0)
        os.fdatasync(file)
        self._mark, self.is_torn = find_mark(file), False


def find_mark(file: int | Path) -> tuple[int, ...]:
    """Return what an edit of a file changes: its inode, size and time; nothing if there is none. Raises OSError."""
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_mark(file: int | Path, mark: tuple[int, ...]) -> None:
    """Raise StoreError unless a file is as this process has read or written it."""
    if find_mark(file) != mark:
        raise StoreError("another program has changed its file: start the server again")


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file by another one, or make it. Raises OSError; it may be replaced then, with its name not synced."""
    new = path.with_name(f"{path.name}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            _write(file, data)
            os.fsync(file)
        finally:
            os.close(file)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those around it, if they are missing. Raises OSError."""
    if not path.is_dir():
        make_folder(path.parent)
        _make_last(path)


def _make_last(path: Path) -> None:
    """Make a folder in one that exists: if that was moved, nothing is begun in its place. Raises OSError."""
    if not path.is_dir():
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def name_files(key: ThreadKey) -> str:
    """Return the path of a thread's files, without their endings.

    A name that is long, or has capitals or other characters than letters, digits and `_.-`, gets a hash, as a file
    system may have no form for it, or the same for another one.
    """
    return f"{_name(key.kind)}/{_name(key.name)}"


def _name(text: str) -> str:
    if _SAFE.fullmatch(text):
        return text
    readable = _ODD.sub("_", text).lstrip(".").encode()[:_MOST].decode(errors="ignore")
    hashed = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16)
    return f"{readable}~{hashed.hexdigest()}"


def _is_json(data: bytes) -> bool:
    try:
        check_json(data)
    except NOT_JSON:
        return False
    return True


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
