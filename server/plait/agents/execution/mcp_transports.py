"""How MCP servers are reached, with bounded messages: by Streamable HTTP, or as a process that speaks over stdio."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from plait.agents.execution.mcp import McpFailed
from plait.code.child import Child, open_child

__all__ = ["ServerMessages", "open_process", "open_url"]

log = logging.getLogger("plait.agents")

Received = SessionMessage | Exception
_ToClient = MemoryObjectSendStream[Received]
_FromClient = MemoryObjectReceiveStream[SessionMessage]

# Bytes of one message, or of one answer over HTTP.
_MOST_BYTES: Final = 4 * 1024 * 1024
_TOO_LARGE: Final = f"a message of the server has more than {_MOST_BYTES} bytes"
# Tools on one page, as each is checked.
_MOST_ON_PAGE: Final = 2_000
# The processes of servers that may run at once.
_processes: Final = asyncio.Semaphore(64)
# Seconds to connect, and those that a process has to end when its input is closed.
_CONNECT: Final = 10.0
_GRACE: Final = 2.0


class ServerMessages(ObjectReceiveStream[Received]):
    """The messages of a server, without the tools that it describes badly: these are logged, once."""

    # Why no more messages come, if that is known.
    closed = ""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stream: ReadStream[Received]
        self._bad: set[str] = set()

    @asynccontextmanager
    async def open(self, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        """Yield the messages of a transport through this object, and the stream for messages to the server."""
        async with transport as (self._stream, sent):
            yield self, sent

    async def receive(self) -> Received:
        try:
            received = await anext(self._stream)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None
        match received:
            case SessionMessage(message=JSONRPCResponse(result={"tools": list() as tools} as result)):
                if len(tools) > _MOST_ON_PAGE:
                    self.closed = f"a page of the server has more than {_MOST_ON_PAGE} tools"
                    raise anyio.EndOfStream
                result["tools"] = [each for each in tools if self._is_good(each)]
        return received

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _is_good(self, tool: Any) -> bool:
        try:
            validate_server_result("tools/list", "2025-11-25", {"tools": [tool]})
            return True
        except ValidationError as error:
            name = str(tool.get("name"))[:80] if isinstance(tool, dict) else "without a name"
            if name not in self._bad:
                self._bad.add(name)
                why = error.errors()[0]["msg"]
                log.warning("the tool %s of the MCP server %s is left out: %s", name, self._name, why)
            return False


@asynccontextmanager
async def open_url(
    url: str, headers: Mapping[str, str], messages: ServerMessages, *, timeout: float
) -> AsyncIterator[Any]:
    """Yield the messages from and to a server, over HTTP. A request with the headers goes to no other origin."""
    async with (
        httpx2.AsyncClient(
            headers={"accept-encoding": "identity", **headers},
            timeout=httpx2.Timeout(_CONNECT, read=timeout),
            event_hooks={"response": [partial(_limit, messages)]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=_MOST_BYTES) as streams,
    ):
        yield streams


async def _limit(messages: ServerMessages, response: httpx2.Response) -> None:
    """Limit the bytes of an answer, which must not be compressed."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("the answer is compressed", request=response.request)
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _LimitedStream(response.stream, messages)


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, messages: ServerMessages) -> None:
        self._stream = stream
        self._messages = messages

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > _MOST_BYTES:
                self._messages.closed = _TOO_LARGE
                raise httpx2.ReadError(_TOO_LARGE)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def open_process(
    command: Sequence[str], environment: Mapping[str, str], messages: ServerMessages
) -> AsyncIterator[Any]:
    """Start a server, and yield the messages from and to it; then end it, with all processes of its group.

    The process inherits the variables that programs need, such as PATH, but no others. Its standard error is dropped,
    because that may contain a secret. The transport of `mcp` would read lines without a limit.
    """
    if _processes.locked():
        raise McpFailed("too many processes of servers run already")
    environment = {**get_default_environment(), **environment}
    opening = open_child(command, environment=environment, limit=_MOST_BYTES, grace=_GRACE)
    async with _processes, _shield(opening) as child:
        to_client, from_server = anyio.create_memory_object_stream[Received](0)
        # Without a limit, so that a call can be cancelled if the server does not read: calls are few.
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage](math.inf)
        async with from_server, to_server, anyio.create_task_group() as group:
            group.start_soon(_read, child.stdout, child.stdin, to_client, messages)
            group.start_soon(_write, child.stdin, from_client)
            try:
                yield from_server, to_server
            finally:
                group.cancel_scope.cancel()


@asynccontextmanager
async def _shield(opening: AbstractAsyncContextManager[Child]) -> AsyncIterator[Child]:
    """Protect a block from a cancelled scope, which would cancel it again and again."""
    child = await opening.__aenter__()
    try:
        yield child
    finally:
        with anyio.CancelScope(shield=True):
            await opening.__aexit__(None, None, None)


async def _read(
    output: asyncio.StreamReader, input: asyncio.StreamWriter, to_client: _ToClient, messages: ServerMessages
) -> None:
    async with to_client:
        messages.closed = "the process of the server has ended"
        try:
            async for line in output:
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValidationError:
                    continue  # A line that is no message is skipped.
                if isinstance(message, JSONRPCRequest):
                    await input.drain()  # A server that does not read the answers gets no more of them.
                await to_client.send(SessionMessage(message))
        except ConnectionError:
            pass
        except ValueError:  # The line is too long.
            messages.closed = _TOO_LARGE


async def _write(input: asyncio.StreamWriter, from_client: _FromClient) -> None:
    async with from_client:
        with suppress(ConnectionError):  # The end of the output ends the session.
            async for each in from_client:
                input.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await input.drain()
