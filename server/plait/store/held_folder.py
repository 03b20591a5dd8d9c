"""Folders for temporary files, which running processes hold; a later process removes those that none holds."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # On Windows, what a crash leaves stays.
    fcntl = None  # type: ignore[assignment]

__all__ = ["hold_folder", "make_folder", "remove_folder"]


def make_folder(prefix: str, root: str) -> tuple[Path, int]:
    """Make a folder for this user alone, and hold it; remove what ended processes have left. Raises OSError."""
    for left in Path(root).glob(f"{prefix}*"):
        remove_folder(left)
    made = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=root))
    # It gets its name when it is held, so that no other process takes it for one that is left.
    held = hold_folder(made)
    return made.rename(made.with_name(made.name[1:])), held


def hold_folder(path: Path) -> int:
    """Hold a folder until the returned descriptor is closed, or this process ends. Raises OSError."""
    if fcntl is None:
        return os.open(os.devnull, os.O_RDONLY)
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # A folder with a lock is not tidied away as an old one (by systemd-tmpfiles), either.
    fcntl.flock(held, fcntl.LOCK_SH)
    return held


def remove_folder(path: Path) -> None:
    """Remove a folder of this user, unless a process holds it."""
    if fcntl is None:
        return
    with suppress(OSError):
        # Others may share the directory, and leave a link there, or a folder with one.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(folder).st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(folder)
