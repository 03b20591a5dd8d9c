"""The last message of a conversation, and the number of unread ones, for lists of conversations. No I/O."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from msgspec import UNSET, UnsetType

from plait.parts.messages.message import LastMessage, Message
from plait.store.protocol import READ
from plait.store.record_checks import is_key
from plait.store.thread_rows import Record

__all__ = ["Overview", "describe_last", "is_told", "make_mark", "mark_key"]

# The characters of the last message that are kept.
_TEXT = 200


class Overview:
    """The last message of the history and the number of told ones, for a class with a card.

    A message is told once, when it is complete: a message of a user when it is queued, an answer when its text is
    whole. So an attempt that fails and is repeated tells its answer once.
    """

    def __init__(
        self,
        told: int,
        newest: LastMessage | None,
        created: Iterable[Message],
        written: Iterable[Message],
        *,
        lasts: Mapping[str, Message | None],
        shown: Message | UnsetType | None,
    ) -> None:
        """Follow a write: its complete new messages, which their senders have read, and all that it has written.

        `lasts` are the last messages after removals, by the id of the removed one, and `shown` is the last message if
        other ones are shown than before.
        """
        self.told = told
        self.newest = newest
        # How many messages users have read, by the id of the user.
        self._read: dict[str, int] = {}
        if shown is not UNSET:
            self.newest = None if shown is None else describe_last(shown)
        for message in created:
            if is_told(message):
                self.told += 1
                self._show(message)
                if message.role == "user" and message.sender is not None:
                    self._read[message.sender] = self.told
        for message in written:
            # A text that its writer has left is not the last message, as the next attempt may remove it.
            if is_told(message) and (message.role == "user" or message.status == "completed"):
                self._show(message)
            elif self.newest is not None and self.newest.id == message.id:
                self.newest = describe_last(message)
        for id, last in lasts.items():
            if self.newest is not None and self.newest.id == id:
                self.newest = None if last is None else describe_last(last)

    def _show(self, message: Message) -> None:
        if message.status != "pending" and (self.newest is None or message.position >= self.newest.position):
            self.newest = describe_last(message)

    def make_marks(self, part: str) -> list[Record]:
        """Return the records of what users have read with the write."""
        return [make_mark(part, user, told) for user, told in self._read.items()]


def is_told(message: Message) -> bool:
    """Whether people are told of a message: it is of a user or an answer, complete, and neither silent nor nested."""
    is_shown = message.role in ("user", "assistant") and not message.silent and not message.depth
    return is_shown and not message.tool_calls and message.status != "streaming"


def describe_last(message: Message) -> LastMessage:
    """Return a message as it is kept while it is the last one."""
    return LastMessage(message.position, message.id, message.role, message.status, (message.content or "")[:_TEXT])


def make_mark(part: str, user: str, told: int) -> Record:
    """Return the record which says that a user has read all messages of a part that were told."""
    return Record(READ, mark_key(part, user), b"%d" % told)


def mark_key(part: str, user: str) -> str:
    """Return the key of the record with the number of messages of a part that a user has read."""
    key = f"{part}/{user}"
    return key if is_key(key) else f"{part}//{blake2b(user.encode(errors='surrogatepass')).hexdigest()}"
