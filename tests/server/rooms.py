"""Threads that are awake without a server, and clients of them whose sockets are fakes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from tests.server.fakes import FakeTransport, TroubledStore
from tests.server.sessions import make_cloudflare

from plait.actor.actor import Actor
from plait.actor.thread import Thread
from plait.instruments.protocol import NO_INSTRUMENTS, Instruments
from plait.limits import DEFAULT_LIMITS, Limits
from plait.node.node import Node
from plait.session.cloudflare.departures import Departures
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey

__all__ = ["Client", "House", "make_request", "open_house"]

STOP_TIMEOUT = 5.0
SWEEP_INTERVAL = 0.05


def make_request(path: str = "/", **headers: str) -> Request:
    """Return a request as a hook gets it."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": path, "headers": raw, "query_string": b""})


class Client:
    """A client of the Cloudflare protocol, joined to a thread by a fake socket."""

    def __init__(
        self,
        actor: Actor,
        id: str,
        *,
        can_ping: bool = True,
        principal: Principal | None = None,
        departures: Departures | None = None,
    ) -> None:
        self.transport = FakeTransport(can_ping=can_ping)
        self.connection, self.session = make_cloudflare(
            actor, id, self.transport, principal=principal, departures=departures
        )
        self.transport.session = self.session

    def open(self, request: Request | None = None) -> None:
        """Ask to join."""
        self.session.open(request or make_request())

    def send(self, data: Any) -> None:
        """Send bytes as a binary message, a str as text, anything else as JSON."""
        if isinstance(data, bytes):
            self.session.receive(data, is_text=False)
        else:
            text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
            self.session.receive(text.encode(), is_text=True)

    def push(self, state: Any) -> None:
        """Set the state, as the published client does."""
        self.send({"state": state, "type": "cf_agent_state"})

    def call(self, id: str, method: str, *args: Any) -> None:
        """Call an rpc, as the published client does."""
        self.send({"args": args, "id": id, "method": method, "type": "rpc"})

    def leave(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket."""
        self.transport.close(code, reason)

    async def next(self) -> Any:
        """Return the next message, None when the socket is closed."""
        return await self.transport.next()

    async def joined(self) -> list[Any]:
        """Return what came up to the frame of mcp servers, which is the last one of joining."""
        found = [await self.next()]
        while found[-1] is not None and found[-1]["type"] != "cf_agent_mcp_servers":
            found.append(await self.next())
        return found


class House:
    """A node with a store that can be held up."""

    def __init__(self, node: Node, store: TroubledStore) -> None:
        self.node = node
        self.store = store
        self.departures = Departures()

    async def actor(self, cls: type[Thread[Any]], name: str = "one") -> Actor:
        """Return a thread, awake."""
        return await self.node.actor(ThreadKey(cls._kind.name, name))

    def handle(self, cls: type[Thread[Any]], name: str = "one") -> Any:
        """Return a handle to a thread; its rpcs and parts are used as its attributes."""
        return self.node.handle(cls, name)

    async def join(self, cls: type[Thread[Any]], id: str, *, name: str = "one", can_ping: bool = True) -> Client:
        """Return a client that has joined a thread and taken what it is sent then."""
        actor = await self.actor(cls, name)
        await actor.state.store_thread()
        client = Client(actor, id, can_ping=can_ping, departures=self.departures)
        client.open()
        await client.joined()
        if can_ping and client.transport.pings:
            client.transport.answer_ping()
        return client


@asynccontextmanager
async def open_house(
    *classes: type[Thread[Any]],
    limits: Limits = DEFAULT_LIMITS,
    store: TroubledStore | None = None,
    instruments: Instruments = NO_INSTRUMENTS,
    timer_interval: float = 30.0,
) -> AsyncIterator[House]:
    """Run a node that knows some classes."""
    async with store or TroubledStore() as opened:
        node = Node(
            [cls._kind for cls in classes],
            opened,
            limits,
            instruments=instruments,
            sweep_interval=SWEEP_INTERVAL,
            timer_interval=timer_interval,
        )
        node.start()
        try:
            yield House(node, opened)
        finally:
            opened.resume()
            await node.stop(STOP_TIMEOUT)
