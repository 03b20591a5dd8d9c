"""The messages of a thread without asyncio."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plait_client.loop import LoopThread
from plait_client.room_messages import RoomMessages
from plait_client.room_part import PAGE
from plait_client.sync_part import SyncPart, Wait
from plait_schemas.conversation import Item, PendingApproval

__all__ = ["SyncMessages"]


class SyncMessages(SyncPart[Item]):
    """The messages of one part of a thread; each method returns when it is done. `SyncRoom.messages` returns it."""

    def __init__(self, messages: RoomMessages, loop: LoopThread, wait: Wait) -> None:
        super().__init__(messages, loop, wait)
        self._messages = messages

    def of(self, part: str) -> "SyncMessages":
        """Return the messages that the thread's class declares by another name."""
        return SyncMessages(self._loop.do(lambda: self._messages.of(part)), self._loop, self._wait)

    @property
    def has_more(self) -> bool:
        """See RoomMessages."""
        return self._loop.do(lambda: self._messages.has_more)

    @property
    def approvals(self) -> Sequence[PendingApproval]:
        """See RoomMessages."""
        return self._loop.do(lambda: self._messages.approvals)

    def approve(self, call: str, approved: bool, note: str = "") -> bool:
        """Approve a call by its id, or refuse it; return whether it has waited. Raises what `SyncRoom.call` raises."""
        has_waited: bool = self._wait(lambda: self._messages.approve(call, approved, note), "no answer to the approval")
        return has_waited

    def older(self, limit: int = PAGE) -> bool:
        """Add older messages to `items`; return whether there are more. Raises Refused."""
        has_more: bool = self._wait(lambda: self._messages.older(limit), "no older messages")
        return has_more

    def send(self, content: str, *, attachments: Iterable[Mapping[str, Any]] = ()) -> str:
        """Send a message, and return its id when it is durable. Raises Refused, TooLarge."""
        id: str = self._wait(lambda: self._messages.send(content, attachments=attachments), "no answer to the message")
        return id

    def regenerate(self, id: str | None = None) -> bool:
        """See RoomMessages."""
        done: bool = self._wait(lambda: self._messages.regenerate(id), "no answer about the branch")
        return done

    def edit(self, id: str, content: str) -> str:
        """See RoomMessages."""
        edited: str = self._wait(lambda: self._messages.edit(id, content), "no answer about the branch")
        return edited

    def switch(self, id: str) -> bool:
        """See RoomMessages."""
        done: bool = self._wait(lambda: self._messages.switch(id), "no answer about the branch")
        return done

    def siblings(self, id: str) -> list[Item]:
        """See RoomMessages."""
        found: list[Item] = self._wait(lambda: self._messages.siblings(id), "no answer about the branch")
        return found

    def mark_read(self) -> None:
        """See RoomMessages."""
        self._wait(self._messages.mark_read, "no answer about the messages")
