"""One part of a thread without asyncio."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from plait_client.listeners import Remove
from plait_client.loop import LoopThread
from plait_client.room_part import PAGE, RoomPart

__all__ = ["SyncPart", "Wait"]

T = TypeVar("T")
Wait = Callable[[Callable[[], Awaitable[Any]], str], Any]


class SyncPart(Generic[T]):
    """One part of a thread, as its clients see it; each method returns when it is done."""

    def __init__(self, part: RoomPart[T], loop: LoopThread, wait: Wait) -> None:
        self._part = part
        self._loop = loop
        self._wait = wait

    @property
    def items(self) -> Sequence[T]:
        """See RoomPart."""
        return self._loop.do(lambda: self._part.items)

    @property
    def is_ready(self) -> bool:
        """See RoomPart."""
        return self._loop.do(lambda: self._part.is_ready)

    def open(self, limit: int = PAGE) -> Sequence[T]:
        """Wait for the first page, and return `items`. Raises Refused."""
        found: Sequence[T] = self._wait(lambda: self._part.open(limit), "no page")
        return found

    def on_change(self, callback: Callable[[Sequence[T]], object]) -> Remove:
        """Call `callback` with `items` whenever they have changed; return a function that ends that."""
        return self._loop.do(lambda: self._part.on_change(callback))

    def close(self) -> None:
        """See RoomPart."""
        self._loop.do(self._part.close)
