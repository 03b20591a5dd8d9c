"""A message of a conversation, as clients see it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

__all__ = ["Input", "Item", "PendingApproval", "Role", "Status"]

Role = Literal["system", "user", "assistant", "tool"]
"""The writer of a message."""

Status = Literal["completed", "pending", "streaming", "failed", "sending"]
"""Whether a message is history, is queued for the agent, is being written, or was given up.

A message that a client has sent is "sending" there until the server has it; the server never sends this.
"""


class Input(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Text in the arguments of the call `call` of the tool `name`, after the first `at` characters of them."""

    call: str
    name: str
    at: int = 0
    text: str = ""


class PendingApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool that waits for a person: its id, the tool, its arguments as JSON, and its message.

    `run` is the run that waits; clients do not get it.
    """

    call: str
    tool: str
    arguments: str
    message_id: str
    run: str = ""
    may_approve: bool = False


class Item(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One message. `position` orders the messages of the history, and of the queue; `created_at` is in microseconds.

    While it is streaming, `taken` has the ids of the pending messages that it is an answer to: it is shown after them.
    The arguments of its `tool_calls` may then be the beginning of a JSON text.
    """

    id: str
    role: Role
    content: str | None = None
    name: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] | None = None
    tool_call_id: str | None = None
    subagent_id: str | None = None
    created_at: int = 0
    parent_id: str | None = None
    depth: int = 0
    metadata: Mapping[str, Any] = {}
    attachments: Sequence[Mapping[str, Any]] = []
    position: int = 0
    status: Status = "completed"
    taken: Sequence[str] = []
