"""The tools that MCP servers lend, and their results."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["LentTool", "McpFailed", "McpResult"]


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
