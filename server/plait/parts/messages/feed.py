"""The messages that clients see."""

from collections.abc import Callable

from plait.parts.messages.frames import Frame, Missed
from plait.parts.messages.message import Page, measure_message
from plait.parts.messages.message_writer import MessageWriter
from plait.parts.messages.reading import MessageListing
from plait.parts.messages.state import State

__all__ = ["Feed"]

Viewer = Callable[[list[Frame]], None]

_ANY_DEPTH = 1 << 30


class Feed:
    """Sends the messages of one thread to clients, without silent ones.

    A client that joins calls `watch` first, and holds back frames until it has read the missed ones or the newest
    messages; it then drops held frames up to the revision of these, except chunks.
    """

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer

    def watch(self, viewer: Viewer) -> Callable[[], None]:
        """Call a function with the frames for clients, in order, when durable; return a function that ends this."""
        self._writer.viewers.append(viewer)
        return lambda: self._writer.viewers.remove(viewer)

    async def since(self, revision: int) -> Missed | None:
        """Return the frames after a revision; None if a client must begin with the newest messages."""
        return await self._writer.history.since(await self._find_durable(), revision)

    async def newest(self, limit: int, before: int | None = None, *, size: int | None = None) -> tuple[int, Page]:
        """Return the newest messages that clients may see, including nested ones, and their revision.

        What is pending comes in addition to `limit`, and to `size` in bytes.
        """
        state = await self._find_durable()
        listing = MessageListing(
            self._writer, None, statuses="cpsf", is_silent=False, max_depth=_ANY_DEPTH, state=state
        )
        if before is None:
            limit += len(state.queue)
            queued = sum(map(measure_message, state.queue))
            size = None if size is None else max(size, self._writer.actor.limits.record) + queued
        return state.head.revision, await listing.read(limit, 0, None, before=before, size=size)

    async def _find_durable(self) -> State:
        """Return the state, when that is durable. Raises StoreError."""
        while True:
            state, losses = self._writer.state, self._writer.losses
            await self._writer.actor.state.wait_until_stored()
            if losses == self._writer.losses:
                return state
