"""A message, its id, the keys of its records, its calls of tools, and the metadata that only plait writes. No I/O."""

import secrets
import string
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec.structs import replace

from plait.errors import TooLarge
from plait_schemas.codec import encode_json

__all__ = [
    "APPROVAL",
    "CLIENT_CALLS",
    "INTERRUPTED",
    "KEPT",
    "LOG",
    "MARK",
    "STATUS",
    "LastMessage",
    "Message",
    "MessageSubagent",
    "Outline",
    "OwnMetadata",
    "Page",
    "Role",
    "Status",
    "StreamPlace",
    "check_own",
    "check_size",
    "decode_message",
    "decode_outline",
    "drop_own",
    "encode_message",
    "find_run",
    "history_key",
    "id_key",
    "keep_own",
    "line_key",
    "make_call",
    "make_call_id",
    "make_id",
    "make_own",
    "make_thoughts_id",
    "measure_message",
    "merge_metadata",
    "note_client_calls",
    "piece_key",
    "queue_key",
    "read_call",
    "read_id",
    "read_own",
    "read_position",
    "show_message",
]

Role = Literal["system", "user", "assistant", "tool"]
"""The author of a message."""

Status = Literal["completed", "pending", "streaming", "failed"]
"""The place or state of a message: in the history, queued for the agent, being written, or given up."""

LOG: Final = "u/"
"""The prefix of the keys of the records that log changes, for clients that reconnect."""

KEPT: Final = 1000
"""The number of lines that the log keeps, and of revisions that are read."""

# The member of the metadata of messages that only plait itself writes; code and clients cannot.
_OWN: Final = "plait"

MARK: Final = "execution"
"""A member of plait's metadata of an answer: its run and its step."""

CLIENT_CALLS: Final = "client_calls"
"""A member of plait's metadata of a message: the ids of the calls that the client of the run answers."""

APPROVAL: Final = "approval:"
"""The prefix of the events by which people approve calls."""

INTERRUPTED: Final = "interrupted"
"""A member of plait's metadata of a message whose run was interrupted while it was written."""

STATUS: Final = "tool_status"
"""The member of plait's metadata of a result that tells whether the call has succeeded: `success` or `error`."""

# All providers accept these letters: one takes nine letters and digits only.
_LETTERS: Final = string.ascii_letters + string.digits
_LENGTH: Final = 9

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
    # The child of the thread's family that wrote the message, or that it is about.
    subagent_id: str | None = None
    # The data that is known of that child. It is added when the message is listed or got, and never stored.
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
    # The id of the principal that sent it, as plait knows it; clients do not get it.
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


class StreamPlace(msgspec.Struct, frozen=True, array_like=True):
    """A streaming message: its position, its id, and the data by which it is counted."""

    position: int
    id: str
    depth: int
    silent: bool

    @classmethod
    def of(cls, message: "Message") -> Self:
        """Return the place of a message."""
        return cls(message.position, message.id, message.depth, message.silent)


class Outline(msgspec.Struct, frozen=True):
    """The data by which a message is counted, read from its record without the rest of it."""

    id: str
    role: Role
    position: int
    depth: int = 0
    silent: bool = False
    status: Status = "completed"


class LastMessage(msgspec.Struct, frozen=True, array_like=True):
    """The last message of a conversation, as lists of conversations show it."""

    position: int
    id: str
    role: Role
    status: Status
    # Its first characters.
    text: str


class Page(msgspec.Struct, frozen=True):
    """Some messages of a thread; `total` counts all that match, and `has_more` tells whether more of them follow."""

    messages: list[Message]
    total: int
    has_more: bool


decode_message: Final = msgspec.json.Decoder(Message).decode
"""Returns a message from its record. Raises msgspec.DecodeError."""

decode_outline: Final = msgspec.json.Decoder(Outline).decode
"""Returns the outline of a message from its record. Raises msgspec.DecodeError."""


def show_message(message: Message) -> Message:
    """Return a message as clients see it: they learn revisions from frames, and senders from metadata."""
    is_plain = not message.revision and message.sender is None
    return message if is_plain else replace(message, revision=0, sender=None)


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


def line_key(number: int) -> str:
    """Return the key of a line of the log, from 1; if there is none with 1, lines were dropped."""
    return f"{LOG}{number:016x}"


def queue_key(position: int) -> str:
    """Return the key of the record of a pending message."""
    return f"q/{position:016x}"


def id_key(id: str) -> str:
    """Return the key of the record with the position of a message whose id does not have it."""
    return f"i/{id}"


def make_id(position: int) -> str:
    """Return a new id for a message at a position; no other message gets this id even if the message moves."""
    return f"{position:x}-{secrets.token_hex(6)}"


def make_thoughts_id(id: str) -> str:
    """Return the id of the message with the thoughts of the model that has written a message."""
    return f"{id}.thoughts"


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


# Plait's own metadata


class OwnMetadata(dict[str, Any]):
    """Metadata that may have plait's own member. No JSON decodes to one."""

    @property
    def own(self) -> Mapping[str, Any]:
        """The value of plait's own member."""
        found: Mapping[str, Any] = self[_OWN]
        return found


def make_own(members: Mapping[str, Any]) -> OwnMetadata:
    """Return metadata with plait's own member."""
    return OwnMetadata({_OWN: members} if members else {})


def read_own(message: Message) -> Mapping[str, Any]:
    """Return plait's own member in the metadata of a message."""
    found: Mapping[str, Any] = message.metadata.get(_OWN, {})
    return found


def find_run(message: Message) -> str | None:
    """Return the run that a message answers for; None if the message is not an answer of an execution."""
    mark = message.metadata.get(_OWN, {}).get(MARK)
    return mark.get("run") if isinstance(mark, Mapping) else None


def check_own(metadata: object) -> None:
    """Raise ValueError if metadata that plait has not made has its member."""
    if isinstance(metadata, Mapping) and _OWN in metadata and not isinstance(metadata, OwnMetadata):
        raise ValueError(f"the metadata of a message may not have {_OWN!r}, which only plait itself writes")


def drop_own(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata without plait's own member."""
    return {name: value for name, value in metadata.items() if name != _OWN}


def keep_own(before: Mapping[str, Any], after: Mapping[str, Any]) -> OwnMetadata:
    """Return the metadata of a hook, with plait's own member as it was before."""
    own = {name: value for name, value in before.items() if name == _OWN}
    return OwnMetadata({**drop_own(after), **own})


def merge_metadata(before: Mapping[str, Any], added: Mapping[str, Any]) -> OwnMetadata:
    """Return metadata with more members, merging plait's own member, too."""
    own = {**before.get(_OWN, {}), **added.get(_OWN, {})}
    return OwnMetadata({**before, **added, **make_own(own)})


# Calls of tools


def make_call_id() -> str:
    """Return an id that no other call has: results, steps and approvals are named by it."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def make_call(id: str | None, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_call(call: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the id, the name and the arguments of a call of a tool."""
    function = call.get("function") or {}
    return str(call.get("id") or ""), str(function.get("name") or ""), str(function.get("arguments") or "")


def note_client_calls(message: Message, tools: Collection[str]) -> Message:
    """Return a message with a note of its calls of tools that the run's client answers."""
    ids = [id for id, name, _ in map(read_call, message.tool_calls or ()) if id and name in tools]
    metadata = merge_metadata(message.metadata, make_own({CLIENT_CALLS: ids}))
    return replace(message, metadata=metadata) if ids else message
