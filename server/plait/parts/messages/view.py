"""The messages of a thread as a run sees them, with its own writes."""

from collections.abc import Collection, Iterable

from plait.parts.messages.message import Message
from plait.parts.messages.state import count_key

__all__ = ["View"]


class View:
    """The changes of a run's operations to the stored messages."""

    def __init__(self) -> None:
        # The changed and added messages of the history, by position and by id, and the ids of the removed ones.
        self.rows: dict[int, Message] = {}
        self.ids: dict[str, Message] = {}
        self.removed: set[str] = set()
        # The changes of the numbers of messages in the history, by `count_key`.
        self.counts: dict[str, int] = {}
        # The new positions of messages that were taken from the queue, by their old ones.
        self.taken: dict[int, int] = {}
        # The messages that were added to the queue, and the changed messages in it, by position.
        self.queued: list[Message] = []
        self.edited: dict[int, Message] = {}

    def show(self, message: Message) -> None:
        """Add or replace a message of the history."""
        self.rows[message.position] = self.ids[message.id] = message
        self._count(message, 1)

    def hide(self, message: Message) -> None:
        """Remove a message of the history."""
        self.rows.pop(message.position, None)
        self.ids.pop(message.id, None)
        self._count(message, -1)

    def put_over(self, other: "View") -> None:
        """Add the changes of a later view."""
        self.rows, self.ids, self.removed = other.rows | self.rows, other.ids | self.ids, other.removed | self.removed
        for key, number in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + number
        self.taken, self.queued = other.taken | self.taken, other.queued + self.queued
        self.edited = other.edited | self.edited

    def find_untaken(self, queue: Iterable[Message], taken: Collection[int]) -> list[Message]:
        """Return the queued messages that are not taken, in order."""
        found = [each for each in (*queue, *self.queued) if each.position not in taken and each.id not in self.removed]
        return sorted([self.edited.get(each.position, each) for each in found], key=_place)

    def _count(self, message: Message, number: int) -> None:
        key = count_key(message.depth, message.status, silent=message.silent)
        self.counts[key] = self.counts.get(key, 0) + number


def _place(message: Message) -> int:
    return message.position
