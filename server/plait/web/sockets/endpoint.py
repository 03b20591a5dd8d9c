"""The endpoint of sockets, which checks and accepts each one, and hands it to a session of its thread.
A refused socket is accepted first and then closed with a final code, since clients take a refused upgrade for a network
failure and retry forever.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Rights
from plait.actor.logs import log_internal
from plait.errors import PlaitError, escape_traceback
from plait.instruments.protocol import Instruments
from plait.parts.messages.part import Messages
from plait.session.cloudflare.session import CLOUDFLARE, CloudflareSession
from plait.session.native.follower import PLAIT
from plait.session.native.joining import Joining
from plait.session.native.tokens import Tokens
from plait.store.protocol import ThreadKey
from plait.web.addresses import Addresses
from plait.web.context import ServerContext, as_final_refusal, as_get, as_refusal, find_traceparent, with_token
from plait.web.sockets.asgi import AsgiSocket
from plait.web.sockets.handshake import EXTENSION, Handshake
from plait.web.sockets.heartbeat import Heartbeat
from plait.web.sockets.pending_join import PendingJoin, run_unless_disconnected
from plait.web.sockets.socket import ABNORMAL, Socket
from plait.web.thread_urls import read_address
from plait_schemas.codes import INTERNAL_ERROR
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["SocketEndpoint"]

log = logging.getLogger("plait.sockets")
log.addFilter(escape_traceback)

Join = Callable[[Socket | AsgiSocket], Awaitable[None]]


class SocketEndpoint:
    """The ASGI app for WebSockets."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] == "websocket.connect":
            await _Opening(self._context, scope, receive, send).open()


class _Place:
    """A socket's share of the limit of its address; it keeps no reference to the opening."""

    __slots__ = ("_addresses", "_host", "connection", "joining")

    def __init__(self, addresses: Addresses, host: str) -> None:
        self._addresses = addresses
        self._host = host
        # The connection, after the socket has begun to join.
        self.connection: Connection | None = None
        # The task that joins it, which is cancelled if the peer disconnects.
        self.joining: asyncio.Task[Any] | None = None

    def enter(self) -> None:
        """Count the socket for its address. Raises TooMany."""
        self._addresses.enter(self._host)

    def leave(self) -> None:
        """Stop counting the socket when its turns have ended."""
        joining, self.joining = self.joining, None
        if joining is not None:
            joining.cancel()
        leave = partial(self._addresses.leave, self._host)
        if self.connection is None:
            leave()
        else:
            self.connection.call_when_turns_end(leave)


class _Opening:
    """One socket from its request to its session."""

    def __init__(self, context: ServerContext, scope: Scope, receive: Receive, send: Send) -> None:
        self._context = context
        self._scope = scope
        self._receive = receive
        self._send = send
        self._handshake: Handshake | None = scope.get("extensions", {}).get(EXTENSION)
        self._subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None
        self._request = as_get(scope)
        self._host = self._request.client.host if self._request.client else ""
        self._place = _Place(context.addresses, self._host)

    async def open(self) -> None:
        """Accept or refuse the socket."""
        try:
            key = self._address()
            self._place.enter()
        except Exception as error:
            await self._refuse(error)
            return
        socket = None
        try:
            if (join := await self._admit(key)) is not None:
                socket = await self._accept(self._place.leave)
        finally:
            if socket is None:
                self._place.leave()
        if socket is not None and join is not None:
            await self._run(socket, join)

    # Inside

    def _address(self) -> ThreadKey:
        key = read_address(self._request.scope).key
        self._context.check_place(self._request, key.kind)
        self._context.identity.check_origin(self._request)
        return key

    async def _admit(self, key: ThreadKey) -> Join | None:
        """Return the function that joins the socket to its thread; None if it is refused or its peer has disconnected.

        A client of the Cloudflare protocol is authenticated by the request, a native client by its join.
        """
        if self._subprotocol is not None:
            return partial(self._join_native, key)
        try:
            rights = await run_unless_disconnected(self._check(key), self._receive)
        except Exception as error:
            await self._refuse(error)
            return None
        return None if rights is None else partial(self._join, key, rights)

    async def _check(self, key: ThreadKey) -> Rights:
        rights = await self._rights(key, self._request)
        # Wake the thread, and store a new one, so that errors are known before the socket is accepted, and the session
        # exists before the first message.
        actor = await self._context.actor(rights.principal, key)
        if not actor.state.is_stored:
            await self._store(actor)
        return rights

    async def _rights(self, key: ThreadKey, request: Request) -> Rights:
        """Return the rights of a request's principal. Raises an error if it is refused."""
        identity = self._context.identity
        principal = await identity.principal(request)
        if isinstance(principal, Response):
            raise as_final_refusal(principal)
        self._context.check_kind(self._request, key.kind)
        await identity.check(principal, key, "connect")
        rights = Rights(
            principal, await identity.may(principal, key, "write"), await identity.may(principal, key, "call")
        )
        if not _has_live_messages(self._context.node.kind(key.kind).cls):
            return rights
        return rights._replace(
            may_open=await identity.may(principal, key, "messages"), may_send=await identity.may(principal, key, "send")
        )

    async def _refuse(self, error: Exception) -> None:
        """Accept the socket and close it with the code for `error`."""
        socket = await self._accept(_do_nothing)
        if socket is not None:
            _close(socket, self._context, error)
            if isinstance(socket, AsgiSocket):
                await socket.run()

    async def _run(self, socket: Socket | AsgiSocket, join: Join) -> None:
        """Join the socket to its thread, or close it with the error."""
        if isinstance(socket, AsgiSocket):
            async with asyncio.TaskGroup() as group:
                self._place.joining = group.create_task(_try(join, socket, self._context))
                await socket.run()
            self._place.joining = None
            return
        # Join in this task, so that the first frames are sent together with the answer to the request.
        task = self._place.joining = asyncio.current_task()
        assert task is not None
        try:
            await _try(join, socket, self._context)
        except asyncio.CancelledError as error:
            if self._place.joining is not None:
                # The peer has not disconnected: `authenticate` has raised the error, or the server is stopping.
                socket.close(INTERNAL_ERROR, log_internal(error))
                raise
            if task.uncancel():
                raise
        else:
            if self._place.joining is None:
                task.uncancel()  # The peer has disconnected, but `authenticate` has caught the cancellation.
        finally:
            self._place.joining = None

    async def _join(self, key: ThreadKey, rights: Rights, socket: Socket | AsgiSocket) -> None:
        actor = await self._actor(key, rights)
        if not actor.state.is_stored:  # The thread was destroyed after the check.
            await self._store(actor)
        connection = actor.sockets.make_connection(self._id(actor, rights), socket, rights=rights, wire=CLOUDFLARE)
        self._place.connection = connection
        connection.traceparent = find_traceparent(self._scope)
        session = CloudflareSession(actor, connection, socket, self._context.departures)
        socket.attach(session)
        session.open(self._request)

    async def _join_native(self, key: ThreadKey, socket: Socket | AsgiSocket) -> None:
        pending = PendingJoin(socket)
        socket.attach(pending)
        with self._context.register(pending):
            join = await pending.join()
            if join is None:
                return
            arrival = next(self._context.arrivals)
            rights = await self._rights_by_token(key, join.token)
            await self._context.compatibility.check(key.kind, join.schema)
            actor = await self._actor(key, rights)
            with actor.keep_awake():
                await actor.state.store_thread()
                id = actor.sockets.connection_id(SUBPROTOCOL, rights.principal, join.client)
                connection = actor.sockets.make_connection(id, socket, rights=rights, wire=PLAIT, arrival=arrival)
                self._place.connection = connection
                connection.traceparent = find_traceparent(self._scope)
                tokens = Tokens(connection, socket.send, partial(self._rights_by_token, key), actor.explain)
                joining = await Joining.prepare(actor, connection, socket, join, tokens=tokens, attach=socket.attach)
                if pending.is_closed:
                    joining.close(ABNORMAL, "")
                    return
                socket.attach(joining)
                joining.open(self._request)
        pending.hand_over(joining)

    async def _rights_by_token(self, key: ThreadKey, token: str | None) -> Rights:
        return await self._rights(key, self._request if token is None else with_token(self._request, token))

    async def _actor(self, key: ThreadKey, rights: Rights) -> Actor:
        actor = await self._context.actor(rights.principal, key)
        if (refusal := actor.sockets.find_refusal()) is not None:
            raise refusal
        return actor

    async def _store(self, actor: Actor) -> None:
        """Store a new thread, as clients only see durable threads."""
        with actor.keep_awake():
            await actor.state.store_thread()

    async def _accept(self, ended: Callable[[], None]) -> Socket | AsgiSocket | None:
        limits, tell = self._context.limits, self._context.instruments
        protocol = self._subprotocol or "cloudflare"
        if self._handshake is None:
            try:
                await self._send({"type": "websocket.accept", "subprotocol": self._subprotocol})
            except OSError:
                return None  # The peer has disconnected, as ASGI reports.
            tell.socket_opened(protocol)
            asgi = AsgiSocket(
                self._receive,
                self._send,
                max_size=limits.frame,
                write_buffer=limits.write_buffer,
                scheduler=self._context.scheduler,
                ended=lambda: _report_end(asgi, ended, tell, protocol),
            )
            return asgi
        heartbeat = self._context.heartbeat
        socket = self._handshake.accept(
            write_batcher=self._context.write_batcher,
            max_size=limits.frame,
            write_buffer=limits.write_buffer,
            bucket=limits.make_bucket(asyncio.get_running_loop().time()),
            scheduler=self._context.scheduler,
            ended=partial(_discard, heartbeat, ended, tell, protocol),
            shutdown=self._context.shutdown,
            subprotocol=self._subprotocol,
        )
        if socket is not None:
            heartbeat.add(socket)
            tell.socket_opened(protocol)
        return socket

    def _id(self, actor: Actor, rights: Rights) -> str:
        """Return an id that is the same after each reconnect of a client, and that other clients cannot use."""
        given = self._request.query_params.get("_pk", "")
        if not 0 < len(given) <= 128:
            return secrets.token_hex(12)
        return actor.sockets.connection_id("cloudflare", rights.principal, given)


def _discard(
    heartbeat: Heartbeat, ended: Callable[[], None], instruments: Instruments, protocol: str, socket: Socket
) -> None:
    heartbeat.discard(socket)
    _report_end(socket, ended, instruments, protocol)


def _report_end(
    socket: Socket | AsgiSocket, ended: Callable[[], None], instruments: Instruments, protocol: str
) -> None:
    ended()
    instruments.socket_closed(protocol, socket.code)
    if socket.hit is not None:
        instruments.limit_hit(socket.hit)


def _do_nothing() -> None:
    pass


async def _try(join: Join, socket: Socket | AsgiSocket, context: ServerContext) -> None:
    try:
        await join(socket)
    except Exception as error:
        _close(socket, context, error)


def _close(socket: Socket | AsgiSocket, context: ServerContext, error: Exception) -> None:
    if isinstance(error, PlaitError) and error.limit is not None:
        context.instruments.limit_hit(error.limit)
    if isinstance(error, HTTPException):
        error = as_refusal(error)
    if isinstance(error, PlaitError):
        level = logging.DEBUG if error.is_logged else logging.INFO
        log.log(level, "a socket was refused, %s: %s", error.code, error)
    explained = context.failures.explain(error, None)
    socket.close(explained.close_code, str(explained))


def _has_live_messages(cls: type[Any]) -> bool:
    """Whether clients may open any part of a Thread class."""
    return any(isinstance(each, Messages) and each.is_live for base in cls.__mro__ for each in vars(base).values())
