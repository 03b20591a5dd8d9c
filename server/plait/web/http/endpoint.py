"""Answers HTTP requests: limits their bodies, turns exceptions into responses, and tells the instruments."""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from plait.errors import PlaitError
from plait.instruments.protocol import TRACE
from plait.store.protocol import ThreadKey
from plait.web.context import ServerContext, error_body, error_response, find_traceparent
from plait.web.http.request import LimitedRequest

__all__ = ["Answer", "Endpoint", "Headers", "PathRoute"]

# The statuses of a request without an answer: its client has disconnected, or it raised an exception, which the server
# turns into a response.
_DISCONNECTED: Final = 499
_FAILED: Final = 500

Headers = list[tuple[bytes, bytes]]

Answer = Callable[[Request, Headers], Awaitable[Response]]
"""Answers a request; the headers that it adds to the list are sent with its answer, or with that of its error."""


class Endpoint:
    """An ASGI app. `find_place` returns the thread that a URL names, if any, for logs and instruments."""

    def __init__(self, context: ServerContext, find_place: Callable[[Scope], ThreadKey | None], answer: Answer) -> None:
        self._context = context
        self._find_place = find_place
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        instruments, place = self._context.instruments, self._find_place(scope)
        # Kind and name are empty if the app does not have the kind.
        kind, name = place if place is not None and place.kind in self._context.node.kinds else ("", "")
        trace = scope[TRACE] = instruments.request_began(kind, name, scope["method"], find_traceparent(scope))
        status = 0

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._serve(scope, receive, send_observed, place)
        except BaseException:
            instruments.request_ended(trace, status or _FAILED)
            raise
        instruments.request_ended(trace, status or _DISCONNECTED)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, place: ThreadKey | None) -> None:
        request = LimitedRequest(scope, receive, send, limit=self._context.limits.frame)
        headers: Headers = []
        try:
            self._context.node.check_draining()
            response = await self._answer(request, headers)
        except ClientDisconnect:
            return
        except (PlaitError, HTTPException) as error:
            if isinstance(error, PlaitError) and error.limit is not None:
                self._context.instruments.limit_hit(error.limit)
            response = error_response(error)
        except Exception as error:
            explained = self._context.failures.explain(error, place)
            response = JSONResponse(error_body("internal", str(explained)), 500)
        response.raw_headers.extend(headers)
        await response(scope, receive, send)


class PathRoute(BaseRoute):
    """Routes each request whose URL matches to an endpoint."""

    def __init__(self, endpoint: Endpoint, serves: Callable[[Scope], bool]) -> None:
        self._endpoint = endpoint
        self._serves = serves

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL if scope["type"] == "http" and self._serves(scope) else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)
