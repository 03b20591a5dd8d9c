"""The calls of tools in a message."""

import secrets
import string
from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec.structs import replace

from plait.parts.messages.message import Message
from plait.parts.messages.own_metadata import make_own, merge_metadata

__all__ = ["CLIENT_CALLS", "STATUS", "make_call", "make_call_id", "note_client_calls", "read_call"]

CLIENT_CALLS: Final = "client_calls"
"""The member of plait's metadata of a message with the ids of its calls that the client of its run answers."""

STATUS: Final = "tool_status"
"""The member of plait's metadata of a result that tells whether the call has succeeded: `success` or `error`."""

# What all providers accept: one takes nine letters and digits only.
_LETTERS: Final = string.ascii_letters + string.digits
_LENGTH: Final = 9


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
    """Return a message with a note of its calls of tools that the client of its run has."""
    ids = [id for id, name, _ in map(read_call, message.tool_calls or ()) if id and name in tools]
    metadata = merge_metadata(message.metadata, make_own({CLIENT_CALLS: ids}))
    return replace(message, metadata=metadata) if ids else message
