"""Tells the instruments of the HTTP requests for threads."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.instruments import TRACE
from plait.store.protocol import ThreadKey
from plait.web.context import ServerContext, find_traceparent

__all__ = ["serve_observed"]

# The statuses of a request without an answer: its client has disconnected, or there was an exception, of which the
# server makes an answer of its own.
_DISCONNECTED = 499
_FAILED = 500


async def serve_observed(
    app: ASGIApp, context: ServerContext, scope: Scope, receive: Receive, send: Send, *, place: ThreadKey | None
) -> None:
    """Serve a request for a thread; one that its URL does not name has neither kind nor name."""
    kind, name = place if place is not None and place.kind in context.node.kinds else ("", "")
    status: int | None = None

    async def send_observed(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    traceparent = find_traceparent(Headers(scope=scope))
    trace = context.instruments.request_began(kind, name, scope["method"], traceparent)
    try:
        await app({**scope, TRACE: trace}, receive, send_observed)
    except BaseException:
        context.instruments.request_ended(trace, status or _FAILED)
        raise
    context.instruments.request_ended(trace, status or _DISCONNECTED)
