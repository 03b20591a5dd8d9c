"""The frames about messages that clients get, in order of their revisions and without gaps."""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from plait.parts.messages.message import Message
from plait_schemas.conversation import Input

__all__ = [
    "ChunkFrame",
    "DeleteFrame",
    "EndFrame",
    "Frame",
    "InputFrame",
    "InsertFrame",
    "Missed",
    "ResetFrame",
    "TakeFrame",
    "UpdateFrame",
]


class InsertFrame(msgspec.Struct, frozen=True, tag_field="op", tag="insert"):
    """A message that was added, to the history or, if it is pending, to the queue."""

    revision: int
    message: Message


class UpdateFrame(msgspec.Struct, frozen=True, tag_field="op", tag="update"):
    """A message that has changed; its position may have changed, too."""

    revision: int
    message: Message


class DeleteFrame(msgspec.Struct, frozen=True, tag_field="op", tag="delete"):
    """A message that was removed, from the history or the queue."""

    revision: int
    id: str


class TakeFrame(msgspec.Struct, frozen=True, tag_field="op", tag="take"):
    """Pending messages that moved to the history: the id and the new position of each."""

    revision: int
    taken: Sequence[tuple[str, int]]


class ChunkFrame(msgspec.Struct, frozen=True, tag_field="op", tag="chunk"):
    """Text at the end of a message that is streaming; `at` is the number of characters before it.

    The frame has the revision of the frame before it. A client that already has the text drops it.
    """

    revision: int
    id: str
    position: int
    at: int
    text: str


class InputFrame(msgspec.Struct, frozen=True, tag_field="op", tag="input"):
    """Text at the end of the arguments of a call, in a message that is streaming; it has a revision as a chunk has.

    The text is not stored before the message ends, and is dropped if the message fails.
    """

    revision: int
    id: str
    input: Input


class EndFrame(msgspec.Struct, frozen=True, tag_field="op", tag="end"):
    """The end of a streaming message; its text is that of the chunks."""

    revision: int
    id: str
    status: Literal["completed", "failed"]


class ResetFrame(msgspec.Struct, frozen=True, tag_field="op", tag="reset"):
    """Too many messages were hidden or shown to tell of each: clients read the newest ones again."""

    revision: int


Frame = InsertFrame | UpdateFrame | DeleteFrame | TakeFrame | ChunkFrame | InputFrame | EndFrame | ResetFrame
"""One frame for clients."""


class Missed(msgspec.Struct, frozen=True):
    """The changes that a client has missed up to a revision: messages as they are, in order, and removed ones."""

    revision: int
    items: Sequence[Message]
    removed: Collection[str]
