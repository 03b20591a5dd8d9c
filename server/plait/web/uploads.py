"""The files that clients send: how many at once, and bodies that must be whole."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import Final

from plait.errors import TooMany

__all__ = ["MOST_UPLOADS", "Uploads", "read_whole"]

MOST_UPLOADS: Final = 4
"""The maximum number of files that one principal, or one address without a principal, sends at once."""

# Bytes of a body that are kept in memory, or read at once.
_IN_MEMORY: Final = 1024 * 1024


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


async def read_whole(body: AsyncIterator[bytes], begin: Callable[[], Awaitable[None]]) -> AsyncGenerator[bytes]:
    """Yield a body after all of it has arrived, a large one in a temporary file, and `begin` has returned."""
    with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        async for data in body:
            await asyncio.to_thread(file.write, data)
        await begin()
        file.seek(0)
        while data := await asyncio.to_thread(file.read, _IN_MEMORY):
            yield data
