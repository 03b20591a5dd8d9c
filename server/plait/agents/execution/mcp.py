"""The tools that MCP servers lend, and their results."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plait.agents.execution.definitions import Mcp
from plait.agents.execution.tools import CREATE, MESSAGE

__all__ = ["LentTool", "McpFailed", "McpResult", "check_prefixes", "find_lender"]


class LentTool(NamedTuple):
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    is_idempotent: bool


class McpResult(NamedTuple):
    """The result of a call: a text, and files as base64, by their types."""

    text: str
    files: Sequence[tuple[str, str]]
    is_error: bool


class McpFailed(Exception):
    """A server cannot be reached, or does not answer as it should; the text tells a model how."""


def find_lender(tools: Mapping[str, Any], name: str) -> Mcp | None:
    """Return the server that lends a tool of this name, if there is one."""
    return next((each for each in tools.values() if isinstance(each, Mcp) and name.startswith(each.prefix)), None)


def check_prefixes(tools: Mapping[str, Any]) -> None:
    """Raise ValueError if a tool has a name that a server may give to one of its own."""
    for mcp in tools.values():
        if isinstance(mcp, Mcp):
            for name in (*tools, CREATE, MESSAGE):
                if name.startswith(mcp.prefix):
                    raise ValueError(f"{name!r} may be the name of a tool of the Mcp {mcp.name!r}: rename one of them")
