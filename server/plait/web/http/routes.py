"""The URLs of threads: state, history, rpcs, queries, agents, files, `on_request`; and of kinds, which list them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from plait.actor.actor import Actor
from plait.actor.endpoints import EndpointMethod
from plait.actor.outcome import make_resolver
from plait.agents.agent import INTERRUPT
from plait.errors import Conflict, InvalidArguments, NotFound, PlaitError, Readonly, Reject
from plait.instruments.protocol import TRACE
from plait.parts.tasks.client_methods import show_run
from plait.session.native.live_tasks import read_newest
from plait.state.types import parse_json_error
from plait.web.http.chat.door import ChatRequests
from plait.web.http.endpoint import BodyLimit, Endpoint, Headers, LimitedRequest
from plait.web.http.exchange import Exchange, answer_json, read_tags
from plait.web.http.files import answer_file
from plait.web.http.listings import ListingRequests
from plait.web.http.log import changes, event_stream, state_at, tag
from plait.web.http.queries import answer_query
from plait.web.http.run_routes import interrupt, run_agent
from plait.web.http.streamed import wants_events
from plait.web.server_context import ServerContext
from plait.web.thread_urls import Address, read_address, read_kind
from plait_schemas.codec import NOT_JSON
from plait_schemas.encoding import encode_given

__all__ = ["ThreadRequests"]


class CallBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an rpc over HTTP."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


# The body of a chat has all messages of its page: its maximum bytes, as a multiple of those of another body.
_MOST_FRAMES: Final = 16
# The number of runs in a listing that have ended.
_RUNS: Final = 50
_NO_CONTENT: Final = 204

_decode_call = msgspec.json.Decoder(CallBody).decode


class ThreadRequests(Endpoint):
    """Answers the requests below `/threads` and `/agents`."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self._listings = ListingRequests(context)
        self._chats = ChatRequests(context)
        # The endpoints of each kind, if one of them has a limit of its own.
        found = {name: kind.endpoints for name, kind in context.node.kinds.items()}
        self._limited = {name: endpoints for name, endpoints in found.items() if endpoints.has_limits}

    def _find_address(self, scope: Scope) -> Address | None:
        try:
            return read_address(scope)
        except NotFound:
            return None

    def _find_limit(self, scope: Scope, address: Address | None) -> BodyLimit:
        """Return the limit of a file, of an endpoint with a limit of its own, or of any other body."""
        if address is not None:
            (kind, _), rest = address
            if scope["method"] == "POST" and rest == "chat" and kind in self._chats.kinds:
                return BodyLimit(_MOST_FRAMES * self._context.limits.frame)
            if scope["method"] == "PUT" and rest.startswith("files/") and kind in self._context.files:
                return BodyLimit(self._context.limits.file, "file")
            if (endpoints := self._limited.get(kind)) is not None:
                with suppress(NotFound):
                    found = endpoints.find(scope["method"], rest)
                    if found is not None and found[0].limit is not None:
                        return BodyLimit(found[0].limit, "endpoint")
        return super()._find_limit(scope, address)

    async def _answer(self, request: LimitedRequest, headers: Headers) -> Response:
        context, address = self._context, request.address
        if address is None:
            if (kind := read_kind(request.scope)) is not None:
                return await self._listings.answer(request, kind)
            address = read_address(request.scope)  # Raises NotFound, with what the URL lacks.
        context.check_place(request, address.key.kind)
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            context.identity.check_origin(request)
        principal = await context.authenticate(request)
        if isinstance(principal, Response):
            return principal
        context.check_kind(request, address.key.kind)
        exchange, parts = _Exchange(context, request, address.key, principal), address.rest.split("/")
        if parts[0] == "chat" and address.key.kind in self._chats.kinds:
            return await self._chats.answer(exchange, parts[1:])
        return await self._route(exchange, parts)

    def _route(self, exchange: "_Exchange", parts: list[str]) -> Awaitable[Response]:
        """Begin to answer a request by its method and the parts of its path after the thread."""
        kind = exchange.key.kind
        has_agents = INTERRUPT in self._context.node.kind(kind).methods
        match exchange.request.method, parts:
            case "GET" | "HEAD", _ if (answer := self._read(exchange, parts)) is not None:
                return answer
            case "PUT", [""]:
                return exchange.put_state()
            case "DELETE", [""]:
                return exchange.destroy()
            case "POST", ["rpc", method] if method:
                return exchange.call_rpc(method)
            case "POST", ["run", agent] if agent and has_agents:
                return run_agent(exchange, unquote(agent))
            case "POST", ["interrupt"] if has_agents:
                return interrupt(exchange)
            case "GET" | "POST" | "DELETE", ["mcp"]:
                return _answer_mcp(exchange)
            case "POST", ["stop" | "continue" as what] if f"run:{what}" in self._context.node.kind(kind).methods:
                return exchange.call_rpc(f"run:{what}")
            case "GET" | "HEAD" | "PUT" | "DELETE", ["files", *path] if path and kind in self._context.files:
                return answer_file(exchange, "/".join(path))
            case _:
                return exchange.answer_by_author("/".join(parts))

    def _read(self, exchange: "_Exchange", parts: list[str]) -> Awaitable[Response] | None:
        """Begin to answer a request that reads what every thread has, or queries or tasks; None for another path."""
        kind = exchange.key.kind
        match parts:
            case [""]:
                return exchange.get_state()
            case ["changes"]:
                return exchange.get_changes()
            case ["query", name] if name and self._context.node.kind(kind).queries:
                return answer_query(exchange, unquote(name))
            case ["tasks", *id] if len(id) < 2 and kind in self._context.tasks and self._context.tasks[kind].is_live:
                return exchange.get_run(unquote(id[0])) if id else exchange.list_runs()
            case _:
                return None


class _Exchange(Exchange):
    """One request to one of the URLs of a thread."""

    async def get_state(self) -> Response:
        actor = await self._read()
        if (version := self.request.query_params.get("at")) is not None:
            with actor.usage.keep_awake():
                return await state_at(actor, self.principal, version)
        revision = actor.state.durable
        if revision.json is None:
            raise NotFound(f"{self.key} has no state yet")
        view = actor.state.find_view(self.principal)
        current = tag(view.name(actor.state.epoch), revision.version)
        # After the type has gained a field, the JSON of the same version may differ.
        if revision.is_stored and {"*", current} & read_tags(self.request, "if-none-match"):
            return Response(status_code=304, headers={"etag": current})
        return Response(view.json(revision), media_type="application/json", headers={"etag": current})

    async def get_changes(self) -> Response:
        actor = await self._read()
        if wants_events(self.request):
            return await event_stream(self, actor)
        with actor.usage.keep_awake():
            return await changes(actor, self.principal, self.request.query_params)

    async def put_state(self) -> Response:
        await self.check("write")
        body = await self.body()
        actor, connection = await self.enter(len(body))
        if connection.readonly:
            raise Readonly("Connection is readonly")
        views, epoch = actor.state.views, actor.state.epoch
        if views is not None:
            epoch = views.find_for_whole(connection).name(epoch)
        wanted = read_tags(self.request, "if-match")
        if wanted and not ({"*", tag(epoch, actor.state.current.version)} & wanted):
            raise Conflict(f"the state is at version {actor.state.current.version}, not the one in If-Match")
        try:
            with self.context.scheduler.measure():
                commit = actor.state.put(body, connection)
        except PlaitError:
            raise
        except BaseException as error:  # `validate_state_change` may refuse with any exception.
            raise Reject(str(actor.explain(error, connection))) from None
        version = await commit
        await actor.state.store_thread(connection)  # Setting the initial state is no change.
        headers = {"etag": tag(epoch, version)}
        return JSONResponse({"epoch": epoch, "version": version}, headers=headers)

    async def call_rpc(self, name: str) -> Response:
        name = unquote(name)
        may_approve = await self.check_call(self.context.node.kind(self.key.kind).methods.get(name))
        body = await self.body()
        actor, connection = await self.enter(len(body), may_approve=may_approve)
        method = actor.kind.method(name)
        try:
            call = _decode_call(body) if body.strip() else CallBody()
        except NOT_JSON as error:
            raise InvalidArguments(
                f'the body must be {{"args": […], "kwargs": {{…}}}}: {parse_json_error(error)[0]}'
            ) from None
        with self.context.scheduler.measure():
            arguments = method.arguments(call.args, call.kwargs, limits=self.context.limits)
        if method.is_stream:
            return self.stream(actor, method, arguments, connection, _encode_line).answer("application/x-ndjson")
        return answer_json({"result": await self.call(actor, method, arguments, connection)})

    async def list_runs(self) -> Response:
        actor = await self._read()
        with actor.usage.keep_awake():
            return answer_json({"runs": await read_newest(self.context.tasks[self.key.kind].of(actor), _RUNS)})

    async def get_run(self, id: str) -> Response:
        actor = await self._read()
        tasks = self.context.tasks[self.key.kind].of(actor)
        with actor.usage.keep_awake():
            if (run := await tasks.get(id)) is None:
                raise NotFound(f"{self.key} has no run {id} of a task")
        return answer_json(show_run(run, tasks.find(run.name)))

    async def destroy(self) -> Response:
        await self.check("destroy")
        await self.context.node.destroy(self.key, self.request.scope.get(TRACE))
        return Response(status_code=_NO_CONTENT)

    async def answer_by_author(self, rest: str) -> Response:
        """Answer a request at a path below the thread, still encoded, by an endpoint or by `on_request`."""
        await self.check("request")
        node, request = self.context.node, self.request
        request.state.principal = self.principal
        endpoint, arguments = None, dict[str, Any]()
        if (found := node.kind(self.key.kind).endpoints.find(request.method, rest)) is not None:
            endpoint, arguments = found[0], await self._read_arguments(*found)
            actor = await node.stored_actor(self.key)
        else:
            actor = await node.actor(self.key, user=None if self.principal is None else self.principal.id)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        actor.turns.request(
            request,
            make_resolver(future),
            party=self.party,
            lease=self.lease,
            endpoint=endpoint,
            arguments=arguments,
        )
        result = await future
        if isinstance(result, Response):
            return result
        if endpoint is None:
            what = type(result).__name__
            raise TypeError(f"on_request of {self.key.kind} returned {what}; it must return a Response")
        return Response(status_code=_NO_CONTENT) if result is None and not endpoint.has_result else answer_json(result)

    # Inside

    async def _read_arguments(self, endpoint: EndpointMethod, values: dict[str, Any]) -> dict[str, Any]:
        body = b""
        if endpoint.is_json:
            body = await self.body()
        elif endpoint.body is not None:
            body = await self.raw_body()
        with self.context.scheduler.measure():
            return endpoint.arguments(values, self.request, body, limits=self.context.limits)

    async def _read(self) -> Actor:
        """Return the thread, which must be stored: a request that only reads creates none."""
        await self.check("read")
        return await self.context.node.stored_actor(self.key)


def _encode_line(what: str, value: object) -> tuple[bytes, bool]:
    value = str(value) if isinstance(value, PlaitError) else value
    return encode_given({what: value}) + b"\n", what != "chunk"


async def _answer_mcp(exchange: Exchange) -> Response:
    if exchange.request.method != "POST":
        raise HTTPException(405, "MCP is used by POST, without sessions", headers={"allow": "POST"})
    await exchange.check("call")
    answer = await asyncio.to_thread(_import_mcp)
    return await answer(exchange)


@cache
def _import_mcp() -> Callable[[Exchange], Awaitable[Response]]:
    """Import MCP at the first request to it, as the import takes a second. Raises HTTPException without the extra."""
    try:
        from plait.web.http.mcp import answer_mcp  # noqa: PLC0415
    except ModuleNotFoundError:
        raise HTTPException(501, "MCP needs an extra: pip install 'plait[mcp]'") from None
    return answer_mcp
