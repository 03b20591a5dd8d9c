"""The calls of tools in a message."""

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["STATUS", "make_call", "read_call"]

STATUS: Final = "tool_status"
"""The member of plait's metadata of a result that tells whether the call has succeeded: `success` or `error`."""


def make_call(id: str | None, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_call(call: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the id, the name and the arguments of a call of a tool."""
    function = call.get("function") or {}
    return str(call.get("id") or ""), str(function.get("name") or ""), str(function.get("arguments") or "")
