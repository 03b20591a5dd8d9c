"""Tells the instruments of the HTTP requests for threads."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.errors import NotFound
from plait.instruments import TRACE
from plait.web.context import ServerContext
from plait.web.thread_urls import read_address

__all__ = ["serve_observed"]

# The status of a request whose client has disconnected before the answer.
_DISCONNECTED = 499


async def serve_observed(app: ASGIApp, context: ServerContext, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request; a thread that its URL does not name has neither kind nor name."""
    try:
        kind, name = read_address(scope).key
    except NotFound:
        kind, name = "", ""
    if kind not in context.node.kinds:
        kind, name = "", ""
    status = _DISCONNECTED

    async def send_observed(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    traceparent = Headers(scope=scope).get("traceparent")
    trace = context.instruments.request_began(kind, name, scope["method"], traceparent)
    try:
        await app({**scope, TRACE: trace}, receive, send_observed)
    finally:
        context.instruments.request_ended(trace, status)
