"""The admission of a socket at the owner of its thread: finds the peer's principal and rights, and makes a session."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Rights
from plait.actor.transport import Transport
from plait.errors import PlaitError, escape_traceback
from plait.instruments.protocol import tell_limit
from plait.node.threads import SHUTTING_DOWN
from plait.session.cloudflare.cloudflare_session import CLOUDFLARE, CloudflareSession
from plait.session.leases import PrincipalLease
from plait.session.native.follower import PLAIT
from plait.session.native.joining import Joining
from plait.session.native.tokens import Tokens
from plait.store.thread_rows import ThreadKey
from plait.web.server_context import (
    ServerContext,
    as_final_refusal,
    as_get,
    as_refusal,
    find_party,
    find_traceparent,
    with_token,
)
from plait.web.sockets.frame_reader import ABNORMAL
from plait.web.sockets.pending_join import PendingJoin, SocketResources
from plait_schemas.codes import GOING_AWAY
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["Admission", "close_refused", "join_in_task", "try_join"]

log = logging.getLogger("plait.sockets")
log.addFilter(escape_traceback)


Join = Callable[[Transport], Awaitable[None]]


class Admission:
    """Finds out the rights of one socket, and joins it to its thread.

    A client of the Cloudflare protocol is authenticated by its request, a native client by its join.
    """

    def __init__(self, context: ServerContext, scope: Scope, key: ThreadKey, resources: SocketResources) -> None:
        self._context = context
        self._key = key
        self._resources = resources
        self._lease = resources.lease = PrincipalLease(context.leases)
        self._request = as_get(scope)
        self._traceparent = find_traceparent(scope)
        self._is_native = SUBPROTOCOL in scope.get("subprotocols", ())

    async def enter(self, socket: Transport) -> None:
        """Check a socket that has been accepted already, and join it."""
        await self.join(await self.check(), socket)

    async def check(self) -> Rights | None:
        """Return the rights of a client of the Cloudflare protocol; None for a native one, whose token comes later.

        Raises an error if the client is refused.
        """
        if self._is_native:
            return None
        self._lease.begin()
        rights = await self._find_rights(self._request)
        # Wake the thread, and store a new one, so that errors are known before the socket is accepted, and the session
        # exists before the first message.
        actor = await self._context.actor(rights.principal, self._key)
        if not actor.state.is_stored:
            await self._store(actor, rights)
        return rights

    async def join(self, rights: Rights | None, socket: Transport) -> None:
        """Join a socket with the result of `check`."""
        if rights is None:
            await self._join_native(socket)
        else:
            await self._join_cloudflare(rights, socket)

    # Inside

    async def _find_rights(self, request: Request) -> Rights:
        """Return the rights of a request's principal. Raises an error if it is refused."""
        identity, key = self._context.identity, self._key
        principal = await identity.principal(request)
        if isinstance(principal, Response):
            raise as_final_refusal(principal)
        self._context.check_kind(self._request, key.kind)
        await identity.check(principal, key, "connect")
        rights = Rights(
            principal,
            await identity.may(principal, key, "write"),
            await identity.may(principal, key, "call"),
            may_approve=self._context.has_runs(key.kind) and await identity.may(principal, key, "approve"),
        )
        if key.kind not in self._context.live_kinds:
            return rights
        return rights._replace(
            may_open=await identity.may(principal, key, "messages"),
            may_send=await identity.may(principal, key, "send"),
            may_upload=key.kind not in self._context.files or await identity.may(principal, key, "upload"),
        )

    async def _find_rights_by_token(self, token: str | None) -> Rights:
        return await self._find_rights(self._request if token is None else with_token(self._request, token))

    async def _join_cloudflare(self, rights: Rights, socket: Transport) -> None:
        actor = await self._find_actor(rights)
        if not actor.state.is_stored:  # The thread was destroyed after the check.
            await self._store(actor, rights)
        id, party = self._make_id(actor, rights), find_party(self._request, rights.principal)
        connection = actor.sockets.make_connection(id, socket, rights=rights, wire=CLOUDFLARE, party=party)
        session = CloudflareSession(actor, connection, socket, self._context.departures)
        socket.attach(session)
        self._hold(connection)
        session.open(self._request)

    async def _join_native(self, socket: Transport) -> None:
        pending = PendingJoin(socket)
        socket.attach(pending)
        with self._context.register(pending):
            join = await pending.join()
            if join is None:
                return
            arrival = next(self._context.arrivals)
            self._lease.begin()
            rights = await self._find_rights_by_token(join.token)
            if join.schema is not None:
                await self._context.compatibility.check(self._key.kind, join.schema)
            actor = await self._find_actor(rights)
            with actor.usage.keep_awake():
                party = find_party(self._request, rights.principal)
                await actor.state.store_thread(party)
                id = actor.sockets.connection_id(SUBPROTOCOL, rights.principal, join.client)
                connection = actor.sockets.make_connection(
                    id, socket, rights=rights, wire=PLAIT, arrival=arrival, party=party
                )
                self._hold(connection)
                tokens = Tokens(actor, connection, socket, self._lease, renew=self._find_rights_by_token)
                joining = Joining(actor, connection, socket, join, tokens=tokens)
                await joining.prepare()
                if pending.is_closed:
                    joining.close(ABNORMAL, "")
                    return
                socket.attach(joining)
                joining.open(self._request)
        pending.hand_over(joining)

    def _hold(self, connection: Connection) -> None:
        """Close a connection when the rights of its client end; keep its resources until its turns have ended."""
        self._resources.connection = connection
        connection.traceparent, connection.lease = self._traceparent, self._lease
        self._lease.principal = connection.principal
        self._lease.open(partial(_close, connection), connection_id=connection.id)

    async def _find_actor(self, rights: Rights) -> Actor:
        actor = await self._context.actor(rights.principal, self._key)
        if (refusal := actor.sockets.find_refusal()) is not None:
            raise refusal
        return actor

    async def _store(self, actor: Actor, rights: Rights) -> None:
        """Store a new thread, as clients only see durable threads."""
        with actor.usage.keep_awake():
            await actor.state.store_thread(find_party(self._request, rights.principal))

    def _make_id(self, actor: Actor, rights: Rights) -> str:
        """Return an id that is the same after each reconnect of a client, and that other clients cannot use."""
        given = self._request.query_params.get("_pk", "")
        if not 0 < len(given) <= 128:
            return secrets.token_hex(12)
        return actor.sockets.connection_id("cloudflare", rights.principal, given)


async def join_in_task(join: Join, socket: Transport, resources: SocketResources, context: ServerContext) -> None:
    """Join a socket to its thread in this task, which `resources` cancels if the peer disconnects."""
    task = resources.joining = asyncio.current_task()
    assert task is not None
    try:
        await try_join(join, socket, context)
    except asyncio.CancelledError:
        if resources.joining is None:  # The peer has disconnected.
            if task.uncancel():
                raise
            return
        socket.close(GOING_AWAY, SHUTTING_DOWN)
        raise
    else:
        if resources.joining is None:
            task.uncancel()  # The peer has disconnected, but `authenticate` has caught the cancellation.
    finally:
        resources.joining = None


async def try_join(join: Join, socket: Transport, context: ServerContext) -> None:
    """Join a socket to its thread, or close it with the error."""
    try:
        await join(socket)
    except Exception as error:
        close_refused(socket, context, error)


def close_refused(socket: Transport, context: ServerContext, error: Exception) -> None:
    """Close a socket that is refused with an error."""
    tell_limit(context.instruments, error)
    if isinstance(error, HTTPException):
        error = as_refusal(error)
    if isinstance(error, PlaitError):
        level = logging.DEBUG if error.is_logged else logging.INFO
        log.log(level, "a socket was refused, %s: %s", error.code, error)
    explained = context.failures.explain(error, None)
    socket.close(explained.close_code, str(explained))


def _close(connection: Connection, code: int, reason: str) -> None:
    if not connection.is_closed:
        connection.close(code, reason)
