"""Checks a store in a folder of JSON files, backs it up, even while a server has it open, and restores backups."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from plait.errors import CorruptThread, StoreError, operator_message
from plait.spelling import count
from plait.state.state_history import replay_json
from plait.store.copying import copy_store
from plait.store.json_files.files import sync_folder
from plait.store.json_files.store import JsonFileStore
from plait.store.json_files.url import FileUrl
from plait.store.protocol import ThreadQuery
from plait.store.sqlite.backup import free_name
from plait.store.sqlite.lock import StoreLock

__all__ = ["back_up", "check", "restore"]


async def check(folder: Path) -> Iterable[tuple[str, bool]]:
    """Return a line for each damaged thread, and a summary, each with whether it reports damage. Raises StoreError."""
    damages = list[tuple[str, bool]]()
    async with JsonFileStore(FileUrl(folder), readonly=True) as store:
        rows = await store.threads(ThreadQuery(limit=sys.maxsize))
        for row in rows:
            try:
                if (stored := await store.load(row.key)) is not None and stored.has_state:
                    replay_json(row.key, stored)
            except CorruptThread as error:
                damages.append((operator_message(error), True))
    verdict = count(len(damages), "damaged thread") if damages else "nothing is damaged"
    return [*damages, (f"{folder}: {count(len(rows), 'thread')}, {verdict}", False)]


def back_up(folder: Path, target: Path) -> str:
    """Copy a folder, which a server may have open, and return a summary. Raises StoreError and OSError."""
    if os.path.lexists(target):
        raise StoreError(f"{target} exists: name another folder, or remove this one")
    with _new_folder(target.with_name(f"{target.name}.partial")) as new:
        threads = asyncio.run(_copy(folder, new, rights_of=folder, new_epochs=False))
        new.rename(target)
        sync_folder(target.absolute().parent)
    return f"{target} has the {count(threads, 'thread')} of {folder}"


def restore(backup: Path, folder: Path) -> str:
    """Replace a folder that no server has open by a backup, give all its threads new epochs, and return a summary.

    Raises StoreError and OSError.
    """
    kept = free_name(folder) if folder.is_dir() else None
    lock = closing(StoreLock(folder / "threads")) if kept else nullcontext()
    with lock, _new_folder(folder.with_name(f"{folder.name}.restored")) as new:
        threads = asyncio.run(_copy(backup, new, rights_of=folder if kept else backup, new_epochs=True))
        if kept:
            folder.rename(kept)
        new.rename(folder)  # At once, as a server that starts would make an empty folder.
        sync_folder(folder.absolute().parent)
    line = f"{folder} has the {count(threads, 'thread')} of {backup}, with new epochs"
    return f"{line}; the old folder is kept as {kept}" if kept else line


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Remove the folder at a path after the block, and before it the one that a killed command has left."""
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
