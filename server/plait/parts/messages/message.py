"""A message, its id, the keys of its records, and the keys with which messages were sent. No I/O."""

import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

import msgspec

from plait.errors import TooLarge
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = [
    "SENT",
    "Message",
    "MessageSubagent",
    "Page",
    "Role",
    "SentKeys",
    "Status",
    "check_size",
    "decode_message",
    "encode_message",
    "history_key",
    "id_key",
    "make_id",
    "make_sent_id",
    "measure_message",
    "piece_key",
    "queue_key",
    "read_id",
    "read_position",
]

Role = Literal["system", "user", "assistant", "tool"]
"""The author of a message."""

Status = Literal["completed", "pending", "streaming", "failed"]
"""Whether a message is in the history, is queued for the agent, is being written, or was given up."""

SENT: Final = "k/"
"""The prefix of the keys of the records with the keys of sent messages."""

# The minimum number of the last of these keys that are remembered, of ids in a record, and of characters in an id.
_REMEMBERED: Final = 10_000
_ON_PAGE: Final = 128
_LENGTH: Final = 24
_PAGES: Final = _REMEMBERED // _ON_PAGE + 2

# The maximum depth of messages of agents that call agents.
_DEEPEST: Final = 1000
# Bytes by which a message may grow when it moves to the history.
_SPARE: Final = 256


class MessageSubagent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A child as the thread of a message knows it when the message is read."""

    name: str
    title: str
    description: str
    status: str
    thread_name: str | None = None
    resumable: bool | None = None
    blocking: bool | None = None
    spawn_group_id: str | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One message of a thread. Times are in microseconds since the epoch."""

    id: str
    role: Role
    content: str | None = None
    # The tool that a result is from.
    name: str | None = None
    # Calls of tools: {"id": …, "type": "function", "function": {"name": …, "arguments": …}}.
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    # The call that a result answers.
    tool_call_id: str | None = None
    # The child of the thread's family that it is from, or about.
    subagent_id: str | None = None
    # What is known of that child. It is added when the message is listed or got, and never stored.
    subagent: MessageSubagent | None = None
    # When it was made; later than all earlier messages of the thread.
    created_at: int = 0
    # The message in which this one is nested, and its depth; 0 is the conversation itself.
    parent_id: str | None = None
    depth: Annotated[int, msgspec.Meta(ge=0, le=_DEEPEST)] = 0
    # Whether clients never see it.
    silent: bool = False
    metadata: Mapping[str, Any] = {}
    attachments: Sequence[Mapping[str, Any]] = ()
    # The id of the principal that it is from, as plait knows it; clients do not get it.
    sender: str | None = None
    # Its position in the history. A pending message has one in the queue, and gets a new one when it moves.
    position: int = 0
    status: Status = "completed"
    # The ids of pending messages that its run has taken, and that come before it; only while it is streaming.
    taken: Sequence[str] = ()
    # The revision of its frame for clients; 0 if there was none, or if the log has it.
    revision: int = 0

    @property
    def tool_call_ids(self) -> set[str]:
        """The ids of its tool calls."""
        return {id for call in self.tool_calls or () if isinstance(id := call.get("id"), str)}


class Page(msgspec.Struct, frozen=True):
    """Some messages of a thread; `total` counts all that match, and `has_more` tells whether more of them follow."""

    messages: list[Message]
    total: int
    has_more: bool


decode_message: Final = msgspec.json.Decoder(Message).decode
"""Returns a message from its record. Raises msgspec.DecodeError."""


def encode_message(message: Message, most: int) -> bytes:
    """Return the record of a message, of at most `most` bytes. Raises TooLarge and TypeError."""
    data = encode_json(message)
    check_size(len(data), most)
    return data


def check_size(size: int, most: int) -> None:
    """Raise TooLarge if a message of `size` bytes does not fit into a record."""
    if size > most - _SPARE:
        text = f"the message has {size} bytes; a record may have {most}, and {_SPARE} are kept for its place"
        raise TooLarge(text, limit="record")


def measure_message(message: Message) -> int:
    """Return the bytes of a message."""
    return len(encode_json(message))


def history_key(position: int) -> str:
    """Return the key of the record of a message of the history."""
    return f"m/{position:016x}"


def piece_key(position: int, number: int | None = None) -> str:
    """Return the key of the record of a piece of a streaming message; without a number, the prefix of all of them."""
    return f"t/{position:016x}/" if number is None else f"t/{position:016x}/{number:08x}"


def queue_key(position: int) -> str:
    """Return the key of the record of a pending message."""
    return f"q/{position:016x}"


def id_key(id: str) -> str:
    """Return the key of the record with the position of a message whose id does not have it."""
    return f"i/{id}"


def make_id(position: int) -> str:
    """Return a new id for a message at a position, which no other message gets even if this one moves."""
    return f"{position:x}-{secrets.token_hex(6)}"


def read_id(id: str) -> int:
    """Return the position in the id of a message; 0 if there is none, as in the id of a message sent with a key."""
    position, dash, _ = id.partition("-")
    try:
        return int(position, 16) if dash else 0
    except ValueError:
        return 0


def read_position(key: str) -> int:
    """Return the position in the key of a record."""
    return int(key[2:], 16)


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
