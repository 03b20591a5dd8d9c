"""The rpcs of a thread as tools of MCP, without sessions. Needs the extra `plait[mcp]`."""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from msgspec import Raw
from starlette.responses import Response
from starlette.types import Message

from plait.actor.rpc import Method
from plait.errors import CallFailed, PlaitError
from plait.instruments.protocol import tell_limit
from plait.limits import check_json
from plait.web.http.exchange import Exchange
from plait.web.http.streamed import ResponseAborted, StreamedCall
from plait_schemas.codec import encode_json
from plait_schemas.encoding import EncodeError, encode_given

__all__ = ["answer_mcp"]


async def answer_mcp(exchange: Exchange) -> Response:
    """Answer one request of MCP. The caller checks whether the principal may call."""
    check_json("the body", body := await exchange.body(), exchange.context.limits)
    tools = _Tools(exchange, len(body))
    server: Server[Any] = Server(
        exchange.key.kind,
        # A schema may ask clients to repeat arguments in headers, for proxies: none of these schemas does.
        get_tool_input_schema=lambda name: None,
        on_list_tools=tools.list,
        on_call_tool=tools.call,
    )
    manager = StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=len(body) + 1
    )
    sent: list[Message] = []
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        return next(given, None) or await exchange.request.receive()

    async def send(message: Message) -> None:
        sent.append(message)

    async with manager.run():
        await manager.handle_request(exchange.request.scope, receive, send)
    response = Response(b"".join(each.get("body", b"") for each in sent[1:]), sent[0]["status"])
    response.raw_headers = [*sent[0]["headers"]]
    return response


class _Tools:
    """The rpcs of a thread, for one request."""

    def __init__(self, exchange: Exchange, size: int) -> None:
        self._exchange = exchange
        self._size = size
        methods = exchange.context.node.kind(exchange.key.kind).attributes.values()
        self._methods = {each.name: each for each in methods if each.is_for_clients}

    async def list(self, _: object, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[*map(_describe, self._methods.values())])

    async def call(self, _: object, params: CallToolRequestParams) -> CallToolResult:
        if (method := self._methods.get(params.name)) is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}")
        try:
            return _make_result(await self._call(method, params.arguments or {}))
        except PlaitError as error:
            tell_limit(self._exchange.context.instruments, error)
            return _make_result(str(error), is_error=True)

    async def _call(self, method: Method, given: Mapping[str, Any]) -> str:
        exchange, limits = self._exchange, self._exchange.context.limits
        with exchange.context.scheduler.measure():
            raw = {name: Raw(encode_json(value)) for name, value in given.items()}
            arguments = method.arguments([], raw, limits=limits)
        actor, connection = await exchange.enter(self._size)
        if method.is_stream:
            joined = _Joined()
            call = exchange.stream(actor, method, arguments, connection, joined.encode)
            reading = asyncio.ensure_future(joined.read(call, most=limits.write_buffer))
            return await exchange.outcome_unless_left(reading, call.leave)
        return _to_text(await exchange.call(actor, method, arguments, connection))


class _Joined:
    """Joins the chunks of a stream: texts stay as they are, and every other chunk becomes a line of JSON."""

    def __init__(self) -> None:
        self._error: PlaitError = CallFailed("the stream broke off before its end")

    async def read(self, call: StreamedCall, *, most: int) -> str:
        """Return the text, of at most `most` bytes. Raises the error of the stream, and TooLarge."""
        try:
            return (await call.join(most)).decode()
        except ResponseAborted:
            raise self._error from None

    def encode(self, what: str, value: object) -> tuple[bytes | None, bool]:
        if what == "error" and isinstance(value, PlaitError):
            self._error = value
            return None, True
        if value is None:
            return b"", what != "chunk"
        return (value if isinstance(value, str) else f"{_to_text(value)}\n").encode(), what != "chunk"


def _describe(method: Method) -> Tool:
    try:
        schema = method.describe_arguments()
    except (TypeError, ValueError, NotImplementedError):  # A type that JSON Schema cannot describe.
        schema = {"type": "object"}
    return Tool(name=method.name, description=inspect.getdoc(method.function) or "", input_schema=schema)


def _make_result(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=is_error)


def _to_text(value: object) -> str:
    """Return a text as it is, and anything else as JSON. Raises CallFailed."""
    try:
        return value if isinstance(value, str) else encode_given(value).decode()
    except EncodeError as error:
        raise CallFailed(f"the result is not JSON: {error}") from None
