"""The endpoint of a thread's sockets: checked, accepted, then handed to a session.

Who is refused is accepted first and closed with a code that is final, since clients take a refused upgrade for a
network failure and try for ever.
"""

import logging
import secrets
from collections.abc import Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from plait.connection import Connection, Principal
from plait.errors import PlaitError, TooMany
from plait.session.cloudflare import CloudflareSession
from plait.store.protocol import ThreadKey
from plait.web.address import read_address
from plait.web.asgi import AsgiSocket
from plait.web.front import Front, as_get, close_code
from plait.web.handshake import EXTENSION, Handshake
from plait.web.heartbeat import Heartbeat
from plait.web.sockets import Socket

__all__ = ["SocketEndpoint"]

log = logging.getLogger("plait.sockets")


class SocketEndpoint:
    """The ASGI app of WebSockets."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opening = _Opening(self._front, scope, receive, send)
        try:
            key, principal = await self._admit(opening.request)
            if isinstance(principal, Response):
                await principal(scope, receive, send)
                return
            may_write = await self._front.identity.may(principal, key, "write")
            may_call = await self._front.identity.may(principal, key, "call")
            # Wakes the thread, so that what prevents it is known before the socket is accepted.
            await self._front.node.actor(key)
        except Exception as error:
            await opening.refuse(error)
            return
        await opening.join(key, principal, may_write=may_write, may_call=may_call)

    async def _admit(self, request: Request) -> tuple[ThreadKey, Principal | Response | None]:
        front = self._front
        key = read_address(request.scope).key
        front.node.kind(key.kind)
        front.identity.check_origin(request)
        principal = await front.identity.principal(request)
        if not isinstance(principal, Response):
            await front.identity.check(principal, key, "connect")
        return key, principal


class _Opening:
    """One socket from its request to its session."""

    def __init__(self, front: Front, scope: Scope, receive: Receive, send: Send) -> None:
        self._front = front
        self._receive = receive
        self._send = send
        self._handshake: Handshake | None = scope.get("extensions", {}).get(EXTENSION)
        self.request = as_get(scope)
        self._host = self.request.client.host if self.request.client else ""

    async def refuse(self, error: Exception) -> None:
        """Accept the socket and close it with the code for `error`."""
        if not isinstance(error, PlaitError):
            log.error("a socket could not be opened: %s", type(error).__name__, exc_info=error)
        socket = await self._accept(_nothing)
        if socket is not None:
            socket.close(close_code(error), str(error) if isinstance(error, PlaitError) else "internal error")
            if isinstance(socket, AsgiSocket):
                await socket.run()

    async def join(self, key: ThreadKey, principal: Principal | None, *, may_write: bool, may_call: bool) -> None:
        """Accept the socket and join it to its thread."""
        front = self._front
        try:
            front.addresses.enter(self._host)
        except TooMany as error:
            await self.refuse(error)
            return
        ended = partial(front.addresses.leave, self._host)
        socket = await self._accept(ended)
        if socket is None:
            ended()
            return
        try:
            actor = await front.node.actor(key)
            if len(actor.connections) >= front.limits.connections_per_thread:
                raise TooMany(f"{key} has {len(actor.connections)} connections, which is the limit; try again later")
        except Exception as error:
            socket.close(close_code(error), str(error) if isinstance(error, PlaitError) else "internal error")
        else:
            connection = Connection(self._id(), socket, actor.pipeline.after, principal=principal)
            connection.readonly = not may_write
            connection.may_call = may_call
            session = CloudflareSession(actor, connection, socket)
            socket.attach(session)
            session.open(self.request)
        if isinstance(socket, AsgiSocket):
            await socket.run()

    async def _accept(self, ended: Callable[[], None]) -> Socket | AsgiSocket | None:
        limits = self._front.limits
        if self._handshake is None:
            await self._receive()
            await self._send({"type": "websocket.accept"})
            return AsgiSocket(
                self._receive, self._send, max_size=limits.frame, write_buffer=limits.write_buffer, ended=ended
            )
        heartbeat = self._front.heartbeat
        socket = self._handshake.accept(
            outlet=self._front.outlet,
            max_size=limits.frame,
            write_buffer=limits.write_buffer,
            ended=partial(_ended, heartbeat, ended),
            shutdown=self._front.shutdown,
        )
        if socket is not None:
            heartbeat.add(socket)
        return socket

    def _id(self) -> str:
        """Return the id that the client has kept over its reconnects, or a new one."""
        given = self.request.query_params.get("_pk", "")
        return given if given.isprintable() and 0 < len(given) <= 128 else secrets.token_hex(16)


def _ended(heartbeat: Heartbeat, ended: Callable[[], None], socket: Socket) -> None:
    heartbeat.discard(socket)
    ended()


def _nothing() -> None:
    pass
