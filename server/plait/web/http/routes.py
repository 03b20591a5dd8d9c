"""The HTTP endpoint of threads: state, history, rpcs and `on_request`."""

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from plait.actor.connection import Connection, Rights
from plait.actor.facade import Facade
from plait.actor.logs import log_error
from plait.actor.outcome import make_resolver
from plait.actor.rpc import Method
from plait.errors import (
    CallFailed,
    Conflict,
    InvalidArguments,
    NotFound,
    PlaitError,
    Readonly,
    Reject,
    TooLarge,
    public_message,
)
from plait.instruments import NO_INSTRUMENTS, TRACE
from plait.session.native.tokens import seconds_left
from plait.state.types import parse_json_error
from plait.web.context import ServerContext, error_response
from plait.web.http.log import changes, event_stream, state_at, tag, wants_events
from plait.web.http.observed import serve_observed
from plait.web.http.streamed import Lines, Streamed
from plait.web.identity import Action
from plait.web.thread_urls import Address, is_thread_path, read_address
from plait.web.turns import LARGE
from plait_schemas.codec import NOT_JSON, UNENCODABLE, encode_json

__all__ = ["HttpEndpoint", "ThreadRoute"]


class CallBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an rpc over HTTP."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


_decode_call = msgspec.json.Decoder(CallBody).decode


class HttpEndpoint:
    """The ASGI app for HTTP requests below `/threads` and `/agents`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._context.instruments is NO_INSTRUMENTS:
            await self._serve(scope, receive, send)
        else:
            await serve_observed(self._serve, self._context, scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, _limit_body(receive, self._context.limits.frame), send)
        address: Address | None = None
        try:
            address = read_address(scope)
            response = await self._answer(request, address)
        except ClientDisconnect:
            return
        except Exception as error:
            if address is not None and not isinstance(error, PlaitError | HTTPException):
                log_error(error, address.key, None)
            if isinstance(error, PlaitError) and error.limit is not None:
                self._context.instruments.limit_hit(error.limit)
            response = error_response(error)
        await response(scope, receive, send)

    async def _answer(self, request: Request, address: Address) -> Response:
        context = self._context
        context.check_place(request, address.key.kind)
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            context.identity.check_origin(request)
        principal = await context.identity.principal(request)
        if isinstance(principal, Response):
            return principal
        context.requests.take(request, principal)
        context.check_kind(request, address.key.kind)
        exchange = _Exchange(context, request, address, principal)
        match request.method, address.rest.split("/"):
            case "GET" | "HEAD", [""]:
                return await exchange.get_state()
            case "GET" | "HEAD", ["changes"]:
                return await exchange.get_changes()
            case "PUT", [""]:
                return await exchange.put_state()
            case "DELETE", [""]:
                return await exchange.destroy()
            case "POST", ["rpc", method] if method:
                return await exchange.call(method)
            case _:
                return await exchange.request()


class ThreadRoute(BaseRoute):
    """Routes to an endpoint every path that `read_address` reads."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_thread = scope["type"] == "http" and is_thread_path(scope)
        return Match.FULL if is_thread else Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoint(scope, receive, send)


class _Exchange:
    """One request to one thread."""

    def __init__(self, context: ServerContext, request: Request, address: Address, principal: Any) -> None:
        self._context = context
        self._request = request
        self._key = address.key
        self._principal = principal
        # The lines of a streamed answer.
        self._lines = Lines(context.limits.write_buffer)

    async def get_state(self) -> Response:
        actor = await self._read()
        if (version := self._request.query_params.get("at")) is not None:
            with actor.keep_awake():
                return await state_at(actor, version)
        revision = actor.durable
        if revision.json is None:
            raise NotFound(f"{self._key} has no state yet")
        current = tag(actor.epoch, revision.version)
        # If the type has gained a field, the version has another text than before.
        if revision.is_stored and {"*", current} & _read_tags(self._request.headers.get("if-none-match")):
            return Response(status_code=304, headers={"etag": current})
        return Response(revision.json, media_type="application/json", headers={"etag": current})

    async def get_changes(self) -> Response:
        actor = await self._read()
        if wants_events(self._request):
            return await event_stream(actor, self._request, self._principal, self._context.addresses)
        with actor.keep_awake():
            query = self._request.query_params
            return await changes(actor, query.get("since"), query.get("limit"), query.get("patch"))

    async def put_state(self) -> Response:
        await self._check("write")
        body = await self._body()
        actor, connection = await self._enter(len(body))
        if connection.readonly:
            raise Readonly("Connection is readonly")
        epoch = actor.epoch
        wanted = _read_tags(self._request.headers.get("if-match"))
        if wanted and not ({"*", tag(epoch, actor.current.version)} & wanted):
            raise Conflict(f"the state is at version {actor.current.version}, not the one in If-Match")
        try:
            with self._context.turns.measure():
                commit = actor.put(body, connection)
        except PlaitError:
            raise
        except Exception as error:  # validate_state_change may refuse with any exception.
            log_error(error, self._key, connection)
            raise Reject("State update rejected") from None
        version = await commit
        await actor.store()  # The state may be the initial one, which is no change.
        headers = {"etag": tag(epoch, version)}
        return JSONResponse({"epoch": epoch, "version": version}, headers=headers)

    async def call(self, name: str) -> Response:
        await self._check("call")
        body = await self._body()
        actor, connection = await self._enter(len(body))
        method = actor.kind.method(unquote(name))
        try:
            call = _decode_call(body) if body.strip() else CallBody()
        except NOT_JSON as error:
            raise InvalidArguments(
                f'the body must be {{"args": […], "kwargs": {{…}}}}: {parse_json_error(error)[0]}'
            ) from None
        with self._context.turns.measure():
            arguments = method.arguments(call.args, call.kwargs, depth=self._context.limits.depth)
        if method.is_stream:
            return self._stream(actor, method, arguments, connection)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        actor.call(
            method, arguments, make_resolver(future), connection=connection, request=self._request, by_client=True
        )
        return _answer_json({"result": await self._wait_for(future)})

    async def destroy(self) -> Response:
        await self._check("destroy")
        await self._context.node.destroy(self._key, self._request.scope.get(TRACE))
        return Response(status_code=204)

    async def request(self) -> Response:
        await self._check("request")
        actor = await self._context.node.actor(self._key)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._request.state.principal = self._principal
        actor.request(self._request, make_resolver(future))
        response = await future
        if not isinstance(response, Response):
            raise TypeError(
                f"on_request of {self._key.kind} returned {type(response).__name__}; it must return a Response"
            )
        return response

    # Inside

    async def _read(self) -> Facade:
        """Return the thread to be read, which must be stored: a request that only reads begins none."""
        await self._check("read")
        return await self._context.node.stored_actor(self._key)

    async def _check(self, action: Action) -> None:
        await self._context.identity.check(self._principal, self._key, action)

    async def _body(self) -> bytes:
        body = await self._request.body()
        self._context.requests.charge(self._request, self._principal, len(body))
        return body

    async def _enter(self, size: int) -> tuple[Facade, Connection]:
        """Return the thread, and a connection that represents this request: the source of its change, with its rights.

        A request with a large body, of `size` bytes, waits for its turn.
        The caller must use the thread before it awaits anything else, as with `Node.actor`.
        """
        may_write = await self._context.identity.may(self._principal, self._key, "write")
        actor = await self._context.actor(self._principal, self._key)
        rights = Rights(self._principal, may_write)
        connection = actor.make_connection(f"http-{secrets.token_hex(8)}", self._lines, rights=rights)
        connection.trace = self._request.scope.get(TRACE)
        # A turn of the thread, so that it does not stop before this request continues.
        if await actor.is_readonly(connection, self._request):
            connection.readonly = True
        if size >= LARGE:
            with actor.keep_awake():
                await self._context.turns.turn()
        return actor, connection

    async def _wait_for(self, future: asyncio.Future[Any]) -> Any:
        try:
            return await future
        except PlaitError:
            raise
        except Exception as error:
            log_error(error, self._key, None)
            raise CallFailed(public_message(error)) from None

    def _stream(self, actor: Facade, method: Method, arguments: Any, connection: Connection) -> Response:
        """Answer with a line of JSON for each chunk; end with an error if the client reads too slowly."""
        lines = self._lines

        def put(what: str, line: bytes) -> None:
            if what == "chunk" and lines.is_full:
                self._context.instruments.limit_hit("write_buffer")
                what, line = "error", _encode_line("error", "the client reads too slowly")
                turn.abandon()
            lines.put(line, is_last=what != "chunk")

        def sink(what: str, value: Any) -> Callable[[], None]:
            return partial(put, what, _encode_line(what, None if value is msgspec.UNSET else value))

        def done(_: Any, error: BaseException | None) -> None:
            if error is not None:
                put("error", _encode_line("error", public_message(error)))

        def expire() -> None:
            put("error", _encode_line("error", "the token has expired"))
            turn.abandon()

        def ended() -> None:
            lines.end()
            turn.abandon()
            if expiry is not None:
                expiry.cancel()

        turn = actor.call(
            method, arguments, done, sink=sink, connection=connection, request=self._request, by_client=True
        )
        left = seconds_left(self._principal)
        expiry = None if left is None else asyncio.get_running_loop().call_later(left, expire)
        return Streamed(lines.read(), media_type="application/x-ndjson", ended=ended)


def _limit_body(receive: Receive, limit: int) -> Receive:
    """Return a `receive` that raises TooLarge if the body has more than `limit` bytes."""
    size = 0

    async def receive_limited() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise TooLarge(f"a body may have at most {limit} bytes", limit="frame")
        return message

    return receive_limited


def _encode_line(what: str, value: Any) -> bytes:
    return encode_json({what: value}) + b"\n"


def _answer_json(value: Any) -> Response:
    try:
        return Response(encode_json(value), media_type="application/json")
    except UNENCODABLE as error:
        raise CallFailed(f"the result is not JSON: {error}") from None


def _read_tags(header: str | None) -> set[str]:
    return {each.strip().removeprefix("W/") for each in header.split(",")} if header else set()
