"""Whether the files at a store's paths are the ones that were opened. Runs in the writer's OS thread."""

import os
from pathlib import Path

__all__ = ["FileIdentity"]


class FileIdentity:
    """The files of an open SQLite database in WAL mode: the database and its log.

    SQLite goes on to write to a file that was deleted or replaced, where nobody will find what it wrote.
    """

    def __init__(self, path: Path) -> None:
        self._paths = (str(path), f"{path}-wal")
        self._found = self._find()

    def is_same(self) -> bool:
        """Whether both files are still at their paths."""
        return self._find() == self._found

    def _find(self) -> list[tuple[int, int]]:
        found = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError:
                found.append((0, 0))
            else:
                found.append((status.st_dev, status.st_ino))
        return found
