"""A server of MCP by the reference implementation, for tests: over stdio as a program, or as an app for HTTP."""

import asyncio
import os
from base64 import b64decode
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

__all__ = ["DOT", "make_server"]

DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")
"""A PNG."""


def make_server(*, notes: Path | None = None, many: int = 0, size: int = 100) -> MCPServer[Any]:
    """Return a server with tools that do well, and ones that do not. `notes` is a file to which `note` writes."""
    server: MCPServer[Any] = MCPServer("reference")
    for number in range(many):
        server.add_tool(_add, name=f"tool{number}", description="x" * size)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(name="sub.tract")
    async def subtract(a: int, b: int) -> int:
        """Subtract a number from another one."""
        return a - b

    @server.tool()
    async def token(context: Context[Any, Any]) -> str:
        """Tell what the server was given."""
        headers = context.headers
        return f"{os.environ.get('TOKEN')} {None if headers is None else headers.get('authorization')}"

    @server.tool()
    async def leak() -> str:
        """Raise an error with what the server was given."""
        raise ToolError(os.environ["TOKEN"])

    @server.tool(structured_output=False)
    async def draw() -> list[Any]:
        """Draw a dot."""
        return ["A dot.", Image(data=DOT, format="png")]

    @server.tool()
    async def pour(size: int) -> str:
        """Return a long text."""
        return "x" * size

    @server.tool()
    async def hang() -> None:
        """Never answer."""
        await asyncio.Event().wait()

    @server.tool()
    async def note(text: str) -> str:
        """Write a note, and wait."""
        return await _wait(_note(notes, text))

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    async def note_again(text: str) -> str:
        """Write a note, and wait; it may be called again."""
        return await _wait(_note(notes, text))

    @server.tool()
    async def grow() -> str:
        """Add a tool."""
        server.add_tool(_add, name="grown")
        return "It has grown."

    return server


def _note(notes: Path | None, text: str) -> bool:
    """Write a note, and return whether it is not the first one."""
    assert notes is not None
    is_second = notes.exists()
    with notes.open("a") as file:
        file.write(f"{text}\n")
    return is_second


async def _wait(is_answered: bool) -> str:
    """Answer, or never do so."""
    if not is_answered:
        await asyncio.Event().wait()
    return "noted"


async def _add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    make_server().run("stdio")
