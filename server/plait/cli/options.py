"""Arguments that several commands share, and how a command fails."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cyclopts import Parameter

from plait.actor.client_types import NoTypes
from plait.errors import PlaitError, operator_message
from plait.settings import SettingError
from plait.spelling import hide_password
from plait.store.engines import find_engine
from plait.store.json_files.url import FileUrl
from plait.store.sqlite.files import Files
from plait.store.urls import find_files, open_engine, open_files
from plait.store.whole import WholeStore

__all__ = [
    "LoadError",
    "StoreName",
    "Target",
    "fail",
    "find_existing",
    "find_folder",
    "find_store",
    "give_up",
    "open_shared",
    "show_store",
]

Target = Annotated[str, Parameter(help="The app, as module:attribute.")]
StoreName = Annotated[str, Parameter(help="The store's SQLite file, or its URL.", env_var="PLAIT_STORE")]


class LoadError(Exception):
    """The app cannot be loaded; the message says in one line why, and what to do.

    `trace` is the part of the traceback in the app's own code, if there is one.
    """

    def __init__(self, message: str, *, trace: str = "") -> None:
        super().__init__(" ".join(message.split("\n")))
        self.trace = trace


def show_store(show: Callable[[WholeStore], Coroutine[Any, Any, None]], store: str) -> None:
    """Run `show` on a store, which a server may have open."""
    shared = open_shared(store)
    found = open_files(find_existing(store), readonly=True) if shared is None else shared.reader()
    try:
        asyncio.run(show(found))
    except PlaitError as error:
        fail(operator_message(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_shared(store: str) -> WholeStore | None:
    """Return the store of a URL, not opened; None for the URL of a file."""
    try:
        return open_engine(engine, store) if (engine := find_engine(store)) is not None else None
    except ValueError as error:
        fail(str(error))


def find_folder(store: str) -> Path | None:
    """Return the folder of a store of JSON files, given as its URL; None for any other store."""
    engine = find_engine(store)
    try:
        return FileUrl.parse(store).folder if engine is not None and engine.url is FileUrl else None
    except ValueError as error:
        fail(str(error))


def find_store(store: str) -> Files:
    """Return the files of a store, given as a path or a URL."""
    if (engine := find_engine(store)) is not None:
        fail(f"{hide_password(store)} is not a file: check and back it up with {engine.backup}")
    try:
        found = find_files(store) if "://" in store else Files.find(Path(store))
    except (ValueError, PlaitError) as error:
        fail(str(error))
    if found is None:
        fail(f"{hide_password(store)} is not a store file: use a path, or sqlite:///path")
    return found


def find_existing(store: str) -> Files:
    """Return the files of a store, which must exist."""
    files = find_store(store)
    if not any(path.is_file() for path in files.paths):
        fail(f"there is no store {store}")
    return files


def give_up(error: LoadError | NoTypes | PlaitError | SettingError) -> NoReturn:
    """Print the app's part of the traceback and the error, and exit."""
    if isinstance(error, LoadError):
        sys.stderr.write(error.trace)
    fail(operator_message(error))


def fail(message: str) -> NoReturn:
    """Print an error in one line, and exit."""
    print("plait:", " ".join(message.split("\n")), file=sys.stderr)
    raise SystemExit(1)
