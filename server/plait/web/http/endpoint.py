"""Answers HTTP requests: limits their bodies, turns exceptions into responses, and tells the instruments."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from plait.cluster.gate import OPEN
from plait.errors import PlaitError, Unauthenticated
from plait.instruments.protocol import TRACE, tell_limit
from plait.session.leases import PrincipalLease
from plait.store.protocol import ThreadKey
from plait.web.gated import GatedSend, wait_until_open
from plait.web.http.heads import check_head
from plait.web.http.request import BodyLimit, LimitedRequest
from plait.web.lost import SAFE, abort, make_lost
from plait.web.relay.requests import relay_request
from plait.web.server_context import ServerContext, error_body, error_response, find_traceparent

__all__ = ["Answer", "Endpoint", "Headers", "PathRoute"]

# The statuses of a request without an answer: its client has disconnected, or it raised an exception, which the server
# turns into a response.
_DISCONNECTED: Final = 499
_FAILED: Final = 500

Headers = list[tuple[bytes, bytes]]

Answer = Callable[[Request, Headers], Awaitable[Response]]
"""Answers a request; the headers that it adds to the list are sent with its answer, or with that of its error."""

Locate = Callable[[Request], Awaitable[ThreadKey | None]]
"""Returns the thread of a request; None if there is none."""


class Endpoint:
    """An ASGI app, which answers a request where its thread is owned.

    `find_place` returns the thread that a URL names, if any, for logs and instruments. `locate` finds the thread if the
    URL does not name it. `find_limit` returns the limit of a body, if it is not the one of messages.
    """

    def __init__(
        self,
        context: ServerContext,
        find_place: Callable[[Scope], ThreadKey | None],
        answer: Answer,
        *,
        locate: Locate | None = None,
        find_limit: Callable[[Scope], BodyLimit | None] = lambda _: None,
    ) -> None:
        self._context = context
        self._find_place = find_place
        self._answer = answer
        self._locate = locate
        self._find_limit = find_limit
        # Nodes that run the same app make their endpoints in the same order.
        self._number = len(context.endpoints)
        context.endpoints.append(self._answer_relayed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, answer = self._make_request(scope, receive, send), self._answer_here
        owners = self._context.owners
        gate, gated = owners.gate, send
        try:
            if gate is not OPEN:
                hold = self._context.links.hold
                await wait_until_open(gate, hold)
                gated = GatedSend(gate, scope, send, hold=hold)
            if not owners.is_alone and await self._relay(request, gated):
                return
        except Exception as error:
            await self._observe(request, send, partial(_fail, error))
            return
        await self._observe(request, gated, answer)

    # Inside

    def _make_request(self, scope: Scope, receive: Receive, send: Send) -> LimitedRequest:
        limit = self._find_limit(scope) or BodyLimit(self._context.limits.frame)
        return LimitedRequest(scope, receive, send, limit=limit)

    async def _relay(self, request: LimitedRequest, send: Send) -> bool:
        """Have the owner of the thread answer the request, unless this node owns it; return whether it has."""
        context = self._context
        key = self._find_place(request.scope) if self._locate is None else await self._locate(request)
        if key is None:
            return False
        context.node.check_draining()
        if await context.links.find_link(key) is None:
            return False
        scope, receive = request.scope, request.receive_anew
        await relay_request(key, self._number, scope, receive, send, links=context.links, relays=context.relays)
        return True

    async def _answer_relayed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that a gateway has relayed."""
        await self._observe(self._make_request(scope, receive, send), send, self._answer_here)

    async def _answer_here(self, request: Request, headers: Headers) -> Response:
        self._context.node.check_draining()
        return await self._answer(request, headers)

    async def _observe(self, request: LimitedRequest, send: Send, answer: Answer) -> None:
        scope = request.scope
        instruments, place = self._context.instruments, self._find_place(scope)
        # Kind and name are empty if the app does not have the kind.
        kind, name = place if place is not None and place.kind in self._context.node.kinds else ("", "")
        trace = scope[TRACE] = instruments.request_began(kind, name, scope["method"], find_traceparent(scope))
        status = 0

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                check_head(message)
                status = message["status"]
            await send(message)

        headers: Headers = []
        try:
            with self._context.hold_lease(request) as lease:
                try:
                    await _serve(await answer(request, headers), headers, request, send_observed, lease)
                except Exception as error:
                    if status:
                        raise
                    if not isinstance(error, ClientDisconnect):
                        response = self._make_error(error, place)
                        response.raw_headers.extend(headers)
                        await response(scope, request.receive, send_observed)
                    error.__traceback__ = None  # Its frames hold the error, and the body, in a cycle.
        except BaseException:
            instruments.request_ended(trace, status or _FAILED)
            raise
        instruments.request_ended(trace, status or _DISCONNECTED)

    def _make_error(self, error: Exception, place: ThreadKey | None) -> Response:
        """Return the answer for an exception that was raised before there was another one."""
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
    # It is work of the server, which goes on.
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


async def _fail(error: Exception, request: Request, headers: Headers) -> Response:
    raise error


class PathRoute(BaseRoute):
    """Routes each request whose URL matches to an endpoint."""

    def __init__(self, endpoint: Endpoint, serves: Callable[[Scope], bool]) -> None:
        self._endpoint = endpoint
        self._serves = serves

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL if scope["type"] == "http" and self._serves(scope) else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)
