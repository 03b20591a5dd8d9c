"""Answers HTTP requests: limits their bodies, turns exceptions into responses, and tells the instruments."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from plait.cluster.gate import OPEN
from plait.errors import PlaitError, TooLarge, Unauthenticated
from plait.instruments.protocol import TRACE, tell_limit
from plait.session.leases import PrincipalLease
from plait.store.thread_rows import ThreadKey
from plait.web.gated import GatedSend, wait_until_open
from plait.web.lost import SAFE, abort, make_lost
from plait.web.relay.requests import relay_request
from plait.web.server_context import ServerContext, error_body, error_response, find_traceparent
from plait.web.thread_urls import Address

__all__ = ["BodyLimit", "Endpoint", "Headers", "LimitedRequest", "PathRoute", "keep_private"]

# Statuses of requests that end without an answer: the client has disconnected, or the app has raised an exception,
# which the server turns into a response.
_DISCONNECTED: Final = 499
_FAILED: Final = 500

_NOT_IN_NAMES: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

Headers = list[tuple[bytes, bytes]]


class BodyLimit(NamedTuple):
    """The maximum bytes of a request's body, and the name of the field of `Limits` that sets this maximum."""

    size: int
    name: str = "frame"

    def check(self, size: int) -> None:
        """Raise TooLarge if a body has more bytes."""
        if size > self.size:
            raise TooLarge(f"a body may have at most {self.size} bytes", limit=self.name)


class LimitedRequest(Request):
    """Raises TooLarge if the body has more bytes than its limit; reads a small body faster than Starlette."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, address: Address | None = None, limit: BodyLimit
    ) -> None:
        super().__init__(scope, _limit_body(receive, limit), send)
        # The thread that the URL names, if any.
        self.address = address
        self._receive_any = receive
        self._whole: bytes | None = None
        self._is_begun = False
        # Whether another reader has begun.
        self._is_passed_on = False

    async def body(self) -> bytes:
        """Return the body. Raises ClientDisconnect."""
        if self._whole is not None:
            return self._whole
        if self._is_begun:
            return await super().body()
        self._is_begun = True
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            body = b"".join([body, *[chunk async for chunk in super().stream()]])
        self._whole = body
        return body

    async def receive_anew(self) -> Message:
        """Return the next message of the request, for another reader: first the body, if it has been read.

        The size of the body is not limited. Raises RuntimeError if only a part of the body has been read.
        """
        if self._is_passed_on or not self._is_begun:
            self._is_passed_on = True
            return await self._receive_any()
        if self._whole is None:
            raise RuntimeError("a part of the request's body has been read: read it with request.body()")
        self._is_passed_on = True
        return {"type": "http.request", "body": self._whole, "more_body": False}

    async def stream(self) -> AsyncGenerator[bytes, Any]:
        """Yield the parts of the body as they arrive, and an empty one at the end. Raises ClientDisconnect."""
        if self._whole is not None:
            yield self._whole
            yield b""
            return
        self._is_begun = True
        async for chunk in super().stream():
            yield chunk


def _limit_body(receive: Receive, limit: BodyLimit) -> Receive:
    """Return a `receive` that raises TooLarge if the body has more bytes than its limit."""
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        limit.check(size)
        return message

    return receive_limited


class Endpoint:
    """An ASGI app. Requests are answered by the node that owns their thread."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        # Nodes that run the same app make their endpoints in the same order.
        self._number = len(context.endpoints)
        context.endpoints.append(self._answer_relayed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = self._make_request(scope, receive, send)
        owners = self._context.owners
        gate, gated = owners.gate, send
        try:
            if gate is not OPEN:
                hold = self._context.links.hold
                await wait_until_open(gate, hold)
                gated = GatedSend(gate, scope, keep_private(send, scope), hold=hold)
            if not owners.is_alone and await self._relay(request, gated):
                return
        except Exception as error:
            await self._observe(request, send, error)
            return
        await self._observe(request, gated)

    # Overridden for each kind of URL

    def _find_address(self, scope: Scope) -> Address | None:
        """Return the thread that a URL names, for logs and instruments; None if it names none."""
        raise NotImplementedError

    def _find_limit(self, scope: Scope, address: Address | None) -> BodyLimit:
        """Return the limit of a body."""
        return BodyLimit(self._context.limits.frame)

    async def _locate(self, request: LimitedRequest) -> ThreadKey | None:
        """Return the thread of a request, even if its URL does not name it; None if there is none."""
        return None if request.address is None else request.address.key

    async def _answer(self, request: LimitedRequest, headers: Headers) -> Response:
        """Answer a request. Headers that are added to the list are sent with the answer, even if that is an error."""
        raise NotImplementedError

    # Inside

    def _make_request(self, scope: Scope, receive: Receive, send: Send) -> LimitedRequest:
        address = self._find_address(scope)
        return LimitedRequest(scope, receive, send, address=address, limit=self._find_limit(scope, address))

    async def _relay(self, request: LimitedRequest, send: Send) -> bool:
        """Relay the request to the owner of its thread; return False if this node has to answer it."""
        context, key = self._context, await self._locate(request)
        if key is None:
            return False
        context.node.check_draining()
        if await context.links.find_link(key) is None:
            return False
        scope, receive, send = request.scope, request.receive_anew, keep_private(send, request.scope)
        await relay_request(key, self._number, scope, receive, send, links=context.links, relays=context.relays)
        return True

    async def _answer_relayed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that a gateway has relayed."""
        await self._observe(self._make_request(scope, receive, send), send)

    async def _observe(self, request: LimitedRequest, send: Send, refusal: Exception | None = None) -> None:
        """Answer a request, with an error if it is refused, and tell the instruments."""
        scope, address = request.scope, request.address
        instruments, place = self._context.instruments, None if address is None else address.key
        # Kind and name are empty if the app does not have the kind.
        kind, name = place if place is not None and place.kind in self._context.node.kinds else ("", "")
        trace = scope[TRACE] = instruments.request_began(kind, name, scope["method"], find_traceparent(scope))
        status = 0

        def send_observed(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                _check_head(message)
                _make_private(message)
                status = message["status"]
            return send(message)

        headers: Headers = []
        lease = self._context.begin_lease(request)
        try:
            try:
                if refusal is not None:
                    raise refusal
                self._context.node.check_draining()
                await _serve(await self._answer(request, headers), headers, request, send_observed, lease)
            except Exception as error:
                if status:
                    raise
                if not isinstance(error, ClientDisconnect):
                    response = self._make_error(error, place)
                    response.raw_headers.extend(headers)
                    await response(scope, request.receive, send_observed)
                error.__traceback__ = None  # The traceback's frames hold the error, and the body, in a cycle.
        except BaseException:
            instruments.request_ended(trace, status or _FAILED)
            raise
        finally:
            lease.end()
        instruments.request_ended(trace, status or _DISCONNECTED)

    def _make_error(self, error: Exception, place: ThreadKey | None) -> Response:
        """Return the answer for an exception that was raised before an answer began."""
        if isinstance(error, PlaitError | HTTPException):
            tell_limit(self._context.instruments, error)
            return error_response(error)
        return JSONResponse(error_body("internal", str(self._context.failures.explain(error, place))), 500)


async def _serve(response: Response, headers: Headers, request: Request, send: Send, lease: PrincipalLease) -> None:
    response.raw_headers.extend(headers)
    if lease.principal is None or lease.is_open or hasattr(response, "body"):
        await response(request.scope, request.receive, send)
    else:
        await _stream(response, request, send, lease)


async def _stream(response: Response, request: Request, send: Send, lease: PrincipalLease) -> None:
    """Send an answer of the app, up to the end of the lease."""
    task, has_begun = asyncio.current_task(), False

    def close(code: int, reason: str) -> None:
        if has_begun and task is not None:
            task.cancel()

    lease.open(close)
    if (reason := lease.reason) is not None:
        is_safe = request.method in SAFE
        response = error_response(Unauthenticated(reason) if is_safe else make_lost(request.method, reason))
    # Background tasks belong to the server: they go on after the lease.
    background, response.background = getattr(response, "background", None), None
    has_begun = True
    try:
        await response(request.scope, request.receive, send)
    except asyncio.CancelledError:
        if lease.reason is None or (task is not None and task.uncancel()):
            raise
        abort(request.scope)
        return
    lease.end()
    if background is not None:
        await background()


def _check_head(head: Message) -> None:
    """Raise ValueError for a head that is invalid in HTTP; uvicorn would notice only after it has begun to send it."""
    names, values = zip(*(head.get("headers") or [(b"", b"")]), strict=True)
    if _NOT_IN_NAMES.search(b"".join(names)) or _CONTROL.search(b"".join(values)) or not 200 <= head["status"] < 600:
        raise ValueError(f"the status {head['status']}, or one of the headers {names}, is not valid in HTTP")


def _make_private(head: Message) -> None:
    """Add a `Cache-Control` to the head of an answer without one, so that no proxy gives the answer to others."""
    names = [name.lower() for name, _ in head.get("headers", ())]
    if b"cache-control" not in names:
        value = b"private, no-cache" if b"etag" in names else b"no-store"
        head["headers"] = [*head.get("headers", ()), (b"cache-control", value)]


def keep_private(send: Send, scope: Scope) -> Send:
    """Return a `send` that keeps answers out of the caches of proxies, as endpoints do, but not static files."""

    def send_private(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            is_static = message["status"] < 400 and isinstance(scope.get("endpoint"), StaticFiles)
            if not is_static:
                _make_private(message)
        return send(message)

    return send_private


class PathRoute(BaseRoute):
    """Routes each request whose URL matches to an endpoint."""

    def __init__(self, endpoint: Endpoint, serves: Callable[[Scope], bool]) -> None:
        self._endpoint = endpoint
        self._serves = serves

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL if scope["type"] == "http" and self._serves(scope) else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)
