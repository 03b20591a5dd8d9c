"""Whether the files at a store's paths are the ones that were opened. Runs in the writer's OS thread."""

import os
from pathlib import Path

__all__ = ["FileIdentity"]


class FileIdentity:
    """The files of an open SQLite database in WAL mode: the database and its log.

    SQLite goes on to write to a file that was deleted or replaced, where nobody will find what it wrote.
    """

    def __init__(self, path: Path) -> None:
        # The working directory may become another one.
        found = ((each, _identify(each)) for each in (f"{path.absolute()}", f"{path.absolute()}-wal"))
        self._files = [(each, identity) for each, identity in found if identity is not None]

    def is_same(self) -> bool:
        """Whether both files are still at their paths."""
        return all(_identify(path) == identity for path, identity in self._files)


def _identify(path: str) -> tuple[int, int] | None:
    """Return which file is at a path; None when there is none. Raises OSError when that cannot be found out."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
