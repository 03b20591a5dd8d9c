"""Plait: the ASGI application, which combines threads, store, limits and authentication."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from weakref import WeakValueDictionary

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from plait.actor.kind import Kind
from plait.actor.loop_watcher import LoopWatcher
from plait.actor.thread import Thread
from plait.agents.thread_ids import ThreadIdProvider, ThreadIds
from plait.cluster.cluster_owners import ClusterOwners
from plait.cluster.owners import Worker, Workers
from plait.errors import PlaitError, Unavailable, escape_traceback
from plait.instruments.combining import combine_instruments
from plait.instruments.prometheus import Metrics
from plait.instruments.protocol import Instruments
from plait.limits import DEFAULT_LIMITS, UNLIMITED, Limits
from plait.node.agent_host import AgentHost
from plait.node.listing import INNER_KINDS
from plait.node.remote_requests import Disconnect
from plait.node.thread_host import ThreadHost
from plait.parts.env.app_env import AppEnv
from plait.parts.env.secret import Secret
from plait.parts.messages.thread_messages import Messages
from plait.parts.part import find_parts
from plait.settings import (
    SettingError,
    Settings,
    as_setting_error,
    check_functions,
    make_setting_error,
    read_settings,
)
from plait.state.compatibility import Compatibility
from plait.store.copying import UNFINISHED, check_finished
from plait.store.protocol import Store
from plait.store.urls import open_shares
from plait.web.addresses import Addresses
from plait.web.authentication import Authenticate, Authorize, Identity
from plait.web.hosts import Hosts
from plait.web.lifespan import StartupFunctions, collect_rarely, run_lifespan
from plait.web.links.calls import Calls
from plait.web.links.folder import Folder
from plait.web.links.links import Links
from plait.web.links.process_role import ProcessRole, find_role
from plait.web.operators import disconnect, disconnect_here
from plait.web.relay.measures import measure
from plait.web.relay.moves import NodeMoves
from plait.web.relay.owner import Owner
from plait.web.server_context import ServerContext
from plait.web.site import Site
from plait.web.socket_endpoint import SocketEndpoint
from plait.web.sockets.heartbeat import Heartbeat

__all__ = ["Plait", "made_plaits"]

log = logging.getLogger("plait")
log.addFilter(escape_traceback)

# The Plaits of this process, in the order of their creation.
_made: Final[WeakValueDictionary[int, "Plait"]] = WeakValueDictionary()
_numbers: Final = itertools.count()

F = TypeVar("F", bound=Callable[[], Any])


class Plait(AgentHost, ThreadHost):
    """Serves Thread classes over WebSockets and HTTP: an ASGI application.

    Run it with `plait serve`, or mount it in another application and pass `lifespan` to that application.
    `async with app:` runs it without a server, so that you can use the handles that `thread` returns. Environment
    variables (`PLAIT_STORE` and so on) override the keywords. Raises TypeError or ValueError for an invalid setting.
    """

    # The task that gives all threads away, after `drain`.
    _leaving: asyncio.Task[None] | None = None

    def __init__(
        self,
        *kinds: type[Thread[Any]],
        store: str | Store = "sqlite:///plait.db",
        allowed_origins: Sequence[str] = (),
        allowed_hosts: Sequence[str] = (),
        limits: Limits | None = DEFAULT_LIMITS,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        static: str | Path | None = None,
        shutdown_timeout: float = 10.0,
        request_timeout: float = 10.0,
        ping_interval: float = 20.0,
        ping_timeout: float = 20.0,
        metrics: bool = False,
        instruments: Instruments | Iterable[Instruments] = (),
        secret: str | Sequence[str] = (),
        env: Mapping[str, str | Secret] | None = None,
        thread_ids: ThreadIdProvider | None = None,
        operator_token: str = "",
    ) -> None:
        check_functions(authenticate=authenticate, authorize=authorize, thread_ids=thread_ids)
        settings = self.settings = read_settings(
            store,
            allowed_origins=allowed_origins,
            allowed_hosts=allowed_hosts,
            limits=limits,
            static=static,
            shutdown_timeout=shutdown_timeout,
            request_timeout=request_timeout,
            ping_interval=ping_interval,
            ping_timeout=ping_timeout,
            metrics=metrics,
            secret=secret,
            operator_token=operator_token,
        )
        limits = settings.limits or UNLIMITED
        self._kinds = _check_kinds(kinds, limits)
        self._store, owners, self._network, self._is_first = self._find_role(store)
        shown = _make_metrics(settings)
        told = combine_instruments(instruments, () if shown is None else (shown,))
        variables = AppEnv(env, settings.secret)
        super().__init__(self._kinds, self._store, limits, told, owners=owners, env=variables)
        self._context = self._make_context(authenticate, authorize)
        self._node.everywhere.nodes.peers = self._calls = Calls(self._context.links, self._node.calls)
        self._sockets = SocketEndpoint(self._context)
        self._thread_ids = ThreadIds(settings.secret, thread_ids)
        self._site = Site(self._context, self._store, settings, self._thread_ids, metrics=shown, lifespan=self.lifespan)
        self._startup = StartupFunctions()
        self._node.calls.read_metrics = self._site.read_metrics
        self._owner = Owner(self._context, self._site.asgi)
        self._watcher = LoopWatcher(told, self._node.look_at_clock)
        self._is_running = False
        _made[next(_numbers)] = self

    # Running

    async def __aenter__(self) -> Self:
        if self._is_running:
            raise RuntimeError("this Plait is already running")
        self._warn_of_queues()
        if self.settings.metrics and not self.settings.operator_token and self._is_first:
            log.warning("every client may read /metrics: set operator_token (PLAIT_OPERATOR_TOKEN)")
        self._check_executions()
        await self._store.__aenter__()
        try:
            await self._check_finished()
            await self._context.compatibility.remember({kind.name: kind.state_type for kind in self._kinds})
            await self._owners.start(NodeMoves(self._context, self.settings.shutdown_timeout))
            await self._node.transfers.remove_incomplete()
        except BaseException:
            await self._owners.stop()
            await self._store.__aexit__(None, None, None)
            raise
        self._node.start()
        self.kv.start()
        self._context.start()
        self._context.heartbeat.start()
        self._watcher.start()
        self._is_running = True
        try:
            await self._startup.run(is_first=self._is_first)
            await self._listen()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._context.end_streams()
            await self.kv.stop()
            await self._node.stop(self.settings.shutdown_timeout)
            await self._calls.stop()
            await self._owner.finish(self.settings.shutdown_timeout)
            await self._context.links.stop()
            await self._owner.stop()
            await self._context.heartbeat.stop()
            await self._owners.stop()
        finally:
            self._watcher.stop()
            self._is_running = False
            await self._site.stop()
            await self._store.__aexit__(None, None, None)

    async def check_store(self) -> None:
        """Open and close the store; the first worker also creates the files of the others. Raises StoreError."""
        if isinstance(self._owners, Workers) and self._is_first and self.settings.store:
            async with open_shares(self.settings.store, self._owners.count) as store:
                await check_finished(store)
        async with self._store:
            await self._check_finished()

    def check_settings(self) -> None:
        """Raise SettingError if the folder `static` is missing, or a secret to sign the thread ids of agents."""
        if (at := self.settings.static) is not None and not Path(at).is_dir():
            raise make_setting_error("static", f"{at!r} is not a folder: make it with `mkdir {Path(at).resolve()}`")
        if self._runs.agents and not self._thread_ids.has_secret:
            raise SettingError(
                "the app has agents but no secret to sign the ids of their threads: set PLAIT_SECRET to the output of "
                '`python -c "import secrets; print(secrets.token_hex(32))"`, and keep it when the server restarts'
            )

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Run while `app` runs: pass this as `lifespan=` to the Starlette or FastAPI app in which it is mounted.

        Until the app ends, the garbage collector of the process runs less often, unless the process has set its
        thresholds. Raises SettingError if the app has agents but no secret, or the folder `static` does not exist.
        """
        self.check_settings()
        with collect_rarely():
            async with self:
                yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._node.check_loop()
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
        elif scope["type"] == "lifespan":
            await run_lifespan(self._site.asgi, scope, receive, send)
        else:
            await self._site.answer(scope, receive, send)

    async def disconnect(self, user: str | None = None, *, connection_id: str | None = None) -> int:
        """Close the sockets and streams of a user, by the id of its `Principal`, or of a connection id.

        They are closed with 4401, at all workers and nodes; a socket that is being authenticated is closed when it
        joins. Returns the number of open ones. This is not a ban: first revoke the credentials that `authenticate`
        accepts. Raises Unavailable if a worker or node does not answer, and StoreError.
        """
        if not isinstance(user if connection_id is None else connection_id, str) or None not in (user, connection_id):
            raise TypeError("disconnect takes the id of a user or a connection_id, which is a str")
        return await disconnect(self._context, Disconnect(user, connection_id))

    def drain(self) -> Awaitable[None]:
        """Begin to shut down: refuse requests and sockets, finish running turns and runs, then close the sockets.

        A server calls this when it is told to stop, and keeps listening until the returned awaitable is done, so that
        clients are told to try again. You need not await it. Leaving the app ends all remaining work.
        """
        owners = self._owners
        if owners.is_alone or not isinstance(owners, ClusterOwners):
            self._context.links.go_away()
            return self._context.shutdown()
        if self._leaving is None or self._leaving.done():
            self._leaving = asyncio.create_task(self._leave(owners), name="plait leaves the cluster")
        return self._leaving

    @overload
    def on_startup(self, function: F, *, once: bool = False) -> F: ...
    @overload
    def on_startup(self, function: None = None, *, once: bool = False) -> Callable[[F], F]: ...
    def on_startup(self, function: F | None = None, *, once: bool = False) -> F | Callable[[F], F]:
        """Run a function when the app starts, before it accepts connections: `@app.on_startup`.

        The function takes no arguments, and may be async. If it raises, the app does not start. With several workers it
        runs in each of them, at every start. With `@app.on_startup(once=True)` it runs only in worker 0, before the
        other workers start, and not again when worker 0 is started again or replaced.
        """

        def add(function: F) -> F:
            self._startup.add(function, once=once)
            return function

        return add if function is None else add(function)

    def prepare_serving(self, host: str, *, number: int = 0, in_development: bool = False) -> None:
        """Allow the host that a server listens on. `number` is the number of this Plait, if the server has several.

        In development, 404 answers list the kinds, errors contain the text of every exception, changes in place are
        found in states of any size, and agents need no secret.
        """
        self._site.listen(host, warns=self._is_first)
        if isinstance(self._network, Folder):
            self._network.app = number
        self._context.lists_kinds = self._node.failures.shows_text = in_development
        if in_development:
            for kind in self._node.kinds.values():
                kind.state_type.most_compared = inf
        if in_development and self._runs.agents and not self._thread_ids.has_secret:
            self._thread_ids.use_development_secret()

    @property
    def addresses(self) -> Addresses:
        """The number of connections of each address. A server adds connections that have not sent a request yet."""
        return self._context.addresses

    def mount(self, path: str, app: ASGIApp) -> None:
        """Serve another ASGI application under a path, as with `app.mount("/ag-ui", AgUi(app))`."""
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError(f"{path!r} is not a path to mount at: use a path such as '/ag-ui'")
        self._site.mount(path, app)

    # Inside

    def _warn_of_queues(self) -> None:
        """Log a warning if a conversation names an agent that cannot answer its messages."""
        for kind in self._kinds:
            for name, part in find_parts(kind.cls).items():
                if isinstance(part, Messages) and part.agent is not None:
                    try:
                        self._runs.find(part.agent, kind.name).convert(msgspec.UNSET)
                    except (ValueError, PlaitError) as error:
                        place = f"{kind.cls.__name__}.{name}"
                        log.warning("messages queued in %s will not be handled: %s", place, error)

    async def _check_finished(self) -> None:
        # Only one worker has the file with this mark. A node owns nothing before it has joined.
        if isinstance(self._owners, ClusterOwners) or self._owners.owns(UNFINISHED):
            await check_finished(self._store)

    async def _listen(self) -> None:
        """Answer other nodes, and accept their threads. Raises Unavailable."""
        if not self._owners.is_alone:
            try:
                await self._context.links.start()
            except OSError as error:
                raise Unavailable(f"cannot listen for other nodes: {error.strerror or error}") from error
        await self._owners.open()

    async def _leave(self, cluster: ClusterOwners) -> None:
        """Give all threads to the other nodes, and then shut down."""
        self._node.moving.set_deadline(self.settings.shutdown_timeout)
        await cluster.give_all()
        self._context.links.go_away()
        await self._context.shutdown()

    def _find_role(self, store: str | Store) -> ProcessRole:
        worker = Worker.from_environment()
        given = None if self.settings.store or isinstance(store, str) else store
        versions = {kind.name: kind.state_version for kind in self._kinds}
        with as_setting_error("store"):
            return find_role(self.settings, given, worker, versions)

    def _make_context(self, authenticate: Authenticate | None, authorize: Authorize | None) -> ServerContext:
        settings = self.settings
        with as_setting_error("allowed_origins"):
            identity = Identity(settings.allowed_origins, authenticate, authorize, self._node.kinds)
        with as_setting_error("allowed_hosts"):
            hosts = Hosts(settings.allowed_hosts, is_guarded=authenticate is not None)
        context = ServerContext(
            self._node,
            identity,
            Heartbeat(settings.ping_interval, settings.ping_timeout),
            hosts=hosts,
            compatibility=Compatibility(self._store),
            runs=self._runs,
            owners=self._owners,
            links=Links(self._owners, self._network),
            shutdown_timeout=settings.shutdown_timeout,
        )
        self._node.calls.disconnect = partial(disconnect_here, context)
        self._node.instruments.measure_cluster(partial(measure, context))
        return context


def made_plaits() -> list[Plait]:
    """Return the Plaits that were made in this process and still exist, in the order in which they were made."""
    return [each for _, each in sorted(_made.items())]


def _make_metrics(settings: Settings) -> Metrics | None:
    try:
        return Metrics() if settings.metrics else None
    except ModuleNotFoundError:
        raise make_setting_error("metrics", "needs prometheus-client: pip install 'plait[metrics]'") from None


def _check_kinds(classes: Sequence[type[Thread[Any]]], limits: Limits) -> list[Kind]:
    if not classes:
        raise TypeError("Plait() needs at least one Thread class, such as Plait(GameRoom)")
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, Thread)) or cls is Thread:
            raise TypeError(f"Plait takes subclasses of Thread, not {cls!r}")
    kinds = [cls._kind.for_app() for cls in classes]
    names = [kind.name for kind in kinds]
    if reserved := INNER_KINDS.intersection(names):
        raise ValueError(f"the kind {min(reserved)!r} is reserved: set another with `kind = ...`")
    if len(set(names)) < len(names):
        raise ValueError(f"two classes have the same kind: {', '.join(sorted(names))}")
    for kind in kinds:
        kind.check(limits)
    return kinds
