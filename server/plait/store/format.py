"""Tells what to do with a store that another build of plait has written."""

from plait.errors import StoreError

__all__ = ["check_format"]


def check_format(found: int, known: int, what: str = "") -> None:
    """Raise StoreError unless the format of a store, or of its rows of a kind, is the known one."""
    formats = f"({what}in format {found}; this plait reads format {known})"
    if found > known:
        raise StoreError(f"it was written by a newer plait {formats}: install the newer plait, or restore a backup")
    if found < known:
        raise StoreError(
            f"it was written by an earlier build of plait {formats}: make a new store of it with `plait store export` "
            "of that build and `plait store import` of this one; if that build has no `store export`, copy its "
            "threads, without their histories and kv, with `plait threads export`, and `plait threads import` of this "
            "build"
        )
