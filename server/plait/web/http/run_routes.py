"""Agents over HTTP: runs and interrupts, in a named thread or in the thread of a signed id."""

import asyncio
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from plait.actor.connection import Rights
from plait.actor.outcome import make_resolver
from plait.actor.rpc import Arguments
from plait.agents.address import session_name
from plait.agents.agent import INTERRUPT, Agent
from plait.agents.run import Interruption
from plait.agents.thread_ids import ThreadIds
from plait.errors import Busy, Forbidden, InvalidArguments, NotFound, PlaitError, TooMany, Unavailable
from plait.limits import Limits, check_json
from plait.state.principal import Principal
from plait.state.types import parse_json_error
from plait.store.thread_rows import ThreadKey
from plait.web.fairness import LARGE
from plait.web.http.endpoint import Endpoint, Headers, LimitedRequest
from plait.web.http.exchange import Exchange, answer_json
from plait.web.http.streamed import Encode
from plait.web.server_context import THREAD, ServerContext, error_body
from plait.web.thread_urls import Address, read_run
from plait_schemas.codec import NOT_JSON
from plait_schemas.encoding import encode_given

__all__ = ["RunRequests", "interrupt", "run_agent"]

_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_TEXT: Final = "text/plain"


class InterruptBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an interrupt."""

    message: Any = None


_decode_interrupt = msgspec.json.Decoder(InterruptBody).decode


class RunRequests(Endpoint):
    """Answers the requests below `/run`, which name a thread by a signed id or by a user's session."""

    def __init__(self, context: ServerContext, ids: ThreadIds) -> None:
        super().__init__(context)
        self._ids = ids

    def _find_address(self, scope: Scope) -> Address | None:
        """Return the kind of the agent in a URL; the thread's name is empty, as the URL does not contain it."""
        try:
            name, rest = read_run(scope)
        except NotFound:
            return None
        agent = self._context.runs.agents.get(name)
        return None if agent is None else Address(ThreadKey(agent.kind.name, ""), rest)

    async def _locate(self, request: LimitedRequest) -> ThreadKey | None:
        """Return the thread of a request, and keep its name in the scope if there is no session; None without an agent.

        A session, or a provider of ids, needs the user. Then `authenticate` is called here, and again by the node that
        answers the request.
        """
        if request.address is None:
            return None
        context, kind = self._context, request.address.key.kind
        self._check(request)
        session_id, principal = _read_session_id(request.scope["query_string"]), None
        if session_id is not None or self._ids.has_provider:
            found = await context.identity.principal(request)
            if isinstance(found, Response):
                return None
            principal = found
        name, _ = await self._find_thread(request, principal, session_id, kind)
        if session_id is None:
            request.scope[THREAD] = name
        return ThreadKey(kind, name)

    async def _answer(self, request: LimitedRequest, headers: Headers) -> Response:
        context = self._context
        self._check(request)
        principal = await context.authenticate(request)
        if isinstance(principal, Response):
            return principal
        session_id = _read_session_id(request.scope["query_string"])
        agent_name, rest = read_run(request.scope)
        agent = context.runs.agents.get(agent_name)
        kind = "" if agent is None else agent.kind.name
        name, continuing = await self._find_thread(request, principal, session_id, kind)
        if request.method != "POST":
            raise HTTPException(405, "an agent is run by POST", headers={"allow": "POST"})
        if agent is None:
            raise NotFound(f"there is no agent {agent_name!r}; there are: {', '.join(sorted(context.runs.agents))}")
        exchange = Exchange(context, request, ThreadKey(agent.kind.name, name), principal)
        context.owners.check(exchange.key)
        try:
            if rest not in ("", "interrupt"):
                raise NotFound("there is nothing at this URL")
            response = await (interrupt(exchange) if rest else run_agent(exchange, agent_name, session_id=session_id))
        except Exception as error:
            if exchange.has_called and not isinstance(error, Busy | TooMany | Unavailable):
                headers += continuing  # The run has failed, but may have created the thread.
            raise
        headers += continuing
        return response

    def _check(self, request: Request) -> None:
        self._context.hosts.check(request)
        self._context.identity.check_origin(request)

    async def _find_thread(
        self, request: Request, principal: Principal | None, session_id: str | None, kind: str
    ) -> tuple[str, Headers]:
        """Return the name of the thread, and the headers with which a client continues it. This node owns a new thread.

        Raises Forbidden for a session without a principal, as any client could name it.
        """
        if session_id is None:
            # A provider of ids reads the principal from `request.state.principal`.
            request.scope.setdefault("state", {})["principal"] = principal
            owners = self._context.owners
            id = request.scope.get(THREAD) or await self._ids.find(request, lambda id: owners.owns(ThreadKey(kind, id)))
            return id, self._ids.make_headers(id, is_secure=request.scope["scheme"] == "https")
        if principal is None:
            raise Forbidden("session_id names a session of a user, and this server does not know who you are")
        if not session_id:
            raise InvalidArguments("a session id must not be empty", path="/session_id")
        return session_name(principal.id, session_id), []


async def run_agent(exchange: Exchange, name: str, *, session_id: str | None = None) -> Response:
    """Run an agent, and answer with its output: as JSON, or as a stream if it streams.

    If the client disconnects, a waiting run is cancelled, and a streaming run is interrupted.
    """
    context, request = exchange.context, exchange.request
    await exchange.check("call")
    agent = _find_agent(context, name, exchange.key.kind)
    body = await exchange.body()
    if len(body) >= LARGE:
        await context.scheduler.wait_for_slot()
    with context.scheduler.measure():
        method = agent.kind.method(f"run:{name}")
        (given,), _ = method.arguments([msgspec.Raw(body.strip())], limits=context.limits)
    # The input is valid: an invalid one must not wake a thread.
    actor, connection = await exchange.enter(0)
    if session_id is not None and exchange.principal is not None:
        given = msgspec.structs.replace(given, session_id=session_id, user_id=exchange.principal.id)
    arguments: Arguments = ([given], {})
    exchange.has_called = True
    if agent.is_stream:
        media_type, encode = _choose_form(request, agent)
        call = exchange.stream(actor, method, arguments, connection, encode)
        error = await exchange.outcome_unless_left(call.began, call.leave)
        if error is not None:
            call.leave()
            raise error
        return call.answer(media_type)
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    turn = actor.turns.call(
        method, arguments, make_resolver(future), connection=connection, request=request, by_client=True
    )
    return answer_json(await exchange.outcome_unless_left(future, turn.abandon))


async def interrupt(exchange: Exchange) -> Response:
    """Interrupt the run of a thread, and answer whether there is one. Wakes no thread."""
    method = exchange.context.node.kind(exchange.key.kind).method(INTERRUPT)
    rights = Rights(exchange.principal, may_approve=await exchange.check_call(method))
    message = _read_interrupt(await exchange.body(), exchange.context.limits)
    return JSONResponse({"interrupted": exchange.context.runs.interrupt(exchange.key, message, rights)})


def _read_interrupt(body: bytes, limits: Limits) -> Any:
    """Return the message in the body of an interrupt; None if the body is empty. Raises InvalidArguments."""
    if not body.strip():
        return None
    check_json("the message", body, limits, path="/message")
    try:
        return _decode_interrupt(body).message
    except NOT_JSON as error:
        message, path = parse_json_error(error)
        raise InvalidArguments(f'the body must be {{"message": …}}: {message}', path=path) from None


def _read_session_id(query: bytes) -> str | None:
    """Return the session id in a query; None if it has none. Raises InvalidArguments if the id is ambiguous."""
    if not query:
        return None
    # In Latin-1, each byte is a character.
    fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    found = [value for name, value in fields if name == "session_id"]
    if not found:
        return None
    if len(found) > 1:
        raise InvalidArguments("session_id is given more than once", path="/session_id")
    try:
        return found[0].encode("latin-1").decode()
    except UnicodeDecodeError:
        raise InvalidArguments("session_id is not UTF-8", path="/session_id") from None


def _find_agent(context: ServerContext, name: str, kind: str) -> Agent:
    agent = context.runs.agents.get(name)
    if agent is None or agent.kind.name != kind:
        names = sorted(each.name for each in context.runs.agents.values() if each.kind.name == kind)
        raise NotFound(f"there is no agent {name!r} in threads of the kind {kind}; there are: {', '.join(names)}")
    return agent


def _choose_form(request: Request, agent: Agent) -> tuple[str, Encode]:
    if _EVENTS in request.headers.get("accept", ""):
        return _EVENTS, _encode_event
    return (_TEXT, _encode_text) if agent.output_type is str else (_LINES, _encode_line)


def _encode_event(what: str, value: object) -> tuple[bytes, bool]:
    what, value = _describe(what, value)
    head = b"" if what == "chunk" else f"event: {what}\n".encode()
    return head + b"data: " + encode_given(value) + b"\n\n", what != "chunk"


def _encode_line(what: str, value: object) -> tuple[bytes, bool]:
    what, value = _describe(what, value)
    return encode_given({what: value}) + b"\n", what != "chunk"


def _encode_text(what: str, value: object) -> tuple[bytes | None, bool]:
    what, value = _describe(what, value)
    if what == "chunk":
        assert isinstance(value, str)
        return value.encode(), False
    return None if what in ("error", "interrupted") else b"", True


def _describe(what: str, value: object) -> tuple[str, Any]:
    """Return an event of a stream in the form that a client gets."""
    if isinstance(value, Interruption):
        return "interrupted", value
    if isinstance(value, PlaitError):
        return what, error_body(value.code, str(value), value.path)["error"]
    return what, value
