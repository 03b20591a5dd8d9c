"""The files of a SQLite store: one, `game.db`, or several, `game.0.db` and so on. Each knows its place."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, Self

import msgspec

from plait.errors import StoreError
from plait.store.shards import find_file
from plait.store.sqlite.file_place import ONLY_FILE, FilePlace, read_place
from plait.store.sqlite.schema import HEADS
from plait.store.thread_rows import ThreadKey

__all__ = ["MOST_FILES", "Files", "check_creation", "has_content", "load_place"]

MOST_FILES: Final = 64


class Files(msgspec.Struct, frozen=True):
    """The files of a store: `path` itself if the count is 1."""

    path: Path
    count: int

    @classmethod
    def find(cls, path: Path, count: int | None = None) -> Self:
        """Return the files that are there, or `count` new ones (1 by default).

        Raises StoreError if the store has another count, or if there are a store of one file and one of several.
        """
        first, is_alone = _number(path, 0), path.exists()
        if is_alone and first.exists():
            raise StoreError(f"there are both {path} and {first}, which are two stores: move one of them away")
        if is_alone:
            stored = 1
        elif (place := load_place(first)) is not None:
            stored = place.count
        else:
            return cls(path, count or 1)
        if count not in (None, stored):
            new = path.with_name(f"{path.stem}-{count}{path.suffix}")
            raise StoreError(
                f"the store {path} has {stored} file{'s' if stored > 1 else ''}, not {count}, and most of its threads "
                f"would not be found: leave out `files`, or copy it: `plait store copy {path} 'sqlite:///{new}"
                f"{f'?files={count}' if count != 1 else ''}'`"
            )
        return cls(path, stored)

    @property
    def paths(self) -> list[Path]:
        """The paths of the files, by number."""
        return [self.path] if self.count == 1 else [_number(self.path, number) for number in range(self.count)]

    @property
    def are_there(self) -> bool:
        """Whether all of the files exist."""
        return all(has_content(path) for path in self.paths)

    @property
    def places(self) -> list[tuple[Path, FilePlace]]:
        """The paths and places of the files, the first one last, as that is the order in which they are made."""
        return [(path, FilePlace(number, self.count)) for number, path in reversed(list(enumerate(self.paths)))]

    def path_of(self, key: ThreadKey) -> Path:
        """Return the path of the file that keeps a thread."""
        return self.paths[find_file(key, self.count)]

    def at_count(self, count: int) -> Self:
        """Return another number of files at the same path."""
        return type(self)(self.path, count)

    def at(self, path: Path) -> Self:
        """Return the same number of files at another path."""
        return type(self)(path, self.count)


def load_place(path: Path) -> FilePlace | None:
    """Return the place of a file that a server may have open; None if there is no such file, or it is empty.

    A file that cannot be read, or has no place, is taken for a store's only one: opening it tells what is wrong.
    """
    try:
        if path.stat().st_size == 0:
            return None
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)) as db:
            return read_place(db)
    except FileNotFoundError:
        return None
    except (sqlite3.Error, OSError, UnicodeDecodeError):
        return ONLY_FILE


def check_creation(path: Path, place: FilePlace) -> None:
    """Check that an absent or empty file may be made at a place: its threads would look empty if it was lost.

    The files of a store are made from the last to the first, so a file is lost if one before it is there, or if a later
    one has threads. Raises StoreError.
    """
    if has_content(path):
        return
    if place.count == 1:
        if has_content(first := _number(path, 0)):
            raise StoreError(f"its threads are in {first} and further files: open it by its URL, sqlite:///{path}")
        if found := [each for number in range(1, MOST_FILES) if has_content(each := _number(path, number))]:
            raise StoreError(
                f"{found[0]} is one of several files of a store, and {first} is missing: put it back, or restore a "
                "backup"
            )
        return
    name = path.name.removesuffix(path.suffix).removesuffix(f".{place.number}") + path.suffix
    others = Files(path.with_name(name), place.count).paths
    if any(has_content(each) for each in others[: place.number]) or any(map(_has_threads, others)):
        raise StoreError(f"{path} is missing, but there are other files of the store: put it back, or restore a backup")


def _number(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def has_content(path: Path | str) -> bool:
    """Whether there is a file that is not empty."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _has_threads(path: Path) -> bool:
    if not has_content(path):
        return False
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)) as db:
        return db.execute(f"SELECT 1 FROM rows WHERE {HEADS} LIMIT 1").fetchone() is not None
