"""A message, and the keys of its records."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from plait.errors import TooLarge
from plait_schemas.codec import encode_json, has_non_finite

__all__ = [
    "Message",
    "Page",
    "Role",
    "Status",
    "check_size",
    "decode_message",
    "encode_message",
    "history_key",
    "id_key",
    "measure_message",
    "queue_key",
    "read_position",
]

Role = Literal["system", "user", "assistant", "tool"]
"""Who wrote a message."""

Status = Literal["completed", "pending", "streaming", "failed"]
"""Whether a message is history, is queued for the agent, is being written, or was given up."""

_ROLES: Final = get_args(Role)
_TEXTS: Final = ("content", "name", "tool_call_id", "parent_id")
# How deep the messages of agents that call agents may nest.
_DEEPEST: Final = 1000
# Bytes by which a message may become longer when it is moved to the history.
_SPARE: Final = 256


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One message of a thread. Times are in microseconds since the epoch."""

    id: str
    role: Role
    content: str | None = None
    # The tool that a result is of.
    name: str | None = None
    # Calls of tools: {"id": …, "type": "function", "function": {"name": …, "arguments": …}}.
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    # The call that a result answers.
    tool_call_id: str | None = None
    # When it was made; later than all messages that the thread made before.
    created_at: int = 0
    # The message in which this one is nested, and how deep; 0 is the conversation itself.
    parent_id: str | None = None
    depth: int = 0
    # Whether clients never see it.
    silent: bool = False
    metadata: Mapping[str, Any] = {}
    attachments: Sequence[Mapping[str, Any]] = ()
    # Its place in the history. A pending message has a place in the queue, and gets a new one with the history.
    position: int = 0
    status: Status = "completed"
    # The ids of pending messages that its run has taken, and that stand before it; only while it is streaming.
    taken: Sequence[str] = ()
    # The revision with which clients were told of it; 0 if they were not, or if the log tells.
    revision: int = 0

    @property
    def tool_call_ids(self) -> set[str]:
        """The ids of its calls of tools."""
        return {id for call in self.tool_calls or () if isinstance(id := call.get("id"), str)}

    def check(self) -> None:
        """Raise ValueError or TypeError for what cannot be a message."""
        if self.role not in _ROLES:
            raise ValueError(f"role must be one of {', '.join(_ROLES)}, not {self.role!r}")
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name} must be a str or None, not {value!r}")
        if type(self.depth) is not int or not 0 <= self.depth <= _DEEPEST:
            raise ValueError(f"depth must be a whole number from 0 to {_DEEPEST}, not {self.depth!r}")
        if self.metadata or self.tool_calls or self.attachments:
            self._check_parts()

    def _check_parts(self) -> None:
        if not isinstance(self.metadata, Mapping):
            raise TypeError(f"metadata must be a dict, not {self.metadata!r}")
        for name in ("tool_calls", "attachments"):
            value = getattr(self, name) or ()
            if isinstance(value, str | Mapping) or not all(isinstance(each, Mapping) for each in value):
                raise TypeError(f"{name} must be a list of dicts, not {value!r}")
        for name in ("tool_calls", "metadata", "attachments"):
            if (value := getattr(self, name)) and has_non_finite(value):
                raise ValueError(f"{name} has a number that is infinite or not a number: it is not JSON")


class Page(msgspec.Struct, frozen=True):
    """Some messages of a thread; `total` counts all that fit, and `has_more` tells whether there are further ones."""

    messages: list[Message]
    total: int
    has_more: bool


decode_message: Final = msgspec.json.Decoder(Message).decode
"""Returns a message from its record. Raises msgspec.DecodeError."""


def encode_message(message: Message, most: int) -> bytes:
    """Return the record of a message, for a limit of `most` bytes a record. Raises TooLarge and TypeError."""
    data = encode_json(message)
    check_size(len(data), most)
    return data


def check_size(size: int, most: int) -> None:
    """Raise TooLarge if a message of `size` bytes does not fit into a record."""
    if size > most - _SPARE:
        text = f"the message has {size} bytes; a record may have {most}, of which {_SPARE} are kept for its place"
        raise TooLarge(text, limit="record")


def measure_message(message: Message) -> int:
    """Return the bytes of a message."""
    return len(encode_json(message))


def history_key(position: int) -> str:
    """Return the key of the record of a message of the history."""
    return f"m/{position:016x}"


def queue_key(position: int) -> str:
    """Return the key of the record of a pending message."""
    return f"q/{position:016x}"


def id_key(id: str) -> str:
    """Return the key of the record that tells the position of a message of the history."""
    return f"i/{id}"


def read_position(key: str) -> int:
    """Return the position in the key of a record."""
    return int(key[2:], 16)
