"""What clients see of messages."""

from collections.abc import Callable

from plait.parts.messages.frames import Frame, Missed
from plait.parts.messages.listing import Listing
from plait.parts.messages.message import Page
from plait.parts.messages.state import State
from plait.parts.messages.writer import Writer

__all__ = ["Feed"]

Viewer = Callable[[list[Frame]], None]

_ANY_DEPTH = 1 << 30


class Feed:
    """Tells clients of the messages of one thread, as far as they may see them.

    A client that comes watches first, holds the frames back until it has read what it missed or the newest messages,
    and drops those up to the revision of that, except chunks.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def watch(self, viewer: Viewer) -> Callable[[], None]:
        """Call a function with what clients are told, when that is durable, in order; return how to stop that."""
        self._writer.viewers.append(viewer)
        return lambda: self._writer.viewers.remove(viewer)

    async def since(self, revision: int) -> Missed | None:
        """Return what clients were told after a revision; None if they must begin with the newest messages."""
        return await self._writer.history.since(await self._find_durable(), revision)

    async def newest(self, limit: int, before: int | None = None) -> tuple[int, Page]:
        """Return the newest messages that clients may see, also nested ones, and their revision."""
        state = await self._find_durable()
        listing = Listing(self._writer, None, statuses="cpsf", is_silent=False, max_depth=_ANY_DEPTH)
        return state.head.revision, await listing.read(limit, 0, None, before=before)

    async def _find_durable(self) -> State:
        """Return the state, when that is durable. Raises StoreError."""
        while True:
            state, losses = self._writer.state, self._writer.losses
            await self._writer.actor.state.wait_until_stored()
            if losses == self._writer.losses:
                return state
