"""Answers the requests of `useChat` below `/threads/{kind}/{name}/chat`."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response

from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.agents.agent import INTERRUPT
from plait.agents.durable import STOP
from plait.clock import read_wall_clock
from plait.errors import Conflict, InvalidArguments, NotFound, Readonly
from plait.limits import count_extra_messages
from plait.parts.attachments import find_attached
from plait.parts.messages.thread_messages import ThreadMessages, find_chat
from plait.web.http.chat.body import read_body, read_question
from plait.web.http.chat.parts import Part
from plait.web.http.chat.rendering import Link, is_question, render_page, split
from plait.web.http.chat.viewer import Viewer, find_awaited, read_messages
from plait.web.http.chat.writing import Writer
from plait.web.http.exchange import Exchange, answer_json
from plait.web.http.streamed import StreamedResponse
from plait.web.listing import is_number
from plait.web.server_context import ServerContext

__all__ = ["ChatRequests"]

# Microseconds for which an answer that has ended is shown again: a page may have read the history before its end.
_RECENT: Final = 60_000_000
_HEADERS: Final = {"x-accel-buffering": "no", "x-vercel-ai-ui-message-stream": "v1"}


class ChatRequests:
    """Answers the requests to the chats of all kinds that have one: live messages with an agent."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        found = {name: find_chat(kind.cls) for name, kind in context.node.kinds.items()}
        self.kinds = {name: part for name, part in found.items() if part is not None}
        self._viewers: set[Viewer] = set()
        context.closers.append(self._close)

    async def answer(self, exchange: Exchange, rest: Sequence[str]) -> Response:
        """Answer a request, with the path after `chat`. Raises NotFound for another URL."""
        match exchange.request.method, rest:
            case "GET", []:
                return await self._list(exchange)
            case "GET", [_, "stream"]:
                return await self._resume(exchange)
            case "POST", []:
                return await self._post(exchange)
            case "POST", ["stop"]:
                return answer_json({"stopped": await _stop(exchange)})
        raise NotFound("the URLs of a chat are GET and POST …/chat, GET …/chat/{id}/stream and POST …/chat/stop")

    # Inside

    def _close(self) -> None:
        """End all streams, as the server shuts down; their pages resume."""
        for viewer in self._viewers:
            viewer.close()

    async def _list(self, exchange: Exchange) -> Response:
        before = exchange.request.query_params.get("before")
        if before is not None and not is_number(before):
            raise InvalidArguments(
                f"before={before[:80]}: must be a whole number, as in an earlier page", path="/before"
            )
        try:
            actor, messages = await self._read(exchange)
        except NotFound:
            return answer_json({"messages": [], "before": None, "status": "idle"})
        with actor.usage.keep_awake():
            status = messages.status  # Before the messages: what ends in between is shown by the stream.
            place = None if before is None else int(before)
            _, found, has_more = await read_messages(messages.feed, place, is_question)
            forks = await messages.forks([each for each in found if each.status != "pending"])
        if has_more:  # The first answer may lack its beginning, which is on the page before.
            found = found[next((at for at, each in enumerate(found) if is_question(each)), 0) :]
        shown = render_page(found, find_awaited(messages), _make_link(exchange), forks)
        exchange.lease.check()
        first = found[0].position if has_more else None
        return answer_json({"messages": shown, "before": first, "status": status})

    async def _resume(self, exchange: Exchange) -> Response:
        try:
            actor, messages = await self._read(exchange)
        except NotFound:
            return Response(status_code=204)
        with actor.usage.keep_awake():
            # Before the messages: what ends in between is shown.
            is_running = messages.status in ("running", "waiting")
            _, found, _ = await read_messages(messages.feed, None, is_question)
            groups, waiting = split(found)
            questions = [each.id for each in (groups[-1].question, *waiting) if each is not None]
            last_at = max([messages.feed.written_at, *(each.created_at for each in found)])
            if not questions or not (is_running or last_at > read_wall_clock() - _RECENT):
                return Response(status_code=204)
            return await self._view(exchange, actor, questions[0], after=questions[1:])

    async def _post(self, exchange: Exchange) -> Response:
        await exchange.check("messages")
        data, context, part = await exchange.raw_body(), self._context, self.kinds[exchange.key.kind]
        with context.scheduler.measure():
            body = read_body(data, context.limits)
        context.requests.charge_messages(exchange.request, exchange.principal, count_extra_messages(body.raw))
        is_answer = body.message.role == "assistant"
        question = None if is_answer else read_question(body, _make_link(exchange)(""))
        await exchange.check("approve" if is_answer else "send")
        if question is not None and (question.files or find_attached(question.attachments)):
            await exchange.check("upload")
        actor, connection = await exchange.enter(len(data), may_approve=await exchange.may("approve"))
        if connection.readonly:
            raise Readonly("Connection is readonly")
        with actor.usage.keep_awake():
            files = context.files.get(exchange.key.kind)
            writer = Writer(
                actor, connection, part.of(actor), None if files is None else files.of(actor), exchange.call
            )
            try:
                id = await (writer.approve(body) if question is None else writer.ask(body, question))
            except Conflict as error:
                raise HTTPException(409, str(error)) from None
            return await self._view(exchange, actor, id, parts=body.message.parts if question is None else ())

    async def _view(
        self,
        exchange: Exchange,
        actor: Actor,
        question: str,
        *,
        after: Sequence[str] = (),
        parts: Sequence[Part] = (),
    ) -> Response:
        """Return a stream of an answer for a page that has some parts of it; it counts as a socket of its address."""
        if (refusal := actor.sockets.find_refusal()) is not None:
            raise refusal
        addresses, client = self._context.addresses, exchange.request.client
        host = client.host if client else ""

        def end() -> None:
            addresses.leave(host)
            self._viewers.discard(viewer)

        viewer = Viewer(self.kinds[actor.key.kind].of(actor), _make_link(exchange), end)
        addresses.enter(host)
        self._viewers.add(viewer)
        try:
            await viewer.open(actor, question, after=after, parts=parts)
            exchange.lease.open(viewer.close)
            exchange.lease.check()
        except BaseException:
            viewer.leave()
            raise
        return StreamedResponse(viewer.events(), media_type="text/event-stream", ended=viewer.leave, headers=_HEADERS)

    async def _read(self, exchange: Exchange) -> tuple[Actor, ThreadMessages]:
        await exchange.check("messages")
        actor = await self._context.node.stored_actor(exchange.key)
        return actor, self.kinds[exchange.key.kind].of(actor)


async def _stop(exchange: Exchange) -> bool:
    """Stop the agent: a page that has disconnected may have been reloaded, so only this request stops one."""
    kind, context = exchange.context.node.kind(exchange.key.kind), exchange.context
    if STOP in kind.methods:
        method = kind.method(STOP)
        actor, connection = await exchange.enter(0, may_approve=await exchange.check_call(method))
        return bool(await exchange.call(actor, method, ([], {}), connection))
    rights = Rights(exchange.principal, may_approve=await exchange.check_call(kind.method(INTERRUPT)))
    return context.runs.interrupt(exchange.key, None, rights)


def _make_link(exchange: Exchange) -> Link:
    """Return a function that returns the URL of a file of the thread."""
    kind, name = (quote(each, safe="") for each in exchange.key)
    root = exchange.request.scope.get("root_path", "")
    return lambda path: f"{root}/threads/{kind}/{name}/files/{quote(path)}"
