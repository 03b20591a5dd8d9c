"""Counts the files that clients send at once."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from plait.errors import TooMany

__all__ = ["MOST_UPLOADS", "Uploads"]

MOST_UPLOADS: Final = 4
"""The maximum number of files that one principal, or one address without a principal, sends at once."""


class Uploads:
    """The uploads under way in this process, by party."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._counts: dict[Hashable, int] = {}

    @contextmanager
    def enter(self, party: Hashable) -> Iterator[None]:
        """Count an upload during the block. Raises TooMany if there are too many."""
        count = self._counts.get(party, 0)
        if self._most is not None and count >= self._most:
            raise TooMany(f"{self._most} files are being uploaded already; try again later", retry_after=1.0)
        self._counts[party] = count + 1
        try:
            yield
        finally:
            self._counts[party] -= 1
            if not self._counts[party]:
                del self._counts[party]
