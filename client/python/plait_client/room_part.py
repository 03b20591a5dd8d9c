"""One part of a thread in a client: opening it, its items, and callbacks."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Generic, TypeVar

from plait_client.errors import Closed, Refused
from plait_client.listeners import Remove
from plait_client.live import Live
from plait_client.opened_part import OpenedPart
from plait_schemas.messages import Unopened

__all__ = ["PAGE", "RoomPart", "raise_refusal"]

PAGE: Final = 50
"""The number of items of a page by default."""

T = TypeVar("T")


class RoomPart(Generic[T]):
    """One part of a thread, as its clients see it, which is opened on first use.

    As an async iterator, it yields the shown items, at first and after each change, until the client is closed.
    """

    def __init__(self, live: Live, opened: OpenedPart) -> None:
        self._live = live
        self._opened = opened
        self._part = opened.part

    @property
    def items(self) -> Sequence[T]:
        """The shown items, oldest first; empty until the first page has come."""
        self._open(PAGE)
        return self._live.session.conversations.show(self._part)

    @property
    def is_ready(self) -> bool:
        """Whether the first page has come."""
        return self._opened.is_ready

    def on_change(self, callback: Callable[[Sequence[T]], object]) -> Remove:
        """Call `callback` with `items` whenever they have changed; return a function that ends this."""
        self._open(PAGE)
        return self._live.listeners.add(("part", self._part), callback)

    async def open(self, limit: int = PAGE) -> Sequence[T]:
        """Wait for the first page, of `limit` items if it was not opened before, and return `items`.

        Raises Refused if the part cannot be opened.
        """
        self._open(limit)
        while not self.is_ready:
            self._check()
            await self._live.next_news()
        return self.items

    def close(self) -> None:
        """Stop following changes, and forget all items except those that are being sent."""
        self._opened.close()
        self._flush()

    async def __aiter__(self) -> AsyncIterator[Sequence[T]]:
        try:
            shown = await self.open()
            while True:
                yield shown
                while (now := self.items) == shown:
                    self._check()
                    await self._live.next_news()
                shown = now
        except Closed:
            if not self._live.is_closed:
                raise

    # Inside

    def _open(self, limit: int) -> None:
        if not self._opened.is_wanted:
            self._opened.open(limit)
            self._flush()

    def _flush(self) -> None:
        self._live.session.flush()
        self._live.carrier.wake()

    def _check(self) -> None:
        """Raise the reason why the part cannot be opened."""
        raise_refusal(self._opened.error)


def raise_refusal(error: Unopened | None) -> None:
    """Raise Refused for a part or a page that cannot be opened."""
    if error is not None:
        raise Refused(error.code, error.message)
