"""Opens stores by URL."""

from typing import cast
from urllib.parse import parse_qsl, unquote, urlsplit

from plait.store.memory import MemoryStore
from plait.store.protocol import Store
from plait.store.sqlite import SqliteStore, Synchronous

__all__ = ["open_store"]


def open_store(url: str) -> Store:
    """Return the store for a URL; the caller enters it to open it.

    The URLs are `sqlite:///relative.db`, `sqlite:////absolute.db` (with `?synchronous=normal` for less than full
    durability), and `memory://`. Raises ValueError for any other.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "memory" and not parts.netloc and parts.path in ("", "/") and not options:
        return MemoryStore()
    if parts.scheme == "sqlite" and not parts.netloc and len(parts.path) > 1:
        synchronous = options.pop("synchronous", "full").upper()
        if synchronous in ("FULL", "NORMAL") and not options:
            return SqliteStore(unquote(parts.path[1:]), synchronous=cast(Synchronous, synchronous))
    raise ValueError(
        f"unknown store URL {url!r}; use sqlite:///game.db (relative), sqlite:////data/game.db (absolute) or memory://"
    )
