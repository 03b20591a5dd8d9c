"""Answers the requests of operators to a running server: the threads that are awake, and closing sockets."""

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plait.errors import InvalidState, PlaitError, Unauthenticated
from plait.node.awake import MOST_AWAKE, AwakeReport, find_busiest, report_awake
from plait.node.remote_requests import Disconnect, ReadAwake
from plait.settings import make_setting_error
from plait.store.protocol import ThreadKey
from plait.web.server_context import ServerContext, error_response
from plait_schemas.codes import UNAUTHENTICATED

__all__ = ["Kick", "Kicked", "Operators", "disconnect", "disconnect_here"]

# The fewest characters of a token, so that it cannot be guessed.
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


class Operators:
    """Answers operators, who show the token of the server."""

    def __init__(self, context: ServerContext, token: str) -> None:
        if len(token) < _LEAST:
            raise make_setting_error("operator_token", f"must have at least {_LEAST} characters")
        self._context = context
        self._token = token.encode()
        self.routes = [
            Route("/operator/awake", partial(self._answer, self._read_awake)),
            Route("/operator/kick", partial(self._answer, self._kick), methods=["POST"]),
        ]

    async def _answer(self, do: Callable[[Request], Awaitable[msgspec.Struct]], request: Request) -> Response:
        try:
            self._check(request)
            answer = msgspec.json.encode(await do(request))
        except PlaitError as error:
            return error_response(error)
        return Response(answer, media_type="application/json", headers={"cache-control": "no-store"})

    def _check(self, request: Request) -> None:
        """Raise Unauthenticated unless the request has the token."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(given.encode(), self._token):
            raise Unauthenticated("this needs the operator's token")

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

    async def _kick(self, request: Request) -> Kicked:
        return Kicked(await disconnect(self._context, _read_kick(await request.body())))


async def disconnect(context: ServerContext, target: Disconnect) -> int:
    """Close the sockets of a target at all workers and nodes, as `Plait.disconnect` does; return how many were open."""
    here = disconnect_here(context, target)
    others = await context.node.everywhere.nodes.ask_others(target)
    return here + sum(msgspec.msgpack.decode(count, type=int) for count in others)


def disconnect_here(context: ServerContext, target: Disconnect) -> int:
    """Close what this process has open for a target; return how much that was."""
    if target.thread is None:
        return context.leases.disconnect((target.user, target.connection_id))
    return context.node.close_sockets(target.thread, UNAUTHENTICATED, _KICKED)


def _read_kick(body: bytes) -> Disconnect:
    """Return whom to disconnect. Raises InvalidState."""
    try:
        kick = msgspec.json.decode(body, type=Kick)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidState(str(error)) from None
    kind, _, name = (kick.thread or "").partition("/")
    if (kick.user is None) == (kick.thread is None) or (kick.thread is not None and not (kind and name)):
        raise InvalidState('name a user, {"user": "ada"}, or a thread, {"thread": "room/one"}')
    return Disconnect(kick.user, None, None if kick.thread is None else ThreadKey(kind, name))
