"""`plait store`: copies, exports and imports a whole store."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import App, Parameter

from plait.cli.options import StoreName, fail, find_existing, find_folder, find_store, open_shared
from plait.cli.output import open_output
from plait.cluster.use import check_unused
from plait.errors import PlaitError, StoreError, operator_message
from plait.spelling import count, hide_password
from plait.store.copying import copy_store, copy_threads
from plait.store.export_store import ExportedStore, export_store
from plait.store.sqlite.failures import explain
from plait.store.sqlite.files import Files
from plait.store.sqlite.lock import StoreLock
from plait.store.urls import open_files
from plait.store.whole import WholeStore

__all__ = ["store_commands"]

store_commands = App(name="store", help="Copy, export and import a whole store.")

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
    copied = _run(_copy(source, target))
    print(f"{target} has the {count(copied, 'thread')} of {source}{target.tell_files()}")


@store_commands.command
def export(
    store: StoreName = "plait.db",
    *,
    out: Annotated[Path | None, Parameter(help="The file to write. By default it is printed.")] = None,
) -> None:
    """Write everything that a store has as lines of JSON, which any build of plait imports. No server may have it open.

    The file is put in place when all of it is written.
    """
    source = _find(store, find_existing)
    try:
        with open_output(out) as target:
            exported = _run(_export(source, target.write))
    except OSError as error:
        fail(f"cannot write to {out or 'the standard output'}: {error.strerror or error}")
    if out is not None:
        print(f"{out} has the {count(exported, 'thread')} of {source}")


@store_commands.command(name="import")
def import_(
    file: Annotated[Path, Parameter(help="A file made by `plait store export`.")],
    to: Annotated[str, Parameter(name="TO", help="The store to create, as in `plait store copy`.")],
) -> None:
    """Make a new store from an exported one, with new epochs. No server may have it open.

    The whole file is checked first. If the import is interrupted, the same command goes on.
    """
    target = _find(to, find_store)
    try:
        source = ExportedStore(file)
    except PlaitError as error:
        fail(operator_message(error))
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror or error}")
    imported = _run(_import(source, target))
    print(f"{target} has the {count(imported, 'thread')} of {file}, with new epochs{target.tell_files()}")


class _Copied(NamedTuple):
    """A store that is copied, or copied to."""

    # None if it is not in files.
    files: Files | None
    # Not opened.
    open: Callable[[], WholeStore]
    # Identifies the store, and is shown to operators.
    name: str
    shown: str
    # A server locks these.
    paths: Sequence[Path]

    def __str__(self) -> str:
        return self.shown

    def tell_files(self) -> str:
        """Return the end of a line that tells in how many files it is."""
        return "" if self.files is None else f", in {count(self.files.count, 'file')}"

    def lock(self, locks: ExitStack) -> None:
        """Lock the files against servers. Raises StoreError."""
        for path in self.paths:
            try:
                locks.enter_context(closing(StoreLock(path)))
            except (StoreError, OSError) as error:
                raise StoreError(f"cannot lock the store {path}: {explain(error, path)}") from error


def _find(store: str, find_files: Callable[[str], Files]) -> _Copied:
    """Return a store by its path or URL; `find_files` finds it if it is in files."""
    if (shared := open_shared(store)) is not None:
        # The name leaves out the password, which is no part of the store.
        shown, folder = hide_password(store), find_folder(store)
        if folder is not None:
            return _Copied(None, lambda: shared, str(folder.resolve()), shown, [folder / "threads"])
        return _Copied(None, lambda: shared, shown, shown, [])
    files = find_files(store)
    return _Copied(files, lambda: open_files(files), str(files.path.resolve()), str(files.path), files.paths)


async def _copy(source: _Copied, target: _Copied) -> int:
    """Copy a store that no server may write to, and return the number of threads. Raises StoreError."""
    with ExitStack() as locks:
        source.lock(locks)
        # An interrupted copy goes on later; at the end, closing the target writes everything to its files.
        async with source.open().reader() as original, target.open() as copied:
            for store in (original, copied):
                await check_unused(store)
            return await copy_store(original, copied, source.name, _show)


async def _export(source: _Copied, put: Callable[[bytes], object]) -> int:
    """Export a store that no server may write to, and return the number of threads. Raises StoreError and OSError."""
    with ExitStack() as locks:
        source.lock(locks)
        async with source.open().reader() as store:
            await check_unused(store)
            return await export_store(store, put, _show)


async def _import(source: ExportedStore, target: _Copied) -> int:
    """Store a file in a store that no server has open, and return the number of threads. Raises StoreError."""
    async with target.open() as store:
        await check_unused(store)
        name = f"the export {source.checksum[:16]}"
        return await copy_threads(source, source.keys, store, name, _show, has_new_epochs=True)


def _run(work: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end."""
    try:
        return asyncio.run(work)
    except PlaitError as error:
        fail(operator_message(error))
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on")


def _show(done: int, total: int) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        filled = _WIDTH * done // total if total else _WIDTH
        end = "\n" if done == total else ""
        print(f"\r[{'#' * filled:.<{_WIDTH}}] {done} of {total}", end=end, file=sys.stderr, flush=True)
