"""Answers the requests of operators to a running server: the threads that are awake, and closing sockets."""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plait.errors import InvalidState, Unauthenticated
from plait.node.awake import MOST_AWAKE, AwakeReport, find_busiest, report_awake
from plait.node.remote_requests import Disconnect, ReadAwake
from plait.parts.tasks.thread_tasks import find_tasks_part
from plait.settings import make_setting_error
from plait.store.thread_rows import ThreadKey
from plait.web.server_context import ServerContext
from plait_schemas.codes import UNAUTHENTICATED

__all__ = ["ChangeRun", "ChangedRun", "Kick", "Kicked", "Operators", "disconnect", "disconnect_here"]

T = TypeVar("T")

# Minimum characters of a token, so that it cannot be guessed.
_LEAST: Final = 16
_KICKED: Final = "an operator has closed the sockets of this thread"

_decode_report: Final = msgspec.msgpack.Decoder(AwakeReport).decode


class Kick(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /operator/kick`: a user or a thread."""

    user: str | None = None
    # As kind/name.
    thread: str | None = None


class Kicked(msgspec.Struct, frozen=True):
    """The answer to `POST /operator/kick`."""

    closed: int


class ChangeRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /operator/tasks`: an action on a run of a task."""

    # As kind/name.
    thread: str
    run: str
    do: Literal["retry", "cancel"]


class ChangedRun(msgspec.Struct, frozen=True):
    """The answer to `POST /operator/tasks`: whether the run exists and its state allowed the action."""

    changed: bool


class Operators:
    """Answers operators: clients that show the server's token."""

    def __init__(self, context: ServerContext, token: str) -> None:
        if len(token) < _LEAST:
            raise make_setting_error("operator_token", f"must have at least {_LEAST} characters")
        self._context = context
        self._token = token.encode()
        self.routes = [
            Route("/operator/awake", partial(self.let_in, self._read_awake)),
            Route("/operator/kick", partial(self.let_in, self._kick), methods=["POST"]),
            Route("/operator/tasks", partial(self.let_in, self._change_run), methods=["POST"]),
        ]

    async def let_in(self, do: Callable[[Request], Awaitable[msgspec.Struct | Response]], request: Request) -> Response:
        """Answer a request that has the token. Raises Unauthenticated without it."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), self._token):
            raise Unauthenticated("this needs the operator's token")
        answer = await do(request)
        if isinstance(answer, Response):
            return answer
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def _read_awake(self, _: Request) -> AwakeReport:
        node = self._context.node
        own = await report_awake(node.actors, MOST_AWAKE)
        others = (await node.everywhere.nodes.ask_each(ReadAwake())).values()
        reports = [own, *(_decode_report(data) for data in others if data is not None)]
        return AwakeReport(
            sum(each.threads for each in reports),
            sum(each.sockets for each in reports),
            find_busiest([row for each in reports for row in each.busiest], MOST_AWAKE),
            sum(data is None for data in others),
        )

    async def _change_run(self, request: Request) -> ChangedRun:
        change, node = _decode(await request.body(), ChangeRun), self._context.node
        key = _read_key(change.thread)
        # A 404 would mean that the server has no operator's token.
        if key is None or (kind := node.kinds.get(key.kind)) is None:
            raise InvalidState(f"{change.thread!r} is not a thread; name one as kind/name")
        if (part := find_tasks_part(kind.cls)) is None:
            raise InvalidState(f"{key.kind} has no tasks")
        return ChangedRun(await node.everywhere.call_part(key, part.name, change.do, change.run))

    async def _kick(self, request: Request) -> Kicked:
        kick = _decode(await request.body(), Kick)
        key = _read_key(kick.thread or "")
        if (kick.user is None) == (kick.thread is None) or (kick.thread is not None and key is None):
            raise InvalidState('name a user, {"user": "ada"}, or a thread, {"thread": "room/one"}')
        return Kicked(await disconnect(self._context, Disconnect(kick.user, None, key)))


async def disconnect(context: ServerContext, target: Disconnect) -> int:
    """Close the sockets of a target at all workers and nodes, as `Plait.disconnect` does; return their number."""
    here = disconnect_here(context, target)
    others = await context.node.everywhere.nodes.ask_others(target)
    return here + sum(msgspec.msgpack.decode(count, type=int) for count in others)


def disconnect_here(context: ServerContext, target: Disconnect) -> int:
    """Close the sockets and streams that this process has open for a target; return their number."""
    if target.thread is None:
        return context.leases.disconnect((target.user, target.connection_id))
    return context.node.close_sockets(target.thread, UNAUTHENTICATED, _KICKED)


def _decode(body: bytes, type: type[T]) -> T:
    """Decode a body. Raises InvalidState."""
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidState(str(error)) from None


def _read_key(thread: str) -> ThreadKey | None:
    """Return the key of a thread that is given as kind/name; None for any other text."""
    kind, _, name = thread.partition("/")
    return ThreadKey(kind, name) if kind and name else None
