"""The messages of a thread as a client works with them: what is shown, older ones, sending."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from plait_client.errors import Closed, Refused
from plait_client.listeners import Remove
from plait_client.live import Live
from plait_schemas.conversation import Item
from plait_schemas.messages import Unopened

__all__ = ["RoomMessages"]

PAGE: Final = 50


class RoomMessages:
    """The messages of one part of a thread, which are opened on first use. `Room.messages` makes it.

    As an async iterator it yields what is shown, at first and whenever that has changed, until the client is closed.
    """

    def __init__(self, live: Live, part: str) -> None:
        self._live = live
        self._part = part
        self._conversation = live.session.conversations.of(part)

    def of(self, part: str) -> "RoomMessages":
        """Return the messages that the thread's class declares by another name."""
        return RoomMessages(self._live, part)

    # The shown messages

    @property
    def items(self) -> Sequence[Item]:
        """The messages, oldest first: the history, what is pending, and what is being sent here.

        Empty until the first page has come. Further pages are read by `older`.
        """
        self._open(PAGE)
        return self._live.session.conversations.show(self._part)

    @property
    def is_ready(self) -> bool:
        """Whether the first page has come."""
        return self._conversation.is_ready

    @property
    def has_more(self) -> bool:
        """Whether there are older messages than those in `items`."""
        return self._conversation.has_more

    def on_change(self, callback: Callable[[Sequence[Item]], object]) -> Remove:
        """Call `callback` with `items` whenever they have changed; return a function that ends that."""
        self._open(PAGE)
        return self._live.listeners.add(("messages", self._part), callback)

    async def open(self, limit: int = PAGE) -> Sequence[Item]:
        """Wait for the first page, of `limit` messages if it was not opened before, and return `items`.

        Raises Refused where the part cannot be opened.
        """
        self._open(limit)
        while not self.is_ready:
            self._check()
            await self._live.next_news()
        return self.items

    async def older(self, limit: int = PAGE) -> bool:
        """Add older messages to `items`, if there are any; return whether there are more. Raises Refused."""
        await self.open()
        self._live.check_open()
        self._conversation.load_older(limit)
        self._flush()
        while self._conversation.is_loading:
            self._check()
            await self._live.next_news()
        self._check()
        _raise(self._conversation.older_error)
        return self.has_more

    def close(self) -> None:
        """Be told of no more changes, and forget all messages but those that are being sent."""
        self._conversation.close()
        self._flush()

    async def __aiter__(self) -> AsyncIterator[Sequence[Item]]:
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

    # Sending

    def send(self, content: str, *, attachments: Iterable[Mapping[str, Any]] = ()) -> Awaitable[str]:
        """Send a message, which is shown at once; while there is no connection, when there is one.

        Returns what can be awaited, and need not be: the id of the message when it is durable. It raises Refused, or
        Unanswered when the client is closed before that. Raises TooLarge.
        """
        self._live.check_open()
        message = self._live.session.post(self._part, content, secrets.token_hex(12), attachments)
        outcome = self._live.deliveries.wait(message)
        self._live.tell_soon()
        return outcome

    # Inside

    def _open(self, limit: int) -> None:
        if not self._conversation.is_wanted:
            self._conversation.open(limit)
            self._flush()

    def _flush(self) -> None:
        self._live.session.flush()
        self._live.carrier.wake()

    def _check(self) -> None:
        """Raise why the part cannot be opened."""
        _raise(self._conversation.error)


def _raise(error: Unopened | None) -> None:
    if error is not None:
        raise Refused(error.code, error.message)
