"""The messages of a thread in a client: reading older ones, and sending."""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import convert

from plait_client.live import Live
from plait_client.room_part import PAGE, RoomPart, raise_refusal
from plait_schemas.conversation import Item, PendingApproval

__all__ = ["RoomMessages"]


class RoomMessages(RoomPart[Item]):
    """The messages of one part of a thread: the history, the pending messages, and those being sent here.

    `Room.messages` returns it. `items` has the newest ones; `older` reads further pages.
    """

    def __init__(self, live: Live, part: str, call: Callable[..., Awaitable[Any]]) -> None:
        self._conversation = live.session.conversations.of(part)
        super().__init__(live, self._conversation)
        # The `call` of the room.
        self._call = call

    def of(self, part: str) -> "RoomMessages":
        """Return the messages that the thread's class declares by another name."""
        return RoomMessages(self._live, part, self._call)

    @property
    def has_more(self) -> bool:
        """Whether there are messages older than those in `items`."""
        return self._conversation.has_more

    @property
    def approvals(self) -> Sequence[PendingApproval]:
        """The calls of tools that wait for a person, in order; `on_change` tells when they change."""
        self._open(PAGE)
        return self._conversation.approvals

    async def approve(self, call: str, approved: bool, note: str = "") -> bool:
        """Approve a call by its id, or refuse it, with a note for the model; return whether it has waited.

        The first answer counts. Raises what `Room.call` raises; after Disconnected, it may be repeated.
        """
        return bool(await self._call(f"{self._part}:approve", call, approved, note))

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
        raise_refusal(self._conversation.older_error)
        return self.has_more

    def send(self, content: str, *, attachments: Iterable[Mapping[str, Any]] = ()) -> Awaitable[str]:
        """Send a message, which is shown at once; without a connection, it is sent when there is one.

        Returns an awaitable, which need not be awaited: the id of the message when it is durable. Awaiting it raises
        Refused, or Unanswered when the client is closed before that. Raises TooLarge.
        """
        self._live.check_open()
        message = self._live.session.post(self._part, content, secrets.token_hex(12), attachments)
        outcome = self._live.deliveries.wait(message)
        self._live.tell_soon()
        return outcome

    async def regenerate(self, id: str | None = None) -> bool:
        """Have the agent answer a question again, beside its other answers; without an id, the last question.

        `id` is that of the question or of an answer; if it is hidden, another client was faster, and the result is
        False. Raises what `Room.call` raises.
        """
        done: bool = await self._call(f"{self._part}:regenerate", id)
        return done

    async def edit(self, id: str, content: str) -> str:
        """Ask a question in other words, beside it and with the same attachments, and return the id of the new message.

        Raises what `Room.call` raises.
        """
        edited: str = await self._call(f"{self._part}:edit", id, content)
        return edited

    async def switch(self, id: str) -> bool:
        """Show the newest branch with a message; return whether it was hidden. Raises what `Room.call` raises."""
        done: bool = await self._call(f"{self._part}:switch", id)
        return done

    async def siblings(self, id: str) -> list[Item]:
        """Return the versions of a question, or the answers to it, oldest first. Raises what `Room.call` raises."""
        return convert(await self._call(f"{self._part}:siblings", id), list[Item])

    async def mark_read(self) -> None:
        """Note that the user has read all messages, on all devices. Raises what `Room.call` raises."""
        await self._call(f"{self._part}:read")
