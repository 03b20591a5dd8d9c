"""How MCP servers are reached, with bounded messages: by Streamable HTTP, or as a process that speaks over stdio."""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from plait.agents.execution.mcp import McpFailed

__all__ = ["open_process", "open_url"]

# Bytes of one message, or of one answer over HTTP.
_MOST_BYTES: Final = 4 * 1024 * 1024
# The processes of servers that may run at once, and those that do.
_MOST_PROCESSES: Final = 64
_processes: Final = set[Process]()
# Seconds to connect, and those that a process has to end when its input is closed.
_CONNECT: Final = 10.0
_GRACE: Final = 2.0


@asynccontextmanager
async def open_url(url: str, headers: Mapping[str, str], *, timeout: float) -> AsyncIterator[Any]:
    """Yield the messages of a server and those for it, over HTTP. A request with the headers leaves no other origin."""
    async with (
        httpx2.AsyncClient(
            headers={"accept-encoding": "identity", **headers},
            timeout=httpx2.Timeout(_CONNECT, read=timeout),
            transport=_LimitedTransport(),
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=_MOST_BYTES) as streams,
    ):
        yield streams


class _LimitedTransport(httpx2.AsyncHTTPTransport):
    """Limits the bytes of each answer, which must not be compressed."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the answer is compressed", request=request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _LimitedStream(response.stream)
        return response


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > _MOST_BYTES:
                raise httpx2.ReadError(f"the answer has more than {_MOST_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def open_process(command: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator[Any]:
    """Start a server, and yield its messages and those for it; then end it, with all processes of its group.

    It inherits what a program needs, such as PATH, but no other variables. What it writes to standard error is dropped,
    since that may have a secret. The transport of `mcp` would read lines without a limit.
    """
    if len(_processes) >= _MOST_PROCESSES:
        raise McpFailed(f"{_MOST_PROCESSES} processes of servers run already")
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env={**get_default_environment(), **environment},
        limit=_MOST_BYTES,
        start_new_session=True,
    )
    _processes.add(process)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        assert process.stdout is not None
        async with to_client:
            with suppress(ValueError):  # A line that is too long ends the session.
                async for line in process.stdout:
                    with suppress(ValidationError):  # A line that is no message is skipped.
                        await to_client.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))

    async def write() -> None:
        assert process.stdin is not None
        async with from_client:
            with suppress(ConnectionError):  # The end of the output ends the session.
                async for each in from_client:
                    text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.stdin.write(text.encode() + b"\n")
                    await process.stdin.drain()

    try:
        async with from_server, to_server, anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(write)
            try:
                yield from_server, to_server
            finally:
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _end(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    with anyio.move_on_after(_GRACE):
        await _drain(process)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _processes.discard(process)
    with anyio.move_on_after(_GRACE):  # A process that has left its group may keep the output open.
        await _drain(process)


async def _drain(process: Process) -> None:
    """Read the output up to its end, as the transport of a pipe is closed by that."""
    assert process.stdout is not None
    while await process.stdout.read(64 * 1024):
        pass
    await process.wait()
