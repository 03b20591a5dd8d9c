"""The data about a thread's messages that is kept in memory, so that writers need not read. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from plait.errors import CorruptThread
from plait.parts.attempts import PAUSES, Attempts
from plait.parts.messages.message import Message, SentKeys, decode_message
from plait.store.thread_rows import Record
from plait_schemas.codec import NOT_JSON

__all__ = [
    "FIRST_LINE",
    "HEAD",
    "KEPT",
    "LOG",
    "LostStream",
    "MessagesHead",
    "Numbers",
    "QueueAttempts",
    "State",
    "StreamPlace",
    "count_key",
    "load_state",
]

HEAD: Final = "head"
"""The key of the record with the head."""

LOG: Final = "u/"
"""The prefix of the keys of the log's records."""

FIRST_LINE: Final = f"{LOG}{1:016x}"
"""The key of the log's first line; without its record, lines were dropped."""

KEPT: Final = 1000
"""The number of lines that the log keeps, and of revisions that are read, for clients that reconnect."""

Counts = Mapping[str, int]


class StreamPlace(msgspec.Struct, frozen=True, array_like=True):
    """A streaming message: its position, and its `count_key`."""

    position: int
    id: str
    depth: int
    silent: bool


class LostStream(NamedTuple):
    """A streaming message whose writer has ended, with its text, and the keys of the records with pieces of it."""

    message: Message
    pieces: Sequence[str]
    # Whether the text is only a part of that which clients have.
    is_cut: bool = False


class QueueAttempts(Attempts, frozen=True, omit_defaults=True, kw_only=True):
    """The state of the attempts to have the queue taken; each method returns the next state."""

    # The position of the oldest message when the last attempt began, or when that last stored what it took; 0 if
    # nothing was queued. The counts belong to it.
    oldest: int = 0
    # Whether the last attempt has stored what it took, and has not ended well: another one is made even if nothing is
    # queued.
    is_owed: bool = False
    # The last position in the queue that an attempt which failed may have taken: up to there, an attempt takes one.
    until: int = 0
    # The messages of the last attempt that streamed, if they have not become history; and the position that the oldest
    # message got when that attempt took it.
    left: Sequence[StreamPlace] = ()
    place: int = 0

    def follow(self, oldest: int, now: int) -> "QueueAttempts":
        """Follow a change of the queue: its first message is at `oldest`, or 0 if there is none."""
        if self.process:
            return self  # The end of the attempt decides.
        if not oldest and not self.is_owed:
            return _NONE
        if not self.due or (oldest != self.oldest and self.oldest and not self.is_owed):
            # The first message, or the failed one has left the queue.
            return replace(self.succeed(oldest, now), left=self.left)
        return self

    def begin_at(self, oldest: int, process: str) -> Self:
        """Begin an attempt; the counts start at 0 if another message is the oldest now."""
        begun = replace(self, process=process, oldest=oldest, is_owed=False)
        return begun if oldest == self.oldest else replace(begun, failures=0, crashes=0, place=0)

    def progress_to(self, oldest: int) -> Self:
        """Follow a write of the running attempt: what has left the queue with it is done, and did not crash."""
        if not self.process or oldest == self.oldest != 0:
            return self
        failures = self.failures if oldest == self.oldest else 0
        return replace(self.progress(), oldest=oldest, is_owed=True, failures=failures, place=0)

    def recover_at(self, queue: Sequence[Message], now: int, process: str) -> Self:
        """End an attempt whose end was not stored: as a crash, unless it ran in this process."""
        if not self.process:  # A clock that was ahead may have set its time.
            return self.rest(now) if self.due > now + PAUSES.most * 1e6 else self
        oldest, last = (queue[0].position, queue[-1].position) if queue else (0, 0)
        if self.process == process:
            return self.rest(self.due).end(oldest)
        # It may have taken everything.
        return replace(self.recover(process), due=now).end(oldest, 0 if oldest <= self.until else last)

    def end(self, oldest: int, taken: int = 0) -> Self:
        """End an attempt that has not succeeded, and may have failed for the messages up to the position `taken`."""
        return replace(self, is_owed=self.has_taken(oldest), until=max(self.until, taken))

    def has_taken(self, oldest: int) -> bool:
        """Whether an attempt has succeeded: the message that was the oldest when it began is not queued."""
        return self.is_owed or not self.oldest or oldest != self.oldest

    def succeed(self, oldest: int, now: int) -> "QueueAttempts":
        """End the attempts at a message; later ones are due at once, and are taken one by one up to `until`."""
        return QueueAttempts(due=now, until=self.until) if oldest else _NONE

    def without(self, position: int) -> Self:
        """Return the attempts when the message at a position is no longer one that was left."""
        if not self.left:
            return self
        return replace(self, left=[each for each in self.left if each.position != position])


_NONE: Final = QueueAttempts()


class MessagesHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored data that writing needs."""

    # The last position and time that were assigned.
    position: int = 0
    at: int = 0
    # The last position in the history.
    last: int = 0
    # The last revision, and the number of lines ever written to the log.
    revision: int = 0
    lines: int = 0
    # The number of messages by `count_key`, and the bytes of the queued ones.
    counts: Counts = {}
    queued_bytes: int = 0
    streams: Sequence[StreamPlace] = ()
    attempts: QueueAttempts = QueueAttempts()
    # The agent to which the thread was handed over; empty for the one that the class names.
    agent: str = ""
    # Whether the queue's agent must not begin until a user's message is queued, or it is told to go on.
    is_stopped: bool = False


class State(msgspec.Struct, frozen=True):
    """The messages at one moment. Immutable."""

    head: MessagesHead = MessagesHead()
    queue: Sequence[Message] = ()
    keys: SentKeys = SentKeys()

    @property
    def senders(self) -> set[str]:
        """The ids of the principals that have sent what is queued."""
        return {each.sender for each in self.queue if each.sender is not None}

    @property
    def oldest(self) -> int:
        """The position of the first message in the queue; 0 if there is none."""
        return self.queue[0].position if self.queue else 0

    def with_attempts(self, attempts: QueueAttempts) -> "State":
        """Return a copy with other attempts."""
        return replace(self, head=replace(self.head, attempts=attempts))


class Numbers:
    """Assigns increasing positions and times, none of them twice, even after a failed write."""

    def __init__(self, head: MessagesHead) -> None:
        self.position = head.position
        self.at = head.at

    def next_position(self) -> int:
        """Return the next position."""
        self.position += 1
        return self.position

    def next_time(self, now: int) -> int:
        """Return the next time, at `now` or later."""
        self.at = max(self.at + 1, now)
        return self.at


def count_key(depth: int, status: str, *, silent: bool) -> str:
    """Return the key by which a message is counted: whether it is silent, its status, and its depth."""
    return f"{'s' if silent else 'v'}{status[0]}{depth}"


def load_state(part: str, head: Sequence[Record], queue: Sequence[Record], keys: Sequence[Record]) -> State:
    """Return the stored state. Raises CorruptThread."""
    try:
        found = _decode_head(head[0].value or b"") if head else MessagesHead()
        pending = [decode_message(record.value or b"") for record in queue]
    except NOT_JSON as error:
        raise CorruptThread(f"the {part} of a thread are damaged") from error
    return State(found, pending, SentKeys.load(keys))


_decode_head: Final = msgspec.json.Decoder(MessagesHead).decode
