"""Serves the agents of an app to clients of AG-UI 1.0, over server-sent events."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

from ag_ui.core import BaseEvent, Interrupt, RunAgentInput
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from plait.actor.actor import Actor
from plait.actor.connection import Connection
from plait.actor.kind import check_name
from plait.actor.rpc import Method
from plait.adapters.ag_ui.body import read_input, read_last_text
from plait.adapters.ag_ui.event_feed import FeedRun, feed_of
from plait.adapters.ag_ui.event_frames import Cursor
from plait.adapters.ag_ui.event_run import EventRun
from plait.adapters.ag_ui.executed_run import ExecutedRun
from plait.adapters.ag_ui.push import push_state
from plait.adapters.ag_ui.shown_messages import Added, has_messages, open_messages, queue_messages, read_added
from plait.adapters.ag_ui.viewer import RunViewer
from plait.agents.agent import Agent, Given
from plait.agents.context import Context, read_attributes
from plait.agents.durable import STOP
from plait.app import Plait
from plait.errors import NotFound, PlaitError, Readonly, Unavailable
from plait.parts.messages.thread_messages import ThreadMessages
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey
from plait.web.http.endpoint import Endpoint, Headers, LimitedRequest
from plait.web.http.exchange import Exchange
from plait.web.http.run_routes import interrupt
from plait.web.http.streamed import StreamedResponse
from plait.web.server_context import ServerContext
from plait.web.thread_urls import Address, split_path

__all__ = ["AgUi", "ask", "emit"]


def emit(context: Context[Any], *events: BaseEvent) -> None:
    """Send events of AG-UI, such as those of tool calls, to the viewers of a run, after all changes made so far.

    Does nothing in a run that was not started by AG-UI. Raises ValueError, without sending any event, for an event that
    cannot be JSON, and for events of the run and of the state, which plait sends itself.
    """
    if (run := context.get(EventRun)) is not None:
        run.emit(*events)


def ask(context: Context[Any], *interrupts: Interrupt) -> None:
    """Make the run end with the outcome `interrupt`; the client answers these interrupts by `resume` of its next run.

    Does nothing in a run that was not started by AG-UI.
    """
    if (run := context.get(EventRun)) is not None:
        run.asked += interrupts


class _RunExchange(Exchange):
    """One request to an agent in one thread."""

    def __init__(
        self,
        context: ServerContext,
        request: Request,
        agent: Agent,
        name: str,
        principal: Principal | None,
        *,
        messages: str | None,
    ) -> None:
        super().__init__(context, request, ThreadKey(agent.kind.name, check_name(name)), principal)
        self.agent = agent
        # The name of the thread's messages that are shown.
        self.messages = messages if has_messages(agent.kind.cls, messages) else None


class AgUi(Endpoint):
    """Serves the agents of an app by AG-UI 1.0: an ASGI application, `app.mount("/ag-ui", AgUi(app))`.

    `POST /ag-ui/{agent}/{name}` runs an agent in the thread of that name and streams its events; the run continues when
    its client disconnects. `GET /ag-ui/{agent}/{name}/events` streams the events to other viewers, and to clients that
    reconnect with `Last-Event-ID`. `POST /ag-ui/{agent}/{name}/interrupt` interrupts the run. `input` is a function
    that makes an agent's input from the RunAgentInput; by default, the input is the text of the user's last message.
    The agent gets the whole RunAgentInput by `ctx.get(RunAgentInput)`.

    `messages` is the name of a live `Messages` of the threads: clients get these messages when a run begins, and the
    user's messages are added to them with the run.
    """

    def __init__(
        self, app: Plait, *, input: Callable[[RunAgentInput], Any] | None = None, messages: str | None = None
    ) -> None:
        super().__init__(app._context)
        self._app = app
        self._make_input = input or read_last_text
        self._messages = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"AG-UI is only served over HTTP, not over {scope['type']}")
        await super().__call__(scope, receive, send)

    async def _answer(self, request: LimitedRequest, headers: Headers) -> Response:
        context = self._context
        context.hosts.check(request)
        if request.method != "GET":
            context.identity.check_origin(request)
        principal = await context.authenticate(request)
        if isinstance(principal, Response):
            return principal
        match request.method, _read_path(request.scope):
            case "POST", [agent, name]:
                return await self._run(self._find(request, agent, name, principal))
            case "GET", [agent, name, "events"]:
                return await self._watch(self._find(request, agent, name, principal))
            case "POST", [agent, name, "interrupt"]:
                return await self._interrupt(self._find(request, agent, name, principal))
            case _:
                raise NotFound("the URLs of AG-UI are POST /{agent}/{name} and GET /{agent}/{name}/events")

    def _find(self, request: Request, agent: str, name: str, principal: Principal | None) -> _RunExchange:
        found = self._app._runs.agents.get(agent)
        if found is None:
            raise NotFound(f"there is no agent {agent!r}")
        return _RunExchange(self._context, request, found, name, principal, messages=self._messages)

    async def _run(self, exchange: _RunExchange) -> Response:
        """Begin a run, and stream its events to the client that has requested it."""
        await exchange.check("read")
        body = await exchange.body()
        await self._context.scheduler.wait_for_slot()
        with self._context.scheduler.measure():
            given = read_input(body, self._context.limits)
        # An answer to a waiting run needs no other right; without such a run, one begins.
        approves = exchange.agent.is_durable and bool(given.resume)
        await exchange.check("approve" if approves else "call")
        input = exchange.agent.convert(self._make_input(given) if exchange.agent.takes_input else None)
        added, part = await self._find_added(exchange, given), exchange.messages
        opener = None if part is None else lambda thread: open_messages(getattr(thread, part), added)
        actor, connection = await exchange.enter(0, may_approve=approves)
        with actor.usage.keep_awake():
            feed, claim = feed_of(actor), _make_claim(exchange, body)
            if (begun := feed.find_run(given.run_id, claim)) is not None:
                return _stream(await self._open(exchange, actor, run=begun, has=_read_ids(given)))
            run = EventRun(feed, given, claim, opener)
            feed.runs[run.id] = run
            try:
                viewer = await self._open(exchange, actor, run=run, has=_read_ids(given))
                try:
                    if connection.readonly and added:
                        raise Readonly("this connection may not send messages")
                    run.has_pushed = await push_state(exchange, actor, given, connection)
                    await actor.state.store_thread(connection)  # Others may watch the first run of a thread, too.
                    await _queue(exchange, actor, run, added, connection)
                    attributes = read_attributes((run, given))
                    start = Given(input=input, attributes=attributes, prepare=partial(_prepare, run, given))
                    self._begin(exchange, actor, connection, run, start)
                except PlaitError as error:
                    run.refuse(error)
                except BaseException:
                    viewer.close(1011, "")
                    raise
            except BaseException:
                run.refuse(Unavailable("the request that was to begin this run has failed"))  # It may be repeated.
                raise
        return _stream(viewer)

    def _begin(self, exchange: _RunExchange, actor: Actor, connection: Connection, run: EventRun, given: Given) -> None:
        """Begin a run, which waits for its turn, and continues when its viewers disconnect."""
        agent = exchange.agent
        method, arguments = agent.kind.method(f"run:{agent.name}"), [given]
        if agent.is_durable:
            shown = ExecutedRun(agent, run, exchange.messages, exchange=exchange, connection=connection)
            method = Method(method.name, method.name, shown.show, concurrent=True)
            arguments = [given.input] if agent.takes_input else []
        actor.turns.call(
            method,
            (arguments, {}),
            run.finish,
            sink=run.take,
            connection=connection,
            request=exchange.request,
            by_client=True,
        )

    async def _watch(self, exchange: _RunExchange) -> Response:
        """Stream the events of a run to another viewer, or to one that reconnects."""
        await exchange.check("read")
        id = exchange.request.headers.get("last-event-id")
        cursor = Cursor.parse(id, "Last-Event-ID") if id else None
        actor = await self._context.node.stored_actor(exchange.key)
        with actor.usage.keep_awake():
            return _stream(await self._open(exchange, actor, cursor=cursor))

    async def _interrupt(self, exchange: _RunExchange) -> Response:
        if not exchange.agent.is_durable:
            return await interrupt(exchange)
        method = exchange.agent.kind.method(STOP)
        may_approve = await exchange.check_call(method)
        actor, connection = await exchange.enter(0, may_approve=may_approve)
        return JSONResponse({"interrupted": await exchange.call(actor, method, ([], {}), connection)})

    # Inside

    def _find_address(self, scope: Scope) -> Address | None:
        try:
            agent, name, *rest = _read_path(scope)
            return Address(ThreadKey(self._app._runs.agents[agent].kind.name, check_name(name)), "/".join(rest))
        except (NotFound, ValueError, KeyError):
            return None

    async def _find_added(self, exchange: _RunExchange, given: RunAgentInput) -> list[Added]:
        """Return the messages that a client adds. Raises Forbidden and TooLarge."""
        context = self._context
        if exchange.messages is None:
            return []
        roles = ("user",) if exchange.agent.is_durable else ("user", "tool")
        await context.scheduler.wait_for_slot()
        with context.scheduler.measure():
            added = read_added(given, context.limits.record, roles)
        if added:
            await exchange.check("send")
        return added

    async def _open(
        self,
        exchange: _RunExchange,
        actor: Actor,
        *,
        run: FeedRun | None = None,
        has: Sequence[str] | None = None,
        cursor: Cursor | None = None,
    ) -> RunViewer:
        """Return a viewer that has joined the thread; it counts as a socket of its address."""
        if (refusal := actor.sockets.find_refusal()) is not None:
            raise refusal
        request, addresses = exchange.request, self._context.addresses
        host = request.client.host if request.client else ""
        id, ended = f"http-{secrets.token_hex(8)}", partial(addresses.leave, host)
        may_open = await self._context.identity.may(exchange.principal, exchange.key, "messages")
        viewer = RunViewer(actor, feed_of(actor), id, exchange.principal, ended=ended, may_open=may_open, has=has)
        addresses.enter(host)
        await viewer.open(request, run=run, cursor=cursor)
        lease = exchange.lease
        lease.open(viewer.close, connection_id=id)
        lease.check()
        return viewer


async def _queue(
    exchange: _RunExchange, actor: Actor, run: EventRun, added: Sequence[Added], connection: Connection
) -> None:
    """Queue the messages of a run's client if an earlier run is under way, or waits, that may take them.

    A durable agent reads messages as they are added, and those of a queue with an agent would begin another run.
    """
    run.added = {each.item["id"] for each in added}
    runs = [each for each in feed_of(actor).runs.values() if isinstance(each, EventRun) and each is not run]
    others = [each for each in runs if not each.is_over]
    agent, part = exchange.agent, exchange.messages
    if part is None or not others or agent.is_durable or agent.multitask != "enqueue":
        return
    messages: ThreadMessages = getattr(actor.thread, part)
    if messages.caller is None:
        new = [each for each in added if not any(each.item["id"] in other.added for other in others)]
        run.is_queued = await queue_messages(messages, new, connection)


async def _prepare(run: EventRun, given: RunAgentInput, context: Context[Any]) -> bool:
    """Begin the events of a run, whose client answers the calls of its tools; return whether all is answered."""
    context._run.stage.client_tools = {tool.name for tool in given.tools or ()}
    await run.start(context.thread)
    return run.is_answered


def _make_claim(exchange: _RunExchange, body: bytes) -> tuple[object, ...]:
    """Return the user, the agent and the body, which a request that is sent again has in common with the first."""
    user = None if exchange.principal is None else exchange.principal.id
    return user, exchange.agent.name, blake2b(body).digest()


def _read_ids(given: RunAgentInput) -> list[str]:
    return [each.id for each in given.messages]


def _stream(viewer: RunViewer) -> Response:
    ended = partial(viewer.close, 1000, "")
    return StreamedResponse(viewer.frames(), media_type="text/event-stream", ended=ended)


def _read_path(scope: Scope) -> list[str]:
    try:
        return [unquote(each, errors="strict") for each in split_path(scope)]
    except UnicodeDecodeError:
        raise NotFound("the URL is not UTF-8") from None
