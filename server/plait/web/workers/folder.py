"""The folder of the sockets that link the workers. Each process holds it; what all have left, a later one removes."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

try:
    import fcntl
except ImportError:  # Windows, on which there are no workers.
    fcntl = None  # type: ignore[assignment]

__all__ = ["hold_folder", "make_folder", "remove_folder"]

_PREFIX: Final = "plait-workers-"
# Unix sockets have short paths.
_LONGEST: Final = 60


def make_folder() -> tuple[str, int]:
    """Make a folder that only this user may enter, and hold it; return both. Remove those that nothing holds."""
    root = Path(tempfile.gettempdir() if len(tempfile.gettempdir()) < _LONGEST else "/tmp")
    for left in root.glob(f"{_PREFIX}*"):
        remove_folder(left)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=root))
    # It gets its name when it is held, so that no other process takes it for one that is left.
    held = hold_folder(made)
    return str(made.rename(root / made.name[1:])), held


def hold_folder(path: Path) -> int:
    """Hold a folder until this process ends, or closes the returned descriptor."""
    assert fcntl is not None
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # A folder with a lock is not tidied away as an old one (by systemd-tmpfiles), either.
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


def remove_folder(path: Path) -> None:
    """Remove a folder of this user, unless a process holds it."""
    assert fcntl is not None
    with suppress(OSError):
        # Others may share the directory, and leave a link there, or a folder with one.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(folder).st_uid == os.getuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(folder)
