"""Sessions with MCP servers, with the extra `plait[mcp]`."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from typing import Any, Final

from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from plait.agents.execution.definitions import Mcp
from plait.agents.execution.mcp import LentTool, McpFailed, McpResult
from plait.agents.execution.mcp_transports import ServerMessages, open_process, open_url
from plait_schemas.codec import encode_json

__all__ = ["McpSession"]

# The pages of a listing.
_MOST_PAGES: Final = 20
# Seconds that the end of a session may take, before it is cut off.
_CLOSE: Final = 5.0

# The log of `mcp` may contain data from a server; its errors are raised, too.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)


class McpSession:
    """A session with a server, until `close`; a task of its own holds it open."""

    def __init__(self, mcp: Mcp, variables: Mapping[str, str]) -> None:
        loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._messages = ServerMessages(mcp.name)
        self._ready: asyncio.Future[Client] = loop.create_future()
        name = f"plait MCP {mcp.name}"
        self._task = loop.create_task(self._hold(mcp, variables), name=name, context=Context())

    async def list(self) -> list[LentTool]:
        """Return the tools of the server. Raises McpFailed."""
        found: list[LentTool] = []
        try:
            client, cursor = await asyncio.shield(self._ready), None
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                for each in page.tools:
                    hints = each.annotations
                    is_idempotent = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
                    found.append(LentTool(each.name, each.description or "", each.input_schema, is_idempotent))
                if (cursor := page.next_cursor) is None:
                    break
        except Exception as error:
            raise McpFailed(self._explain(error)) from None
        return found

    async def call(self, name: str, arguments: Mapping[str, Any]) -> McpResult:
        """Call a tool. Raises McpFailed."""
        try:
            client = await asyncio.shield(self._ready)
            return _read_result(await client.call_tool(name, {**arguments}))
        except Exception as error:
            raise McpFailed(self._explain(error)) from None

    def end(self) -> None:
        """Begin to end the session, and the process of the server."""
        self._closing.set()
        if not self._ready.done():
            self._task.cancel()

    async def close(self) -> None:
        """End the session, and wait until it has ended."""
        self.end()
        if not (await asyncio.wait([self._task], timeout=_CLOSE))[0]:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _hold(self, mcp: Mcp, variables: Mapping[str, str]) -> None:
        try:
            async with Client(self._messages.open(_open(mcp, variables, self._messages))) as client:
                self._ready.set_result(client)
                await self._closing.wait()
        except Exception as error:  # If the session was ready, the calls under way fail, too.
            if not self._ready.done():
                self._ready.set_exception(McpFailed(self._explain(error)))
                self._ready.exception()
        finally:
            self._ready.cancel()

    def _explain(self, error: BaseException) -> str:
        """Describe a failure, without texts that may have a part of a header; for a group, its first error."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED and self._messages.closed:
            return self._messages.closed
        return str(error) if isinstance(error, MCPError | McpFailed) else type(error).__name__


def _open(mcp: Mcp, variables: Mapping[str, str], messages: ServerMessages) -> AbstractAsyncContextManager[Any]:
    if isinstance(mcp.server, str):
        return open_url(mcp.server, mcp.fill(mcp.headers, variables), messages, timeout=mcp.timeout)
    return open_process(mcp.server, mcp.fill(mcp.env, variables), messages)


def _read_result(result: CallToolResult) -> McpResult:
    texts: list[str] = []
    files: list[tuple[str, str]] = []
    for each in result.content:
        match each:
            case TextContent(text=text):
                texts.append(text)
            case ImageContent(mime_type=mime, data=data) | AudioContent(mime_type=mime, data=data):
                files.append((mime, data))
            case EmbeddedResource(resource=BlobResourceContents(mime_type=mime, blob=data)):
                files.append((mime or "application/octet-stream", data))
            case EmbeddedResource(resource=TextResourceContents(text=text)):
                texts.append(text)
            case ResourceLink(uri=uri):
                texts.append(uri)
    if not result.content and result.structured_content is not None:
        texts.append(encode_json(result.structured_content).decode())
    return McpResult("\n\n".join(texts), files, result.is_error)
