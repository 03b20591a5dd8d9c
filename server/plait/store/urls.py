"""Opens stores by URL."""

from collections.abc import Collection
from pathlib import Path
from typing import cast
from urllib.parse import parse_qsl, unquote, urlsplit

from plait.errors import StoreError
from plait.spelling import hide_password
from plait.store.engines import ENGINES, Engine, find_engine
from plait.store.memory import MemoryStore
from plait.store.protocol import Store
from plait.store.sharded import ShardedStore
from plait.store.sqlite.files import MOST_FILES, Files
from plait.store.sqlite.store import SqliteStore, Synchronous
from plait.store.whole import WholeStore

__all__ = ["find_files", "open_engine", "open_files", "open_share", "open_shares", "open_store"]


def open_store(url: str) -> Store:
    """Return the store for a URL; the caller enters it to open it.

    The URLs are `sqlite:///relative.db`, `sqlite:////absolute.db`, and `memory://`. The options of the first two are
    `?synchronous=normal` for less than full durability, and `?files=4` for a new store of several files. `engines.py`
    has those of engines. Raises ValueError for any other, and StoreError if the store has another count of files.
    """
    if (engine := find_engine(url)) is not None:
        return open_engine(engine, url)
    parts = urlsplit(url)
    if parts.scheme == "memory" and not parts.netloc and parts.path in ("", "/") and not parts.query:
        return MemoryStore()
    found = _read_url(url)
    if found is None:
        raise _make_error(url)
    path, count, synchronous = found
    return open_files(Files.find(path, count), synchronous=synchronous)


def open_share(url: str, number: int, count: int, *, patience: float = 0.0) -> tuple[Store, int]:
    """Return the part of a URL's store that worker `number` of `count` owns, and how many files the store has.

    A new store gets a file for each worker, which `open_shares` makes; a store in memory is divided as if it had as
    many. Opening the part waits `patience` seconds for a former process of the worker to close it. Raises ValueError
    for an unknown URL, and StoreError if the store has fewer files than there are workers.
    """
    if (found := _find_shares(url, count)) is None:
        return open_store(url), count
    files, synchronous = found
    numbers = range(number, files.count, count)
    return open_files(files, synchronous=synchronous, numbers=numbers, patience=patience), files.count


def open_shares(url: str, count: int) -> Store:
    """Return the whole store whose parts `count` workers own, for use before any of them opens its part.

    Opening it creates the files of a new store; if they are there, it only reads. Raises as `open_share` does.
    """
    if (found := _find_shares(url, count)) is None:
        return open_store(url)
    files, synchronous = found
    return open_files(files, synchronous=synchronous, readonly=files.are_there)


def open_engine(engine: Engine, url: str) -> WholeStore:
    """Return the store in an engine for a URL; the caller enters it to open it. Raises ValueError."""
    found = engine.url.parse(url)
    store: WholeStore = engine.load(engine.store)(found)
    return store


def find_files(url: str) -> Files | None:
    """Return the files of a SQLite store's URL; None for the URL of another store. Raises ValueError and StoreError."""
    found = _read_url(url)
    return None if found is None else Files.find(*found[:2])


def open_files(
    files: Files,
    *,
    synchronous: Synchronous = "FULL",
    readonly: bool = False,
    numbers: Collection[int] | None = None,
    patience: float = 0.0,
) -> SqliteStore | ShardedStore:
    """Return the store of these files, or of those that have one of the `numbers`; the caller enters it to open it."""
    stores = {
        place.number: SqliteStore(path, synchronous=synchronous, readonly=readonly, place=place, patience=patience)
        for path, place in files.places
        if numbers is None or place.number in numbers
    }
    return stores[0] if files.count == 1 else ShardedStore(stores, files.count)


def _find_shares(url: str, count: int) -> tuple[Files, Synchronous] | None:
    """Return the files of a store for `count` workers, and its durability; None if it has no files."""
    if find_engine(url) is not None:
        raise StoreError(f"{hide_password(url)} is served by one process: start without workers")
    found = _read_url(url)
    if found is None:
        return None
    path, asked, synchronous = found
    files = Files.find(path, asked)
    if not files.paths[0].exists() and asked is None:
        files = files.at_count(count)
    if files.count < count:
        new = path.with_name(f"{path.stem}-{count}{path.suffix}")
        raise StoreError(
            f"the store {path} has {files.count} file{'s' if files.count > 1 else ''}, and each of {count} workers "
            f"needs one: start fewer workers, or copy it: `plait store copy {path} 'sqlite:///{new}?files={count}'`"
        )
    return files, synchronous


def _read_url(url: str) -> tuple[Path, int | None, Synchronous] | None:
    """Return the path, the count of files if there is one, and the durability in a SQLite store's URL."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    synchronous, files = options.pop("synchronous", "full").upper(), options.pop("files", None)
    if parts.scheme != "sqlite" or parts.netloc or len(parts.path) < 2 or options:
        return None
    if synchronous not in ("FULL", "NORMAL"):
        return None
    if files is not None and not (files.isascii() and files.isdigit() and 1 <= int(files) <= MOST_FILES):
        raise ValueError(f"{url!r}: files must be a whole number from 1 to {MOST_FILES}, not {files!r}")
    return Path(unquote(parts.path[1:])), None if files is None else int(files), cast(Synchronous, synchronous)


def _make_error(url: str) -> ValueError:
    return ValueError(
        f"unknown store URL {hide_password(url)!r}; use sqlite:///game.db (relative), sqlite:////data/game.db "
        f"(absolute), {', '.join(engine.example for engine in ENGINES)} or memory://"
    )
