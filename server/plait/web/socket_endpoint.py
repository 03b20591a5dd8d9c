"""The endpoint of sockets: checks and accepts each socket, and joins it to its thread, here or at the owner.

A refused socket is accepted first and then closed with a final code, since clients take a refused upgrade for a network
failure and retry forever.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from plait.cluster.gate import OPEN
from plait.instruments.protocol import Instruments
from plait.limits import Limits
from plait.store.thread_rows import ThreadKey
from plait.web.admission import Admission, close_refused, join_in_task, try_join
from plait.web.gated import GatedSend, wait_until_open
from plait.web.links.link import Link
from plait.web.relay.gateway import RelayedSocket
from plait.web.relay.messages import SentScope
from plait.web.server_context import ServerContext, as_get
from plait.web.sockets.asgi import AsgiSocket
from plait.web.sockets.channels import Carrier, Channel
from plait.web.sockets.entrance import CHANNEL, CHANNELS, ENTRANCE, Entrance
from plait.web.sockets.framing import WriteBatcher
from plait.web.sockets.handshake import EXTENSION, Handshake
from plait.web.sockets.pending_join import SocketResources, run_unless_disconnected
from plait.web.sockets.socket import Socket
from plait.web.thread_urls import read_address
from plait_schemas.messages import SUBPROTOCOL

__all__ = ["SocketEndpoint"]


class _Owner(NamedTuple):
    """The owner of a thread: the other end of a link, or this node."""

    link: Link | None


_HERE: Final = _Owner(None)


class SocketEndpoint:
    """The ASGI app for WebSockets."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        opening = _Opening(self._context, scope, receive, send)
        if (entrance := scope.get("extensions", {}).get(ENTRANCE)) is None:
            await opening.open()
        else:
            await opening.carry(entrance)


class _Opening:
    """One socket from its request until it is accepted, with the checks that its own node makes."""

    def __init__(self, context: ServerContext, scope: Scope, receive: Receive, send: Send) -> None:
        self._context = context
        self._scope = scope
        self._receive = receive
        self._ungated = send
        self._send = self._gate()
        self._write_batcher = context.write_batcher
        extensions = scope.get("extensions", {})
        self._handshake: Handshake | None = extensions.get(EXTENSION)
        self._channel: Channel | None = extensions.get(CHANNEL)
        self._subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None
        self._host = scope["client"][0] if scope.get("client") else ""

    async def open(self) -> None:
        """Accept or refuse the socket."""
        try:
            key = self._check()
            self._context.addresses.enter(self._host)
        except Exception as error:
            await self._refuse(error)
            return
        leave = partial(self._context.addresses.leave, self._host)
        try:
            found = await self._find_owner(key)
        except Exception as error:
            leave()
            await self._refuse(error)
        except BaseException:
            leave()
            raise
        else:
            if found is None:
                leave()
            elif found.link is None:
                await self._join(key, SocketResources(leave))
            else:
                await self._relay(key, found.link, leave)

    async def carry(self, entrance: Entrance) -> None:
        """Accept the socket as a carrier, whose channels are opened and checked one by one, or refuse it."""
        context, self._subprotocol = self._context, CHANNELS
        try:
            # A thread that is refused must not refuse the others on its carrier.
            request = as_get(self._scope)
            context.hosts.check(request)
            context.identity.check_origin(request)
            context.addresses.enter(self._host)
        except Exception as error:
            await self._refuse(error)
            return
        leave, socket = partial(context.addresses.leave, self._host), None
        try:
            socket = await self._accept(leave, Carrier.widen(context.limits))
        finally:
            if socket is None:
                leave()
        if socket is None:
            return
        carrier = Carrier(socket, entrance, context.limits, context.scheduler, ended=context.relays.discard)
        context.relays.add(carrier)
        socket.attach(carrier)
        if isinstance(socket, AsgiSocket):
            await socket.run()

    # Inside

    def _check(self) -> ThreadKey:
        request = as_get(self._scope)
        key = read_address(request.scope).key
        self._context.check_place(request, key.kind)
        self._context.identity.check_origin(request)
        return key

    async def _find_owner(self, key: ThreadKey) -> "_Owner | None":
        """Return the owner of the thread; None if the peer has disconnected. Raises Unavailable."""
        owners, links = self._context.owners, self._context.links
        if (owners.gate is OPEN or owners.gate.is_open) and (owners.is_alone or owners.owns(key)):
            return _HERE

        self._context.node.check_draining()

        async def find() -> _Owner:
            await wait_until_open(owners.gate, links.hold)
            self._send = self._gate()
            return _Owner(await links.find_link(key))

        return await run_unless_disconnected(find(), self._receive)

    def _gate(self) -> Send:
        """Return a `send` for all answers from now on."""
        gate = self._context.owners.gate
        if gate is OPEN:
            return self._ungated
        return GatedSend(gate, self._scope, self._ungated, hold=self._context.links.hold)

    async def _refuse(self, error: Exception) -> None:
        """Accept the socket and close it with the code for `error`."""
        # A refusal shows nothing of a thread, so a process that is cut off may send it.
        self._send, self._write_batcher = self._ungated, WriteBatcher()
        socket = await self._accept(lambda: None)
        if socket is not None:
            close_refused(socket, self._context, error)
            if isinstance(socket, AsgiSocket):
                await socket.run()

    # A thread of this node

    async def _join(self, key: ThreadKey, resources: SocketResources) -> None:
        admission, rights, socket = Admission(self._context, self._scope, key, resources), None, None
        try:
            # A client of the Cloudflare protocol is checked before its socket is accepted.
            if self._subprotocol is None:
                rights = await run_unless_disconnected(admission.check(), self._receive)
                if rights is None:
                    return
        except Exception as error:
            await self._refuse(error)
        else:
            socket = await self._accept(resources.leave)
        finally:
            if socket is None:
                resources.leave()
        if socket is None:
            return
        join = partial(admission.join, rights)
        if isinstance(socket, AsgiSocket):
            async with asyncio.TaskGroup() as group:
                resources.joining = group.create_task(try_join(join, socket, self._context))
                await socket.run()
            resources.joining = None
        else:
            # Join in this task, so that the first frames are sent together with the answer to the request.
            await join_in_task(join, socket, resources, self._context)

    # A thread of another node

    async def _relay(self, key: ThreadKey, link: Link, leave: Callable[[], None]) -> None:
        """Relay the socket to the owner of its thread."""
        relayed, socket = RelayedSocket(self._context.links, link, key, leave, self._context.relays), None
        try:
            socket = await self._accept(relayed.end)
        finally:
            if socket is None:
                leave()
        if socket is None:
            return
        relayed.open(socket, SentScope.of(self._scope, can_ping=socket.can_ping).encode())
        if isinstance(socket, AsgiSocket):
            await socket.run()

    async def _accept(
        self, ended: Callable[[], None], limits: Limits | None = None
    ) -> Socket | AsgiSocket | Channel | None:
        limits, tell = limits or self._context.limits, self._context.instruments
        protocol = self._subprotocol or "cloudflare"
        if self._channel is not None:
            channel = self._channel.accept(lambda channel: _report_end(channel, ended, tell, protocol))
            if channel is not None:
                tell.socket_opened(protocol)
            return channel
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
        if self._handshake.is_over:
            return None  # The peer has disconnected.
        context, connections = self._context, self._handshake.connections

        def end(socket: Socket) -> None:
            connections.discard(socket)
            context.heartbeat.discard(socket)
            _report_end(socket, ended, tell, protocol)

        socket = Socket(
            self._handshake.transport,
            write_batcher=self._write_batcher,
            max_size=limits.frame,
            write_buffer=limits.write_buffer,
            bucket=limits.make_bucket(asyncio.get_running_loop().time()),
            scheduler=context.scheduler,
            ended=end,
            shutdown=context.shutdown,
        )
        self._handshake.accept(socket, self._subprotocol)
        context.heartbeat.add(socket)
        tell.socket_opened(protocol)
        return socket


def _report_end(
    socket: Socket | AsgiSocket | Channel, ended: Callable[[], None], instruments: Instruments, protocol: str
) -> None:
    ended()
    instruments.socket_closed(protocol, socket.code)
    if socket.hit is not None:
        instruments.limit_hit(socket.hit)
