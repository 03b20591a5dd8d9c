"""Backs up a store in a folder, even while a server has it open, and restores backups."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from plait.errors import StoreError
from plait.store.copying import copy_store
from plait.store.json_files.files import sync_folder
from plait.store.json_files.store import JsonFileStore
from plait.store.json_files.url import FileUrl
from plait.store.sqlite.backup import free_name
from plait.store.sqlite.lock import StoreLock

__all__ = ["back_up_folder", "restore_folder"]


def back_up_folder(folder: Path, target: Path) -> int:
    """Copy a folder, which a server may have open, to a new one, and return the number of threads.

    Raises StoreError and OSError.
    """
    if os.path.lexists(target):
        raise StoreError(f"{target} exists: name another folder, or remove this one")
    with _new_folder(target.with_name(f"{target.name}.partial")) as new:
        threads = asyncio.run(_copy(folder, new, rights_of=folder, new_epochs=False))
        _rename(new, target)
    return threads


def restore_folder(backup: Path, folder: Path) -> tuple[int, Path | None]:
    """Replace a folder that no server has open by a backup, and give all its threads new epochs.

    Returns the number of threads, and the path to which the replaced folder was moved. Raises StoreError and OSError.
    """
    kept = free_name(folder) if folder.is_dir() else None
    lock = closing(StoreLock(folder / "threads")) if kept else nullcontext()
    with lock, _new_folder(folder.with_name(f"{folder.name}.restored")) as new:
        threads = asyncio.run(_copy(backup, new, rights_of=folder if kept else backup, new_epochs=True))
        if kept:
            _rename(folder, kept)
        _rename(new, folder)
    return threads, kept


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Leave nothing at a path, neither of this command nor of one that was killed."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


async def _copy(source: Path, target: Path, *, rights_of: Path, new_epochs: bool) -> int:
    original, copied = JsonFileStore(FileUrl(source), readonly=True), JsonFileStore(FileUrl(target))
    async with original, copied:
        os.chmod(target, os.stat(rights_of).st_mode & 0o777 | 0o700)  # Before it has anything to read.
        if new_epochs:
            original.begin_new_epochs()
        return await copy_store(original, copied, str(source), lambda *_: None)


def _rename(path: Path, to: Path) -> None:
    path.rename(to)
    sync_folder(to.absolute().parent)
