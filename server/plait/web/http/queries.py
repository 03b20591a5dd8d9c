"""Queries over HTTP: a result once, or followed as a stream of events."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Rights
from plait.actor.outcome import make_resolver
from plait.actor.rpc import Asked
from plait.errors import InvalidArguments
from plait.instruments.protocol import TRACE
from plait.parts.queries.live_queries import Door, find_queries
from plait.parts.queries.outcome import Failure, Outcome, Rows
from plait.session.event_stream import QueryStream
from plait.state.types import parse_json_error
from plait.web.http.exchange import Exchange, read_tags
from plait.web.http.streamed import wants_events
from plait_schemas.codec import NOT_JSON

__all__ = ["answer_query"]

T = TypeVar("T")

_decode_args: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_kwargs: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def answer_query(exchange: Exchange, name: str) -> Response:
    """Answer with the result of a query of a stored thread, or with a stream of its results."""
    context, request = exchange.context, exchange.request
    await exchange.check("call")
    await exchange.body()
    actor = await context.node.stored_actor(exchange.key)
    method = actor.kind.query(name)
    with context.scheduler.measure():
        args, kwargs = _read(request, "args", _decode_args), _read(request, "kwargs", _decode_kwargs)
        asked = method.ask(args or (), kwargs, limits=context.limits)
    if wants_events(request):
        have = request.headers.get("last-event-id") or request.query_params.get("have", "")

        async def open_(stream: QueryStream) -> None:
            await stream.follow(request, asked, have)

        return await exchange.stream_events(actor, QueryStream, open_)
    rows = await _find_rows(exchange, actor, asked)
    tag = f'"{rows.tag}"'
    if {"*", tag} & read_tags(request, "if-none-match"):
        return Response(status_code=304, headers={"etag": tag})
    return Response(rows.data, media_type="application/json", headers={"etag": tag})


async def _find_rows(exchange: Exchange, actor: Actor, asked: Asked) -> Rows:
    """Return the result of a query. Raises the error of its run, and ClientDisconnect."""
    connection = exchange.connect(actor, Rights(exchange.principal, may_write=False))
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    # A turn, which the thread ends when it is destroyed, moves or is stopped.
    work = partial(_read_once, actor, asked, connection)
    turn = actor.begin(f"query {asked.query.name}", work, make_resolver(future), is_used=False)
    turn.trace = exchange.request.scope.get(TRACE)
    outcome: Rows | Failure = await exchange.outcome_unless_left(future, turn.abandon)
    exchange.lease.check()
    if not isinstance(outcome, Rows):
        raise outcome.error
    return outcome


async def _read_once(actor: Actor, asked: Asked, connection: Connection) -> Outcome:
    """Follow a query up to its first outcome. Raises TooMany."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    resolve = make_resolver(told)
    door = Door(lambda _: resolve(None, None), partial(resolve, None), told.done)
    reader = find_queries(actor).open(asked, connection, door)
    try:
        await told
    finally:
        reader.abandon()
    assert reader.told is not None
    return reader.told


def _read(request: Request, name: str, decode: Callable[[str], T]) -> T | None:
    """Return the JSON of a parameter of the URL; None without it. Raises InvalidArguments."""
    if (given := request.query_params.get(name)) is None:
        return None
    try:
        return decode(given)
    except NOT_JSON as error:
        message, path = parse_json_error(error)
        raise InvalidArguments(f"{name}={given[:80]}: {message}", path=f"/{name}{path}") from None
