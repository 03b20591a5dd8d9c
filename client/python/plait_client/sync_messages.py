"""The messages of a thread without asyncio."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from plait_client.listeners import Remove
from plait_client.loop import LoopThread
from plait_client.room_messages import RoomMessages
from plait_schemas.conversation import Item

__all__ = ["SyncMessages"]

_PAGE: Final = 50
Wait = Callable[[Callable[[], Awaitable[Any]], str], Any]


class SyncMessages:
    """The messages of one part of a thread; each method returns when it is done. `SyncRoom.messages` makes it."""

    def __init__(self, messages: RoomMessages, loop: LoopThread, wait: Wait) -> None:
        self._messages = messages
        self._loop = loop
        self._wait = wait

    def of(self, part: str) -> "SyncMessages":
        """Return the messages that the thread's class declares by another name."""
        return SyncMessages(self._loop.do(lambda: self._messages.of(part)), self._loop, self._wait)

    @property
    def items(self) -> Sequence[Item]:
        """See RoomMessages."""
        return self._loop.do(lambda: self._messages.items)

    @property
    def is_ready(self) -> bool:
        """See RoomMessages."""
        return self._loop.do(lambda: self._messages.is_ready)

    @property
    def has_more(self) -> bool:
        """See RoomMessages."""
        return self._loop.do(lambda: self._messages.has_more)

    def open(self, limit: int = _PAGE) -> Sequence[Item]:
        """Wait for the first page, and return `items`. Raises Refused."""
        found: Sequence[Item] = self._wait(lambda: self._messages.open(limit), "no messages")
        return found

    def older(self, limit: int = _PAGE) -> bool:
        """Add older messages to `items`; return whether there are more. Raises Refused."""
        has_more: bool = self._wait(lambda: self._messages.older(limit), "no older messages")
        return has_more

    def send(self, content: str, *, attachments: Iterable[Mapping[str, Any]] = ()) -> str:
        """Send a message, and return its id when it is durable. Raises Refused, TooLarge."""
        id: str = self._wait(lambda: self._messages.send(content, attachments=attachments), "no answer to the message")
        return id

    def on_change(self, callback: Callable[[Sequence[Item]], object]) -> Remove:
        """Call `callback` with `items` whenever they have changed; return a function that ends that."""
        return self._loop.do(lambda: self._messages.on_change(callback))

    def close(self) -> None:
        """See RoomMessages."""
        self._loop.do(self._messages.close)
