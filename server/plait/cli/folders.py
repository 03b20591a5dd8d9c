"""Checks, backs up and restores a store in a folder of JSON files."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

from plait.errors import CorruptThread, operator_message
from plait.spelling import count
from plait.state.state_history import replay_json
from plait.store.json_files.backup import back_up_folder, restore_folder
from plait.store.json_files.store import JsonFileStore
from plait.store.json_files.url import FileUrl
from plait.store.protocol import ThreadQuery

__all__ = ["back_up", "check", "restore"]


def check(folder: Path) -> Iterable[tuple[str, bool]]:
    """Return a line for each damaged thread, and a summary, each with whether it reports damage. Raises StoreError."""
    return asyncio.run(_check(folder))


async def _check(folder: Path) -> Iterable[tuple[str, bool]]:
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
    return f"{target} has the {count(back_up_folder(folder, target), 'thread')} of {folder}"


def restore(backup: Path, folder: Path) -> str:
    """Replace a folder with a backup, and return a summary. Raises StoreError and OSError."""
    threads, kept = restore_folder(backup, folder)
    line = f"{folder} has the {count(threads, 'thread')} of {backup}, with new epochs"
    return f"{line}; the old folder is kept as {kept}" if kept else line
