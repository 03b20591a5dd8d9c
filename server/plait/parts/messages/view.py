"""What a run has made of the messages of its thread, as it sees them."""

from collections.abc import Collection, Iterable

from plait.parts.messages.message import Message
from plait.parts.messages.state import count_key

__all__ = ["View"]


class View:
    """What operations make of what is stored."""

    def __init__(self) -> None:
        # The messages of the history that differ, by position and by id, and the ids of those that were removed.
        self.rows: dict[int, Message] = {}
        self.ids: dict[str, Message] = {}
        self.removed: set[str] = set()
        # How many messages of the history there are more, by `count_key`.
        self.counts: dict[str, int] = {}
        # The new positions of messages that were taken from the queue, by their old ones.
        self.taken: dict[int, int] = {}
        # The messages that were added to the queue, and those in it that were changed, by position.
        self.queued: list[Message] = []
        self.edited: dict[int, Message] = {}

    def show(self, message: Message) -> None:
        """Have a message in the history."""
        self.rows[message.position] = self.ids[message.id] = message
        self._count(message, 1)

    def hide(self, message: Message) -> None:
        """Have a message no longer."""
        self.rows.pop(message.position, None)
        self.ids.pop(message.id, None)
        self._count(message, -1)

    def put_over(self, other: "View") -> None:
        """Have what another one has, too, which this one was made after."""
        self.rows, self.ids, self.removed = other.rows | self.rows, other.ids | self.ids, other.removed | self.removed
        for key, number in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + number
        self.taken, self.queued = other.taken | self.taken, other.queued + self.queued
        self.edited = other.edited | self.edited

    def find_untaken(self, queue: Iterable[Message], taken: Collection[int]) -> list[Message]:
        """Return what is queued and not taken, in order."""
        found = [each for each in (*queue, *self.queued) if each.position not in taken and each.id not in self.removed]
        return sorted([self.edited.get(each.position, each) for each in found], key=_place)

    def _count(self, message: Message, number: int) -> None:
        key = count_key(message.depth, message.status, silent=message.silent)
        self.counts[key] = self.counts.get(key, 0) + number


def _place(message: Message) -> int:
    return message.position
