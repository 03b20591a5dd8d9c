"""Limits how many bytes of a stream are on their way."""

import asyncio
from typing import Final

__all__ = ["PIECE", "SizeCounter", "Window"]

_WINDOW: Final = 64 * 1024
PIECE: Final = _WINDOW // 2
"""The most bytes that a sender sends at once, and after which a receiver makes room for more."""


class Window:
    """The room of a sender at the receiver, where `sent` bytes are already; it waits for room and for the link."""

    def __init__(self, sent: int = 0) -> None:
        self._room = _WINDOW - sent
        self._is_link_full = False
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    async def take(self, size: int) -> None:
        """Wait until a piece can be sent; return at once if the receiver is gone."""
        while (self._room < size or self._is_link_full) and not self._is_closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._room -= size

    def give(self, size: int) -> None:
        """Make room, as the receiver has used something up."""
        self._room += size
        self._wake()

    def set_link_full(self, *, is_full: bool) -> None:
        """Wait while the link is full."""
        self._is_link_full = is_full
        self._wake()

    def close(self) -> None:
        """Wait no more."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SizeCounter:
    """Counts what a receiver has used up, and tells the sender now and then."""

    def __init__(self) -> None:
        self._size = 0

    def use(self, size: int) -> int:
        """Count bytes; return how many the sender is to be told of, most often none."""
        self._size += size
        if self._size < PIECE:
            return 0
        told, self._size = self._size, 0
        return told
