"""The calls of tools in a message."""

import secrets
import string
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["STATUS", "make_call", "make_call_id", "read_call"]

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
