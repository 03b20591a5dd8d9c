"""`plait store`: copies a store."""

import asyncio
import sys
from contextlib import ExitStack, closing
from typing import Annotated, Final

from cyclopts import App, Parameter

from plait.cli.options import fail, find_existing, find_store
from plait.errors import PlaitError, StoreError, operator_message
from plait.spelling import count
from plait.store.copying import copy_store
from plait.store.files import Files
from plait.store.lock import StoreLock
from plait.store.sqlite_errors import explain
from plait.store.urls import open_files

__all__ = ["store_commands"]

store_commands = App(name="store", help="Copy a store.")

_WIDTH: Final = 40


@store_commands.command
def copy(
    from_: Annotated[str, Parameter(name="FROM", help="The store's SQLite file, or its URL.")],
    to: Annotated[
        str, Parameter(name="TO", help="The store to create, such as 'sqlite:///game-4.db?files=4' for four files.")
    ],
) -> None:
    """Copy a store to a new one, which may have another number of files. No server may have either open.

    If it is interrupted, the same command goes on. Each thread is compared with the original.
    """
    source, target = find_existing(from_), find_store(to)
    if source.path.resolve() == target.path.resolve():
        fail(f"{source.path} cannot be copied to itself: name another path")
    try:
        copied = asyncio.run(_copy(source, target))
    except PlaitError as error:
        fail(operator_message(error))
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on")
    print(f"{target.path} has the {count(copied, 'thread')} of {source.path}, in {count(target.count, 'file')}")


async def _copy(source: Files, target: Files) -> int:
    """Copy a store that no server may write to, and return the number of threads. Raises StoreError."""
    with ExitStack() as locks:
        for path in source.paths:
            try:
                locks.enter_context(closing(StoreLock(path)))
            except (StoreError, OSError) as error:
                raise StoreError(f"cannot lock the store {path}: {explain(error, path)}") from error
        # A copy that is interrupted goes on later, and at its end closing the target writes everything to its files.
        async with open_files(source, readonly=True) as original, open_files(target) as copied:
            return await copy_store(original, copied, str(source.path.resolve()), _show)


def _show(done: int, total: int) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        filled = _WIDTH * done // total if total else _WIDTH
        end = "\n" if done == total else ""
        print(f"\r[{'#' * filled:.<{_WIDTH}}] {done} of {total}", end=end, file=sys.stderr, flush=True)
