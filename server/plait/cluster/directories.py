"""Finds the directory of the engine of a store."""

from functools import partial

from plait.cluster.cell_directory import CellDirectory
from plait.cluster.directory import Directory
from plait.store.engines import ENGINES
from plait.store.protocol import Store

__all__ = ["find_directory"]


def find_directory(store: Store) -> Directory | None:
    """Return the directory that the engine of a shared store keeps; None if it keeps none."""
    url = getattr(store, "url", None)
    shared = getattr(store, "engine", None)
    engine = next((each for each in ENGINES if each.is_shared and isinstance(url, each.url)), None)
    return None if engine is None else CellDirectory(partial(engine.load(engine.cells), engine=shared), url)
