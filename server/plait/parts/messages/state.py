"""The data about a thread's messages that is kept in memory, so that writers need not read. No I/O."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Final, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from plait.parts.attempts import PAUSES, Attempts
from plait.parts.messages.message import LastMessage, Message, StreamPlace, decode_message
from plait.parts.messages.tree import WHOLE, Cut, Span, find_path
from plait.state.thread_records import read_record
from plait.store.thread_rows import Record, ThreadKey
from plait_schemas.codec import encode_json

__all__ = [
    "HEAD",
    "SENT",
    "TREE",
    "LostStream",
    "MessagesHead",
    "Numbers",
    "QueueAttempts",
    "SentKeys",
    "State",
    "load_state",
    "make_sent_id",
    "merge_queues",
    "read_told",
]

HEAD: Final = "head"
"""The key of the record with the head."""

TREE: Final = f"{HEAD}/tree"
"""The key of the record with the branches, which is read with the head."""

SENT: Final = "k/"
"""The prefix of the keys of the records with the keys of sent messages."""

# The minimum number of keys that are remembered, the number of ids in a record, and the characters of an id.
_REMEMBERED: Final = 10_000
_ON_PAGE: Final = 128
_LENGTH: Final = 24
_PAGES: Final = _REMEMBERED // _ON_PAGE + 2

Counts = Mapping[str, int]


class LostStream(NamedTuple):
    """A streaming message whose writer has ended, with its text, and the keys of the records with pieces of it."""

    message: Message
    pieces: Sequence[str]
    # Whether the text is only a part of that which clients have.
    is_cut: bool = False


class QueueAttempts(Attempts, frozen=True, omit_defaults=True, kw_only=True):
    """The state of the attempts to have the queue taken; each method returns the next state."""

    # The position of the oldest message when the last attempt began, or when that attempt last stored what it took; 0
    # if nothing was queued. The counts belong to this message.
    oldest: int = 0
    # Whether the last attempt has stored taken messages, and has not ended well: another attempt follows even if
    # nothing is queued.
    is_owed: bool = False
    # The last position that a failed attempt may have taken from the queue: up to there, an attempt takes one message.
    until: int = 0
    # The streaming messages of the last attempt, unless they have become history; and the position that the oldest
    # message got when that attempt took it.
    left: Sequence[StreamPlace] = ()
    place: int = 0
    # The position of a question of the history that the next attempt takes, too, to answer it again; 0 for none.
    again: int = 0

    def follow(self, oldest: int, now: int) -> "QueueAttempts":
        """Follow a change of the queue; its first message is at `oldest`, 0 if there is none."""
        if self.process:
            return self  # The end of the attempt decides.
        is_owed = self.is_owed or bool(self.again)
        if not oldest and not is_owed:
            return _NONE
        if not self.due or (oldest != self.oldest and self.oldest and not is_owed):
            # The first message or the failed one has left the queue.
            return replace(self.succeed(oldest, now), left=self.left)
        return self

    def begin_at(self, oldest: int, process: str) -> Self:
        """Begin an attempt; the counts start at 0 if another message is the oldest now."""
        begun = replace(self, process=process, oldest=oldest, is_owed=False)
        return begun if oldest == self.oldest else replace(begun, failures=0, crashes=0, place=0)

    def progress_to(self, oldest: int) -> Self:
        """Follow a write of the running attempt: the messages that it took are done, and did not crash."""
        if not self.process or oldest == self.oldest != 0:
            return self
        failures = self.failures if oldest == self.oldest else 0
        return replace(self.progress(), oldest=oldest, is_owed=True, failures=failures, place=0)

    def recover_at(self, queue: Sequence[Message], now: int, process: str) -> Self:
        """End an attempt whose end was not stored: as a crash, unless it ran in this process."""
        if not self.process:  # A clock that was ahead may have set the due time.
            return self.rest(now) if self.due > now + PAUSES.most * 1e6 else self
        oldest, last = (queue[0].position, queue[-1].position) if queue else (0, 0)
        if self.process == process:
            return self.rest(self.due).end(oldest)
        # The attempt may have taken everything.
        return replace(self.recover(process), due=now).end(oldest, 0 if oldest <= self.until else last)

    def end(self, oldest: int, taken: int = 0) -> Self:
        """End an attempt that has not succeeded, and may have failed for the messages up to the position `taken`."""
        return replace(self, is_owed=self.has_taken(oldest), until=max(self.until, taken))

    def has_taken(self, oldest: int) -> bool:
        """Whether an attempt has succeeded: the message that was the oldest when it began is not queued."""
        return not self.again and (self.is_owed or not self.oldest or oldest != self.oldest)

    def take_again(self) -> Self:
        """Follow the attempt's taking of the question that is answered again."""
        return replace(self, again=0, is_owed=True)

    def succeed(self, oldest: int, now: int) -> "QueueAttempts":
        """End the attempts at a message; later ones are due at once, and are taken one by one up to `until`."""
        return QueueAttempts(due=now, until=self.until) if oldest else _NONE

    def without(self, position: int) -> Self:
        """Return the attempts when the message at a position was not left, and is not answered again."""
        if not self.left and self.again != position:
            return self
        left = [each for each in self.left if each.position != position]
        return replace(self, left=left, again=0 if self.again == position else self.again)


_NONE: Final = QueueAttempts()


class SentKeys:
    """The ids of the messages that were sent with a key, in records of 128. Immutable."""

    __slots__ = ("_first", "_pages")

    def __init__(self, first: int = 0, pages: Sequence[str] = ()) -> None:
        # The number of the first record, and the concatenated ids of each record.
        self._first = first
        self._pages = pages

    @classmethod
    def load(cls, records: Sequence[Record]) -> "SentKeys":
        """Return the keys from stored records, in order. Raises ValueError."""
        pages = [record.value[1:-1].decode() for record in records if record.value is not None]
        return cls(int(records[0].key[len(SENT) :], 16), pages)

    def has(self, id: str) -> bool:
        """Whether a message was sent with this id."""
        id = _fit(id)
        return any(_find(page, id) >= 0 for page in self._pages)

    def add(self, id: str) -> tuple["SentKeys", dict[str, bytes | None]]:
        """Return the keys with another id, and the records that change."""
        first, pages = self._first, [*self._pages]
        records: dict[str, bytes | None] = {}
        if not pages or len(pages[-1]) >= _ON_PAGE * _LENGTH:
            pages.append("")
        if len(pages) > _PAGES - 1:
            records[_page_key(first)] = None
            first, pages = first + 1, pages[1:]
        pages[-1] += _fit(id)
        records[_page_key(first + len(pages) - 1)] = _encode_page(pages[-1])
        return SentKeys(first, pages), records

    def remove(self, id: str) -> tuple["SentKeys", dict[str, bytes | None]]:
        """Return the keys without an id, and the record that changes, if there is one."""
        id = _fit(id)
        for number, page in enumerate(self._pages):
            if (at := _find(page, id)) >= 0:
                pages = [*self._pages]
                pages[number] = page[:at] + page[at + _LENGTH :]
                return SentKeys(self._first, pages), {_page_key(self._first + number): _encode_page(pages[number])}
        return self, {}


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
    # The numbers of messages, and the bytes of the queued ones. A key is `s` for silent messages or `v` for others, the
    # first letter of their status, and their depth.
    counts: Counts = {}
    queued_bytes: int = 0
    streams: Sequence[StreamPlace] = ()
    attempts: QueueAttempts = QueueAttempts()
    # The agent to which the thread was handed over; empty for the one that the class names.
    agent: str = ""
    # Whether the queue's agent must not begin until a user's message is queued, or `resume` is called.
    is_stopped: bool = False
    # For classes with a `card`: the number of messages that people were ever told, and the last one in the history.
    told: int = 0
    newest: LastMessage | None = None


class _Told(msgspec.Struct):
    told: int = 0


class State(msgspec.Struct, frozen=True):
    """The messages at one moment. Immutable."""

    head: MessagesHead = MessagesHead()
    queue: Sequence[Message] = ()
    keys: SentKeys = SentKeys()
    # The branches, oldest first, and the path of the active one, which is the newest.
    cuts: Sequence[Cut] = ()
    path: Sequence[Span] = WHOLE
    # The question of the history that the next attempt answers again.
    asked_again: Message | None = None

    @property
    def senders(self) -> set[str]:
        """The ids of the principals that have sent the queued messages, or the question that is answered again."""
        return {each.sender for each in (self.asked_again, *self.queue) if each is not None and each.sender is not None}

    @property
    def oldest(self) -> int:
        """The position of the first message in the queue; 0 if there is none."""
        return self.queue[0].position if self.queue else 0

    def with_attempts(self, attempts: QueueAttempts) -> "State":
        """Return a copy with other attempts."""
        return replace(self, head=replace(self.head, attempts=attempts))


def merge_queues(
    before: Sequence[Message], after: Sequence[Message], own: Sequence[Message]
) -> Sequence[Message] | None:
    """Return a queue with the changes that others, and the calling code, have made of an earlier one.

    None means that others have changed messages that the calling code has changed or taken, too.
    """
    if [*after[: len(before)]] == [*before]:  # Others have only added messages.
        others, added = after[len(before) :], own
    else:
        left, others_by_place = ({each.position: each for each in queue} for queue in (before, after))
        added = list[Message]()
        for each in own:
            if left.get(each.position) is each:
                del left[each.position]
            else:
                added.append(each)
        # The messages that are left were edited by the calling code, or taken out of the queue.
        if any(others_by_place.pop(position, None) is not each for position, each in left.items()):
            return None
        others = [*others_by_place.values()]
    return sorted([*added, *others], key=attrgetter("position"))


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


def read_told(head: bytes | None) -> int:
    """Return the number of told messages of a stored head; 0 if it is damaged."""
    try:
        return 0 if head is None else _decode_told(head).told
    except msgspec.MsgspecError:
        return 0


def make_sent_id(sender: str, key: str) -> str:
    """Return the id of the message that a sender has sent with a key."""
    return blake2b(encode_json((sender, key)), digest_size=12).hexdigest()


def _fit(id: str) -> str:
    """Return an id in 24 characters: as it is, or the hash of one that its sender has chosen."""
    return id if len(id) == _LENGTH else make_sent_id("", id)


def _page_key(number: int) -> str:
    return f"{SENT}{number:08x}"


def _encode_page(page: str) -> bytes:
    return b'"%b"' % page.encode()


def _find(page: str, id: str) -> int:
    """Return where an id is in a record; -1 if it is not."""
    at = page.find(id)
    while at % _LENGTH and at >= 0:  # The match spans two ids.
        at = page.find(id, at + 1)
    return at


def load_state(thread: ThreadKey, head: Sequence[Record], queue: Sequence[Record], keys: Sequence[Record]) -> State:
    """Return the stored state. Raises CorruptThread."""
    found = read_record(head[0], thread, _decode_head) if head else MessagesHead()
    cuts = read_record(head[1], thread, _decode_tree) if len(head) > 1 else ()
    sent = read_record(keys[0], thread, lambda _: SentKeys.load(keys)) if keys else SentKeys()
    pending = [read_record(record, thread, decode_message) for record in queue]
    return State(found, pending, sent, cuts, find_path(cuts) if cuts else WHOLE)


_decode_told: Final = msgspec.json.Decoder(_Told).decode
_decode_head: Final = msgspec.json.Decoder(MessagesHead).decode
_decode_tree: Final = msgspec.json.Decoder(list[Cut]).decode
