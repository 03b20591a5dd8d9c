"""The cells that a shared engine gives to the directory of a cluster: small values, each under compare-and-set."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

__all__ = ["NO_CELL", "Cell", "Cells", "Reading"]


class Cell(NamedTuple):
    """The value of a cell. A removed one is empty while the engine has its revision, and not there afterwards."""

    # Changes with each swap, and is never given out twice on one timeline; 0 of a cell that is not there.
    revision: int
    value: bytes


NO_CELL: Final = Cell(0, b"")
"""A cell that is not there."""


class Reading(NamedTuple):
    """All cells at one moment, by name."""

    # Changes if the engine may have lost swaps; epochs begin above it. So it grows by more than there are epochs.
    timeline: int
    cells: Mapping[str, Cell]
    # Where the engine goes on from here, if it counts its swaps.
    position: int = 0


class Cells(AbstractAsyncContextManager["Cells"], Protocol):
    """One connection to the cells of a store's URL. Entering it connects, and makes what they need, or later calls do.

    It shares with an open store what is known of the server: what one of them learns holds for both.

    Every method raises StoreError, and a call that is cancelled breaks nothing: the next one connects again if it must.
    """

    async def confirm(self) -> None:
        """Check the server, its clock and what it promises, as a new connection does.

        Raises Unreachable if it may not be used, and Replaced if another one serves the store by now.
        """
        ...

    async def read(self, former: Reading | None = None) -> Reading:
        """Return all cells as they are at one moment of this call.

        With a former reading, only the cells that have changed since are fetched, unless the timeline is another one,
        or cells have been removed.
        """
        ...

    async def swap(self, cell: str, revision: int, value: bytes | None, *, timeline: int) -> int | None:
        """Replace a cell of this revision, and return the new one, when that is durable. None removes the cell.

        Returns None, and does nothing, if the cell has another revision, or the engine is on another timeline.
        """
        ...
