"""Tells what to do with a store that another build of plait has written."""

from plait.errors import StoreError

__all__ = ["check_format"]


def check_format(found: int, known: int) -> None:
    """Raise StoreError unless a store's format is the known one."""
    formats = f"(in format {found}; this plait reads format {known})"
    if found > known:
        raise StoreError(f"it was written by a newer plait {formats}: install the newer plait, or restore a backup")
    if found < known:
        raise StoreError(
            f"it was written by an earlier build of plait {formats}: copy its threads, without their histories and kv, "
            "with `plait threads list` and `plait threads export` of that build, and `plait threads import` of this "
            "one into another store"
        )
