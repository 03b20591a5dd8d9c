"""A gateway before an app of a test, in the same process: each thread is the app's, and reached over a link.

Tests that are `relayed` run once more with a front before each app that `running` serves.
"""

import copy
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.ports import hold_port

from plait import Plait, ThreadKey
from plait.cluster.node_config import NodeConfig, split_address
from plait.cluster.owners import NodeId, NotOwner, Owners
from plait.web.http.endpoint import Endpoint
from plait.web.links.folder import Folder
from plait.web.links.links import Links, Network
from plait.web.links.tcp import Tcp
from plait.web.server_context import ServerContext
from plait.web.site import Site
from plait.web.socket_endpoint import SocketEndpoint
from plait.web.sockets.heartbeat import Heartbeat

__all__ = ["Front", "OneOwner", "Over", "put_front", "using_fronts"]

_GATEWAY, _OWNER = 0, 1

Over = Literal["unix", "tcp"]
"""The network of links: Unix sockets as between workers, or TCP with a secret as between nodes of a cluster."""


class _Use:
    """The fronts that were made since their use began; None if apps get no front."""

    fronts: "list[Front] | None" = None
    over: Over = "unix"


class OneOwner(Owners):
    """Two nodes; one owns every thread."""

    is_alone = False

    def __init__(self, node: int = _GATEWAY, addresses: Sequence[str] = ()) -> None:
        self._node = node
        self._addresses = addresses

    @property
    def node(self) -> NodeId:
        return self._node

    @property
    def keepers(self) -> Sequence[NodeId]:
        return (_GATEWAY, _OWNER)

    def find(self, key: ThreadKey) -> NodeId | None:
        return _OWNER

    def find_address(self, node: NodeId) -> str | None:
        return self._addresses[int(node)]

    def check(self, key: ThreadKey) -> None:
        if self.node != _OWNER:
            raise NotOwner("another node owns every thread")


class Front:
    """An ASGI app that serves the threads of `app` as a gateway does, and runs while that runs."""

    def __init__(self, app: Plait, over: Over = "unix") -> None:
        self.app = app
        self._folder = tempfile.mkdtemp(prefix="plait-")
        self._held = [hold_port(), hold_port()] if over == "tcp" else []
        # The app, too, gets links, for as long as it runs.
        self._former = app._owners, app._context.links
        owners = app._owners = app._context.owners = OneOwner(_OWNER)
        openers = app._context.links.openers
        app._context.links = Links(owners, self._make_network(_OWNER))
        app._context.links.openers |= openers
        settings = app.settings
        self.context = context = ServerContext(
            app._node,
            app._context.identity,
            Heartbeat(settings.ping_interval, settings.ping_timeout),
            hosts=app._context.hosts,
            compatibility=app._context.compatibility,
            runs=app._runs,
            owners=(gateway := OneOwner(_GATEWAY)),
            links=Links(gateway, self._make_network(_GATEWAY)),
            shutdown_timeout=settings.shutdown_timeout,
        )
        context.lists_kinds = app._context.lists_kinds
        self._sockets = SocketEndpoint(context)
        self._site = Site(context, app._store, settings, app._thread_ids, metrics=None, lifespan=self.lifespan)
        # The last one that is mounted is the first route.
        for route in reversed(app._site.asgi.router.routes):
            if isinstance(route, Mount) and route.path:  # Not `static`, which the Site mounts itself.
                self._site.mount(route.path, self._take_over(route.app))
        self.addresses = context.addresses

    def _make_network(self, node: int) -> Network:
        if not self._held:
            return Folder(node, self._folder)
        addresses = [f"127.0.0.1:{held.getsockname()[1]}" for held in self._held]
        host, port = split_address(addresses[node], "the address")
        place = NodeConfig(str(node), host, port, addresses[node], "the secret of the test")
        return Tcp(place, OneOwner(node, addresses))

    def _take_over(self, mounted: ASGIApp) -> ASGIApp:
        """Return an adapter of the app, such as AgUi, as the gateway has it, and any other ASGI app as it is."""
        if not isinstance(mounted, Endpoint):
            return mounted
        adapter = copy.copy(mounted)
        Endpoint.__init__(adapter, self.context)
        return adapter

    @property
    def sent(self) -> int:
        """The messages that the gateway and the owner have sent."""
        return self.context.links.count("sent") + self.app._context.links.count("sent")

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Run the app and the gateway."""
        async with self.app.lifespan():
            self.context.start()
            self.context.heartbeat.start()
            await self.context.links.start()
            try:
                yield
            finally:
                await self.context.links.stop()
                await self.context.heartbeat.stop()
        app = self.app
        app._owners, app._context.links = self._former
        app._context.owners = app._owners
        shutil.rmtree(self._folder)
        for held in self._held:
            held.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._site.asgi(scope, receive, send)
        else:
            await self._site.answer(scope, receive, send)


@contextmanager
def using_fronts(over: Over = "unix") -> Iterator[list[Front]]:
    """Have `running` put a front before each app while the block runs; yields the fronts."""
    _Use.fronts, _Use.over = (fronts := []), over
    try:
        yield fronts
    finally:
        _Use.fronts = None


def put_front(app: Any) -> Any:
    """Return a front of an app if fronts are used, and otherwise the app."""
    if _Use.fronts is None or not isinstance(app, Plait):
        return app
    _Use.fronts.append(front := Front(app, _Use.over))
    return front
