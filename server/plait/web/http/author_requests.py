"""Answers requests by the author's code: by an endpoint, or by `on_request`."""

import asyncio
from typing import Any, Final

from starlette.responses import Response

from plait.actor.endpoints import EndpointMethod, Endpoints
from plait.actor.outcome import make_resolver
from plait.errors import NotFound
from plait.web.http.exchange import Exchange, answer_json
from plait.web.http.request import BodyLimit
from plait.web.server_context import find_lease

__all__ = ["answer_by_author", "find_limit"]

_NO_CONTENT: Final = 204


def find_limit(endpoints: Endpoints, method: str, rest: str) -> BodyLimit | None:
    """Return the limit that an endpoint has for the body of a request at this path; None if it has none."""
    try:
        found = endpoints.find(method, rest)
    except NotFound:
        return None
    return None if found is None or found[0].limit is None else BodyLimit(found[0].limit, "endpoint")


async def answer_by_author(exchange: Exchange, rest: str) -> Response:
    """Answer a request at a path below its thread, still encoded, that plait does not answer itself."""
    await exchange.check("request")
    node, key, request = exchange.context.node, exchange.key, exchange.request
    request.state.principal = exchange.principal
    endpoint, arguments = None, dict[str, Any]()
    if (found := node.kind(key.kind).endpoints.find(request.method, rest)) is not None:
        endpoint, arguments = found[0], await _read_arguments(exchange, *found)
        actor = await node.stored_actor(key)
    else:
        actor = await node.actor(key, user=None if exchange.principal is None else exchange.principal.id)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    lease = find_lease(request)
    actor.turns.request(
        request, make_resolver(future), party=exchange.party, lease=lease, endpoint=endpoint, arguments=arguments
    )
    result = await future
    if isinstance(result, Response):
        return result
    if endpoint is None:
        raise TypeError(f"on_request of {key.kind} returned {type(result).__name__}; it must return a Response")
    return Response(status_code=_NO_CONTENT) if result is None and not endpoint.has_result else answer_json(result)


async def _read_arguments(exchange: Exchange, endpoint: EndpointMethod, values: dict[str, Any]) -> dict[str, Any]:
    body = b""
    if endpoint.is_json:
        body = await exchange.body()
    elif endpoint.body is not None:
        body = await exchange.raw_body()
    with exchange.context.scheduler.measure():
        return endpoint.arguments(values, exchange.request, body, limits=exchange.context.limits)
