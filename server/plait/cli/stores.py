"""`plait store`: copies a store."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from cyclopts import App, Parameter

from plait.cli.options import fail, find_existing, find_folder, find_store, open_shared
from plait.cluster.use import check_unused
from plait.errors import PlaitError, StoreError, operator_message
from plait.spelling import count, hide_password
from plait.store.copying import copy_store
from plait.store.sqlite.failures import explain
from plait.store.sqlite.files import Files
from plait.store.sqlite.lock import StoreLock
from plait.store.urls import open_files
from plait.store.whole import WholeStore

__all__ = ["store_commands"]

store_commands = App(name="store", help="Copy a store.")

_WIDTH: Final = 40


@store_commands.command
def copy(
    from_: Annotated[str, Parameter(name="FROM", help="The store's SQLite file, or its URL.")],
    to: Annotated[
        str,
        Parameter(
            name="TO",
            help="The store to create, such as 'sqlite:///game-4.db?files=4' for four files, or a URL, such as postgresql:///game.",
        ),
    ],
) -> None:
    """Copy a store to a new one, which may have another number of files. No server may have either open.

    If it is interrupted, the same command goes on. Each thread is compared with the original.
    """
    source, target = _find(from_, find_existing), _find(to, find_store)
    if source.name == target.name:
        fail(f"{source} cannot be copied to itself: name another store")
    try:
        copied = asyncio.run(_copy(source, target))
    except PlaitError as error:
        fail(operator_message(error))
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on")
    files = "" if target.files is None else f", in {count(target.files.count, 'file')}"
    print(f"{target} has the {count(copied, 'thread')} of {source}{files}")


class _Copied(NamedTuple):
    """A store that is copied, or copied to."""

    # None if it is not in files.
    files: Files | None
    # Not opened.
    open: Callable[[], WholeStore]
    # Identifies it, and is what an operator sees.
    name: str
    shown: str
    # A server locks these.
    paths: Sequence[Path]

    def __str__(self) -> str:
        return self.shown


def _find(store: str, find_files: Callable[[str], Files]) -> _Copied:
    """Return a store by its path or URL; `find_files` finds it if it is in files."""
    if (shared := open_shared(store)) is not None:
        # Without the password, which is not the store's.
        shown, folder = hide_password(store), find_folder(store)
        if folder is not None:
            return _Copied(None, lambda: shared, str(folder.resolve()), shown, [folder / "threads"])
        return _Copied(None, lambda: shared, shown, shown, [])
    files = find_files(store)
    return _Copied(files, lambda: open_files(files), str(files.path.resolve()), str(files.path), files.paths)


async def _copy(source: _Copied, target: _Copied) -> int:
    """Copy a store that no server may write to, and return the number of threads. Raises StoreError."""
    with ExitStack() as locks:
        for path in source.paths:
            try:
                locks.enter_context(closing(StoreLock(path)))
            except (StoreError, OSError) as error:
                raise StoreError(f"cannot lock the store {path}: {explain(error, path)}") from error
        # A copy that is interrupted goes on later, and at its end closing the target writes everything to its files.
        async with source.open().reader() as original, target.open() as copied:
            for store in (original, copied):
                await check_unused(store)
            return await copy_store(original, copied, source.name, _show)


def _show(done: int, total: int) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        filled = _WIDTH * done // total if total else _WIDTH
        end = "\n" if done == total else ""
        print(f"\r[{'#' * filled:.<{_WIDTH}}] {done} of {total}", end=end, file=sys.stderr, flush=True)
