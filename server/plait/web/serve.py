"""Runs an ASGI app that contains plait under uvicorn."""

import asyncio
import faulthandler
import signal
import socket
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from plait.limits import Limits
from plait.web.addresses import KEPT, Addresses, HalfOpen
from plait.web.descriptors import Descriptors
from plait.web.log_config import LogLevel
from plait.web.sockets.handshake import Handshake
from plait.web.tls import TlsListener
from plait.web.workers.control import Control

try:
    from plait.web.http.http_protocol import HttpProtocol
except ModuleNotFoundError:  # httptools does not support Windows; uvicorn then uses h11, which has its own limits.
    HttpProtocol = None  # type: ignore[assignment, misc]

__all__ = ["listen", "make_http_protocol", "serve"]

# With a short backlog, the kernel drops connections of a burst, and TCP retries them after a second.
_BACKLOG = 4096
# If a hook blocks the event loop for this many seconds, the stack of every OS thread is written to standard error.
_STALL = 30.0
# Seconds between checks for a second Ctrl+C, which ends the process at once.
_TICK = 0.1
# A worker that stops listening checks whether connections wait for their first request: this often, at this interval in
# seconds.
_LOOKS = 100
_SHORT_TICK = 0.02
# Seconds after `shutdown_timeout` before uvicorn drops open connections.
_GRACE = 8


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def serve(
    app: Callable[..., Any],
    bound: socket.socket,
    *,
    started: Callable[[], None],
    ending: Callable[[], asyncio.Future[Any]],
    log_level: LogLevel,
    shutdown_timeout: float,
    request_timeout: float,
    limits: Limits,
    addresses: Addresses,
    certificate: str | None = None,
    key: str | None = None,
    trusted_proxies: str | None = None,
    control: Control | None = None,
) -> bool:
    """Serve until the process is told to stop; return whether the app could start.

    `started` is called after the start, and `ending` when the process is told to stop; the server listens until the
    task that it returns is done. A worker, whose parent stops it by `control`, stops listening at once: others go on.
    """
    descriptors = Descriptors()
    descriptors.prepare(max(limits.connections_per_thread, limits.connections_per_address))
    if trusted_proxies is not None:
        addresses.proxies = cast(Container[str], ProxyHeadersMiddleware(app, trusted_proxies).trusted_hosts)
    config = uvicorn.Config(
        app,
        http=make_http_protocol(addresses, request_timeout),
        ws=Handshake,
        loop="auto",
        log_config=None,
        log_level=log_level,
        access_log=log_level == "debug",
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=KEPT,
        proxy_headers=trusted_proxies is not None,
        forwarded_allow_ips=trusted_proxies,
        server_header=False,
        timeout_graceful_shutdown=int(shutdown_timeout) + _GRACE,
        callback_notify=partial(_watch, descriptors, dumps_stacks=control is None),
        timeout_notify=5,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    tls = partial(TlsListener, timeout=request_timeout, addresses=addresses, descriptors=descriptors)
    server = _Server(config, descriptors, tls, started, ending, control=control)
    server.run(sockets=[bound])
    faulthandler.cancel_dump_traceback_later()
    return server.started


def make_http_protocol(addresses: Addresses, request_timeout: float) -> Any:
    """Return uvicorn's `http=` argument."""
    if HttpProtocol is None:
        return "auto"
    return partial(HttpProtocol, half_open=HalfOpen(addresses, request_timeout))


class _Server(uvicorn.Server):
    """A server that calls back when it has started, and exits with 0 when it is told to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        descriptors: Descriptors,
        listen_tls: partial[TlsListener],
        started: Callable[[], None],
        ending: Callable[[], asyncio.Future[Any]],
        *,
        control: Control | None,
    ) -> None:
        super().__init__(config)
        self.servers: list[asyncio.Server] = []
        self._descriptors = descriptors
        self._listen_tls = listen_tls
        self._say = started
        self._ending = ending
        self._control = control
        # Whether the server has stopped listening, as other workers listen.
        self._is_retired = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._descriptors.handle)
        if self._control is not None:
            self._control.start(self._retire)
        context = self.config.ssl
        await super().startup(sockets if context is None else [])
        if self.started and context is not None and sockets:
            # uvicorn's own listener would count a connection only after its TLS handshake.
            listener = self._listen_tls(sockets[0], context=context, make=self._make_protocol)
            listener.start()
            self.servers.append(cast(asyncio.Server, listener))
        if self.started:
            self._say()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._is_retired:
            await self._serve_new_connections()
        ending = self._ending()
        while not (ending.done() or self.force_exit):
            await asyncio.wait([ending], timeout=_TICK)
        await super().shutdown(sockets)
        if self._control is not None:
            self._control.stop()

    def _retire(self) -> None:
        """Stop listening, and begin to shut down."""
        for server in self.servers:
            if isinstance(server, TlsListener):
                server.stop_accepting()
            else:
                server.close()
        self._is_retired = self.should_exit = True

    async def _serve_new_connections(self) -> None:
        """Give the newest connections a moment to send their first requests."""
        for _ in range(_LOOKS):
            if not self._has_new_connections() or self.force_exit:
                break
            await asyncio.sleep(_SHORT_TICK)

    def _has_new_connections(self) -> bool:
        return any(isinstance(each, TlsListener) and each.is_busy for each in self.servers) or any(
            getattr(each, "cycle", each) is None for each in self.server_state.connections
        )

    def _make_protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return cast(
            asyncio.Protocol,
            make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        taken = [signal.SIGINT, signal.SIGTERM]
        # Also sent when a terminal is closed, unless nohup ignores it. A parent of several workers reloads instead.
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and self._control is None and signal.getsignal(hangup) is not signal.SIG_IGN:
            taken.append(hangup)
        former = {each: signal.signal(each, self.handle_exit) for each in taken}
        try:
            yield
        finally:
            for each, handler in former.items():
                signal.signal(each, handler)


async def _watch(descriptors: Descriptors, *, dumps_stacks: bool) -> None:
    """Watch for a blocked event loop, and for missing file descriptors."""
    if dumps_stacks:  # In a worker, `Control` does that.
        faulthandler.dump_traceback_later(_STALL)
    descriptors.check()
