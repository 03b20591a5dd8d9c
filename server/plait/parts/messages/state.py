"""The data about a thread's messages that is kept in memory, so that writers need not read. No I/O."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from plait.errors import CorruptThread
from plait.parts.messages.message import Message, decode_message
from plait.parts.messages.queue_attempts import QueueAttempts, StreamPlace
from plait.store.protocol import Record
from plait_schemas.codec import encode_json

__all__ = [
    "FIRST_LINE",
    "HEAD",
    "KEPT",
    "LOG",
    "SENT",
    "LostStream",
    "MessagesHead",
    "Numbers",
    "SentKeys",
    "State",
    "count_key",
    "encode_head",
    "load_state",
    "make_sent_id",
]

HEAD: Final = "head"
"""The key of the record with the head."""

LOG: Final = "u/"
"""The prefix of the keys of the log's records."""

FIRST_LINE: Final = f"{LOG}{1:016x}"
"""The key of the log's first line; without its record, lines were dropped."""

KEPT: Final = 1000
"""The number of lines that the log keeps, and of revisions that are read, for clients that reconnect."""

SENT: Final = "k/"
"""The prefix of the keys of the records with the keys of sent messages."""

# The minimum number of the last of these keys that are remembered, of ids in a record, and of characters in an id.
_REMEMBERED: Final = 10_000
_ON_PAGE: Final = 128
_LENGTH: Final = 24
_PAGES: Final = _REMEMBERED // _ON_PAGE + 2

Counts = Mapping[str, int]


class LostStream(NamedTuple):
    """A streaming message whose writer has ended, with its text, and the keys of the records with pieces of it."""

    message: Message
    pieces: Sequence[str]


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


class SentKeys:
    """The ids of the messages that were sent with a key, in records of 128. Immutable."""

    __slots__ = ("_first", "_pages")

    def __init__(self, first: int = 0, pages: Sequence[str] = ()) -> None:
        # The number of the first record, and the concatenated ids of each record.
        self._first = first
        self._pages = pages

    @classmethod
    def load(cls, records: Sequence[Record]) -> "SentKeys":
        """Return the keys from stored records, in order."""
        pages = [record.value[1:-1].decode() for record in records if record.value is not None]
        return cls(int(records[0].key[len(SENT) :], 16), pages) if records else cls()

    def has(self, id: str) -> bool:
        """Whether a message was sent with this id."""
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
        pages[-1] += id
        records[_page_key(first + len(pages) - 1)] = _encode_page(pages[-1])
        return SentKeys(first, pages), records

    def remove(self, id: str) -> tuple["SentKeys", dict[str, bytes | None]]:
        """Return the keys without an id, and the record that changes, if there is one."""
        for number, page in enumerate(self._pages):
            if (at := _find(page, id)) >= 0:
                pages = [*self._pages]
                pages[number] = page[:at] + page[at + _LENGTH :]
                return SentKeys(self._first, pages), {_page_key(self._first + number): _encode_page(pages[number])}
        return self, {}


class State(msgspec.Struct, frozen=True):
    """The messages at one moment. Immutable."""

    head: MessagesHead = MessagesHead()
    queue: Sequence[Message] = ()
    keys: SentKeys = SentKeys()

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
    except msgspec.DecodeError as error:
        raise CorruptThread(f"the {part} of a thread are damaged") from error
    return State(found, pending, SentKeys.load(keys))


def encode_head(head: MessagesHead) -> bytes:
    """Return the record of a head."""
    return encode_json(head)


_decode_head: Final = msgspec.json.Decoder(MessagesHead).decode


def make_sent_id(sender: str, key: str) -> str:
    """Return the id of the message that a sender has sent with a key."""
    return blake2b(encode_json((sender, key)), digest_size=12).hexdigest()


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
