"""The URLs of threads: state, history, rpcs, agents, files and `on_request`; and of kinds, which list them."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Final
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from plait.actor.actor import Actor
from plait.agents.agent import INTERRUPT
from plait.errors import Conflict, InvalidArguments, NotFound, PlaitError, Readonly, Reject
from plait.instruments.protocol import TRACE
from plait.parts.tasks.client_methods import show_run
from plait.session.native.live_tasks import read_newest
from plait.state.types import parse_json_error
from plait.web.http.author_requests import answer_by_author, find_limit
from plait.web.http.endpoint import Headers
from plait.web.http.exchange import Exchange, answer_json, read_tags
from plait.web.http.files import answer_file
from plait.web.http.listings import ListingRequests
from plait.web.http.log import changes, event_stream, state_at, tag
from plait.web.http.request import BodyLimit
from plait.web.http.run_routes import interrupt, run_agent
from plait.web.http.streamed import wants_events
from plait.web.server_context import ServerContext
from plait.web.thread_urls import find_place, read_address, read_kind
from plait_schemas.codec import NOT_JSON
from plait_schemas.encoding import encode_given

__all__ = ["ThreadRequests"]


class CallBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an rpc over HTTP."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}


# The number of runs in a listing that have ended.
_RUNS: Final = 50

_decode_call = msgspec.json.Decoder(CallBody).decode


class ThreadRequests:
    """Answers the requests below `/threads` and `/agents`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._listings = ListingRequests(context)
        # The endpoints of the kinds in which one has a limit of its own.
        found = {name: kind.endpoints for name, kind in context.node.kinds.items()}
        self._limited = {name: endpoints for name, endpoints in found.items() if endpoints.has_limits}

    def find_limit(self, scope: Scope) -> BodyLimit | None:
        """Return the limit of a body that has one of its own: that of a file or of an endpoint."""
        if scope["method"] != "PUT" and not self._limited:
            return None
        if (place := find_place(scope)) is None:
            return None
        kind = place.key.kind
        if scope["method"] == "PUT" and place.rest.startswith("files/") and kind in self._context.files:
            return BodyLimit(self._context.limits.file, "file")
        endpoints = self._limited.get(kind)
        return None if endpoints is None else find_limit(endpoints, scope["method"], place.rest)

    async def answer(self, request: Request, headers: Headers) -> Response:
        """Answer a request. Raises the error of one that is refused."""
        context = self._context
        if (kind := read_kind(request.scope)) is not None:
            return await self._listings.answer(request, kind)
        address = read_address(request.scope)
        context.check_place(request, address.key.kind)
        if request.method not in ("GET", "HEAD", "OPTIONS"):
            context.identity.check_origin(request)
        principal = await context.authenticate(request)
        if isinstance(principal, Response):
            return principal
        context.check_kind(request, address.key.kind)
        return await self._route(_Exchange(context, request, address.key, principal), address.rest.split("/"))

    async def _route(self, exchange: "_Exchange", parts: list[str]) -> Response:
        """Answer a request by its method and the parts of its path after the thread."""
        kind = exchange.key.kind
        has_live_tasks = kind in self._context.tasks and self._context.tasks[kind].is_live
        has_agents = INTERRUPT in self._context.node.kind(kind).methods
        match exchange.request.method, parts:
            case "GET" | "HEAD", [""]:
                return await exchange.get_state()
            case "GET" | "HEAD", ["changes"]:
                return await exchange.get_changes()
            case "PUT", [""]:
                return await exchange.put_state()
            case "DELETE", [""]:
                return await exchange.destroy()
            case "POST", ["rpc", method] if method:
                return await exchange.call_rpc(method)
            case "POST", ["run", agent] if agent and has_agents:
                return await run_agent(exchange, unquote(agent))
            case "POST", ["interrupt"] if has_agents:
                return await interrupt(exchange)
            case "GET" | "POST" | "DELETE", ["mcp"]:
                return await _answer_mcp(exchange)
            case "POST", ["stop" | "continue" as what] if f"run:{what}" in self._context.node.kind(kind).methods:
                return await exchange.call_rpc(f"run:{what}")
            case "GET" | "HEAD" | "PUT" | "DELETE", ["files", *path] if path and kind in self._context.files:
                return await answer_file(exchange, "/".join(path))
            case "GET" | "HEAD", ["tasks", *id] if has_live_tasks and len(id) < 2:
                return await (exchange.get_run(unquote(id[0])) if id else exchange.list_runs())
            case _:
                return await answer_by_author(exchange, "/".join(parts))


class _Exchange(Exchange):
    """One request to one of the URLs of a thread."""

    async def get_state(self) -> Response:
        actor = await self._read()
        if (version := self.request.query_params.get("at")) is not None:
            with actor.usage.keep_awake():
                return await state_at(actor, version)
        revision = actor.state.durable
        if revision.json is None:
            raise NotFound(f"{self.key} has no state yet")
        current = tag(actor.state.epoch, revision.version)
        # If the type has gained a field, the same version may have another JSON than before.
        if revision.is_stored and {"*", current} & read_tags(self.request, "if-none-match"):
            return Response(status_code=304, headers={"etag": current})
        return Response(revision.json, media_type="application/json", headers={"etag": current})

    async def get_changes(self) -> Response:
        actor = await self._read()
        if wants_events(self.request):
            return await event_stream(actor, self.request, self.principal, self.context.addresses)
        with actor.usage.keep_awake():
            query = self.request.query_params
            return await changes(actor, query.get("since"), query.get("limit"), query.get("patch"))

    async def put_state(self) -> Response:
        await self.check("write")
        body = await self.body()
        actor, connection = await self.enter(len(body))
        if connection.readonly:
            raise Readonly("Connection is readonly")
        epoch = actor.state.epoch
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
        await actor.state.store_thread(connection)  # The state may be the initial one, which is no change.
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
        return Response(status_code=204)

    # Inside

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
    """Import MCP for the first request to it, as that takes a second. Raises HTTPException without the extra."""
    try:
        from plait.web.http.mcp import answer_mcp  # noqa: PLC0415
    except ModuleNotFoundError:
        raise HTTPException(501, "MCP needs an extra: pip install 'plait[mcp]'") from None
    return answer_mcp
